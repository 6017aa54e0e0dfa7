"""What all models of the contract share: strict types, no unknown keys, camelCase in YAML.

Models are immutable, so that a default may be one shared instance and a job can be handed around
without anybody changing it.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from roll_api.shapes import shaped

Location = Annotated[str, Field(min_length=1, max_length=1024)]
"""A file, a folder, a Hugging Face id or `builtin:NAME`."""

PythonObject = Annotated[
    str,
    shaped(
        r"^[^:]*\.py:[A-Za-z_][A-Za-z0-9_]*$",
        "write FILE.py:NAME, e.g. rewards.py:score",
        max_length=512,
    ),
]
"""`file.py:name`; the file is looked for beside the job's file."""

Key = Annotated[str, Field(min_length=1, max_length=128)]
"""A column of a data set."""

Label = Annotated[
    str,
    shaped(
        r"^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$",
        "write letters, digits, '-', '_' and '.', with a letter or a digit at both ends",
        min_length=1,
        max_length=63,
    ),
]
"""A short name that also serves as a metric's label."""

FreeForm = Annotated[dict[str, Any], Field(max_length=64)]
"""Options that the contract passes on unread."""


class Model(BaseModel):
    """A part of an RLJob. YAML has `groupSize`, Python has `group_size`."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_means_absent(cls, data: Any) -> Any:
        """The API server drops nulls before it fills in defaults; so does this."""
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if value is not None}
        return data
