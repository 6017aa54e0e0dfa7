"""Where a job starts from: the model, the prompts, the environment."""

from typing import Annotated, Literal

from pydantic import Field

from roll_api.base import FreeForm, Key, Label, Location, Model, PythonObject


class Reference(Model):
    """A model that stays as it is."""

    path: Location
    """Hugging Face folder or id, or `builtin:NAME`."""


class ModelSource(Model):
    """The model that is trained."""

    path: Location
    """Hugging Face folder or id, or `builtin:NAME`."""

    reference: Reference | None = None
    """Model that the KL term compares with. Without it: the trained model as it was before step 1."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the weights. `auto` takes the format of the checkpoint."""


class ChatTemplate(Model):
    """How a prompt becomes text."""

    use: Literal["Auto", "Always", "Never"] = "Auto"
    """Whether prompts go through the tokenizer's chat template. `Auto`: if the tokenizer has one."""

    system: Annotated[str, Field(max_length=16384)] | None = None
    """System message put before the prompt."""

    options: FreeForm = {}
    """Further arguments of the template."""


class DataSource(Model):
    """Rows of prompts: JSONL, parquet, a Hugging Face folder or id, or `builtin:NAME`."""

    path: Location
    """JSONL or parquet file, Hugging Face folder or id, or `builtin:NAME`. `ID:CONFIG` chooses a configuration of an id. Of a folder the files are read that are named for the split (`train`; `validation`, `test`, `dev`, …), or else those that are named for none."""

    prompt_key: Key = "prompt"
    """Column of the prompt, a string."""

    messages_key: Key = "messages"
    """Column of the prompt as chat messages. Where a row has it, it is used instead of the prompt."""

    answer_key: Key = "answer"
    """Column of the expected answer."""

    tag_key: Key = "tag"
    """Column of the tag that selects the rewards of a row."""

    tag: Label = "default"
    """Tag of rows that have none."""

    chat_template: ChatTemplate = ChatTemplate()
    """How a prompt becomes text."""


class Validation(Model):
    """How often and how a policy is judged on held-out prompts."""

    every_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    """Steps between two validations. Versions 0 and the last are always validated."""

    samples: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Prompts per validation, at most. Without it: all of a data set, 64 episodes of an environment."""

    temperature: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Sampling temperature. 0 takes the most likely token."""


class ValidationData(Validation, DataSource):
    """Held-out prompts."""


class Data(Model):
    """Prompts to train on and prompts held out."""

    train: DataSource
    """Prompts to train on."""

    validation: ValidationData | None = None
    """Held-out prompts. Without it nothing is validated."""


class EnvironmentSource(Model):
    """The world in which an agentic job acts."""

    kind: Literal["frozenLake"] | None = None
    """Environment that comes with the product."""

    python: PythonObject | None = None
    """Environment of your own, `file.py:Class`."""

    options: FreeForm = {}
    """Arguments of the environment."""

    max_turns: Annotated[int, Field(ge=1, le=10_000)] = 10
    """Turns after which an episode is cut off."""

    action_pattern: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Regular expression whose first group is the action in an answer. Without it: the environment's own."""

    format_penalty: Annotated[float, Field(ge=-1000, le=0)] = 0.0
    """Reward added for an answer without a valid action."""

    validation: Validation | None = None
    """Validation on seeds that training never sees. Without it nothing is validated."""
