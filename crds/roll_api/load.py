"""Reads a job's file and reports everything that is wrong with it at once, with lines and key paths."""

import difflib
from collections.abc import Iterator
from copy import deepcopy
from os import PathLike
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from roll_api.job import RLJob
from roll_api.problems import InvalidJob, Loc, Problem, dotted
from roll_api.shapes import WORDS
from roll_api.spec import JobSpec


def load_job(path: str | PathLike[str], *, cluster: bool = False) -> RLJob:
    """Reads a job's file; raises InvalidJob with all problems. `cluster` adds the rules about pods."""
    # Most commands read no YAML, and its library takes a tenth of a second to import.
    from roll_api.document import read_document

    file = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise InvalidJob([Problem(file, None, "", f"cannot be read: {reason}")]) from error
    document = read_document(text, file)
    try:
        return RLJob.parse(document.data, cluster=cluster)
    except ValidationError as error:
        found = problems_in(document.data, error, cluster=cluster)
    raise InvalidJob(Problem(file, document.line(loc), dotted(loc), words) for loc, words in found)


def problems_in(
    data: dict[str, Any], error: ValidationError, *, cluster: bool = False
) -> list[tuple[Loc, str]]:
    """All that is wrong with a job's data, each in words, from pydantic's verdict on it."""
    details = [*error.errors(include_url=False), *_hidden_rules(data, error, cluster)]
    return [(detail["loc"], _message(detail)) for detail in details]


def _hidden_rules(
    data: dict[str, Any], error: ValidationError, cluster: bool
) -> Iterator[ErrorDetails]:
    """Broken rules between fields, which pydantic does not judge while a field is wrong by itself.

    The spec is mended (wrong keys removed, missing ones filled in) and judged again; rules that read
    a mended key stay silent.
    """
    spec = deepcopy(data.get("spec"))
    if not isinstance(spec, dict) or any(detail["type"] == "rule" for detail in error.errors()):
        return
    mended: list[Loc] = []
    for _ in range(8):  # filling in a missing object may show that its own keys are missing
        try:
            JobSpec.model_validate(spec, by_alias=True, by_name=False, context={"cluster": cluster})
            return
        except ValidationError as again:
            details = again.errors(include_url=False)
        if all(detail["type"] == "rule" for detail in details):
            for detail in details:
                reads = detail["ctx"]["reads"]
                if not any(_decides(loc, path) for path in reads for loc in mended):
                    yield {**detail, "loc": ("spec", *detail["loc"])}
            return
        mended += [_mend(spec, detail) for detail in details]


def _decides(loc: Loc, path: str) -> bool:
    """Whether a key is the one that a rule reads, or holds it; `*` stands for any item of a list."""
    parts = path.split(".")
    return len(loc) <= len(parts) and all(
        part in (key, "*") for key, part in zip(loc, parts, strict=False)
    )


def _mend(spec: dict[str, Any], detail: ErrorDetails) -> Loc:
    """Fills in a missing key or removes a wrong one; a wrong item takes its whole list along."""
    loc = list(detail["loc"])
    while isinstance(loc[-1], int):
        loc.pop()
    *parents, key = loc
    holder: Any = spec
    for parent in parents:
        if isinstance(holder, dict) and parent not in holder:
            return tuple(loc)  # removed together with a parent
        holder = holder[parent]
    if detail["type"] == "missing":
        holder[key] = "x" if _model_at(JobSpec, tuple(loc)) is None else {}
    else:
        holder.pop(key, None)
    return tuple(loc)


def _message(detail: ErrorDetails) -> str:
    kind = detail["type"]
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return _unknown_key(detail["loc"])
    if kind == "rule":
        return detail["msg"]
    if kind in ("model_type", "dict_type"):
        return f"should be a mapping of keys, not {detail['input']!r}"
    if kind == "string_pattern_mismatch":
        return f"{WORDS[detail['ctx']['pattern']]}, not {detail['input']!r}"
    message = detail["msg"][:1].lower() + detail["msg"][1:]
    return f"{message}, not {detail['input']!r}"


def _unknown_key(loc: Loc) -> str:
    model = _model_at(RLJob, loc[:-1])
    if model is None:
        return "unknown key"
    known = [field.alias or name for name, field in model.model_fields.items()]
    by_lower = {key.lower(): key for key in known}
    wanted = str(loc[-1]).replace("_", "").replace("-", "").lower()
    close = difflib.get_close_matches(wanted, by_lower, n=1)
    if close:
        return f"unknown key; did you mean {by_lower[close[0]]}?"
    return f"unknown key; known here: {', '.join(known)}"


def _model_at(model: type[BaseModel], loc: Loc) -> type[BaseModel] | None:
    """The model class that describes the value at a location; None for a plain value."""
    current: type[BaseModel] | None = model
    for part in loc:
        if isinstance(part, int):
            continue
        if current is None:
            return None
        fields = {field.alias or name: field for name, field in current.model_fields.items()}
        current = inner_model(fields[part].annotation) if part in fields else None
    return current


def inner_model(annotation: Any) -> type[BaseModel] | None:
    """The model class that an annotation holds, if it holds one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = inner_model(inner)
        if found is not None:
            return found
    return None
