"""Writes docs/reference.md, every key of a job, from the models: `python -m roll_api.reference`."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from roll_api.builtins import DATA, MODELS, PREFIX
from roll_api.job import OF_THE_OPERATOR, ObjectMeta
from roll_api.load import inner_model
from roll_api.rules import TRANSITIONS
from roll_api.spec import JobSpec

TARGET = Path(__file__).resolve().parents[2] / "docs" / "reference.md"
SCALED = tuple(f"roles.{role}.replicas" for role in ("inference", "reward", "environment"))

INTRODUCTION = """\
<!-- Written by `make generate` from the models in crds/roll_api. -->
# Every key of an RLJob

Below `spec`. A key without a default must be given; `–` means "not set". `roll validate FILE` judges all of it at once.
The last column tells when a key of a job that has begun may change:

| word | on a cluster | on one machine |
| --- | --- | --- |
| any time | takes effect at once | at the next `roll run` |
| at rest | while the job is suspended; a running one refuses it, and takes up a template or options when it is next resumed | at the next `roll run` |
| never | another `metadata.name` | another folder (`--output`), or `--fresh` |

On one machine only `uri` counts of `storage`. `steps` may grow: a finished run goes on. In a queue of Kueue replicas change
at rest.
Kinds and pipelines that no worker of this version runs are words of the contract all the same: `roll validate` tells them.
"""


def rendered() -> str:
    lines = [INTRODUCTION, "## metadata", *_table(ObjectMeta, "", only=("name", "namespace"))]
    lines += ["", "## spec", *_table(JobSpec, "")]
    for path, model in _sections(JobSpec, ""):
        if _first_places()[model] == path:
            lines += ["", f"## {path}", _sentence(model.__doc__ or ""), "", *_table(model, path)]
    lines += ["", "## Names behind `builtin:`", ""]
    lines.append("Models: " + ", ".join(f"`{PREFIX}{name}`" for name in MODELS) + ".")
    lines.append(
        "Data: "
        + ", ".join(f"`{PREFIX}{name}`" for name in DATA)
        + ", each also with `/held-out` behind it."
    )
    return "\n".join(lines) + "\n"


def _sections(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every object below, in the order of the file."""
    for key, field in _fields(model):
        inner = inner_model(field.annotation)
        if inner is not None:
            below = f"{path}.{key}" if path else key
            below += "[]" if _is_list(field.annotation) else ""
            yield below, inner
            yield from _sections(inner, below)


@cache
def _first_places() -> dict[type[BaseModel], str]:
    """Where each object is described, however many keys hold one."""
    places: dict[type[BaseModel], str] = {}
    for path, model in _sections(JobSpec, ""):
        places.setdefault(model, path)
    return places


def _fields(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    return [(field.alias or name, field) for name, field in model.model_fields.items()]


def _table(model: type[BaseModel], path: str, only: tuple[str, ...] = ()) -> list[str]:
    lines = ["| key | type | default | meaning | may change |", "| --- | --- | --- | --- | --- |"]
    for key, field in _fields(model):
        if only and key not in only:
            continue
        whole = f"{path}.{key}" if path else key
        change = "never" if only else _change(whole)
        kind, inner = _type(field), inner_model(field.annotation)
        if inner and (place := _first_places()[inner]).removesuffix("[]") != whole:
            kind += f", as `{place}`"
        cells = (f"`{key}`", kind, _default(field), _sentence(field.description or ""))
        lines.append("| " + " | ".join(_escaped(cell) for cell in (*cells, change)) + " |")
    return lines


def _type(field: FieldInfo) -> str:
    words = _type_of(field.annotation)
    bounds = {}
    for rule in _constraints(field):
        for sign, name in ((">", "gt"), (">=", "ge"), ("<", "lt"), ("<=", "le")):
            if (bound := getattr(rule, name, None)) is not None:
                bounds[sign] = f"{sign} {bound:g}" if abs(bound) < 1e6 else f"{sign} {bound:,}"
    return f"{words}, {', '.join(bounds.values())}" if bounds else words


def _constraints(field: FieldInfo) -> Iterator[Any]:
    """Those of the field itself, and of the type that `| None` was added to."""
    yield from field.metadata
    for option in get_args(field.annotation):
        for rule in getattr(option, "__metadata__", ()):
            yield from getattr(rule, "metadata", [rule])


def _type_of(annotation: Any) -> str:
    if inner_model(annotation) is not None:
        return "list of objects" if _is_list(annotation) else "object"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{option}`" for option in arguments)
    if origin is list:
        return f"list of {_type_of(arguments[0])}"
    if origin is dict:
        return "free object" if arguments[1] is Any else "object of text"
    if arguments:  # Annotated, or with None
        return next(_type_of(option) for option in arguments if option is not NoneType)
    names = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    return names[annotation]


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(map(_is_list, get_args(annotation)))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    if field.default is None or field.default == "":
        return "–"
    if isinstance(field.default, BaseModel):
        given = field.default.model_dump(mode="json", exclude_unset=True)
        return f"`{json.dumps(given)}`" if given else "`{}`"
    return f"`{json.dumps(field.default)}`"


def _change(path: str) -> str:
    """By the rules that the API server applies to an update."""
    of = path.split("[", 1)[0]
    for transition in TRANSITIONS:
        for read in transition.reads:
            fixed = not transition.unless_suspended and transition.seen is not bool
            if fixed and (of == read or of.startswith(f"{read}.")):
                return "never"
    if (
        of == "steps"
        or of in SCALED
        or any(of == key or of.startswith(f"{key}.") for key in OF_THE_OPERATOR)
    ):
        return "any time"
    return "at rest"


def _sentence(text: str) -> str:
    return " ".join(text.split())


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


if __name__ == "__main__":
    TARGET.write_text(rendered(), encoding="utf-8")
