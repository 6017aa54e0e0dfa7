"""`--set KEY=VALUE`: a key of the spec, a value as YAML would read it."""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from roll_api import InvalidJob, Problem, RLJob
from roll_api.load import problems_in
from roll_api.problems import dotted
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError


def override(job: RLJob, changes: Sequence[str]) -> RLJob:
    """Raises InvalidJob that names the change."""
    if not changes:
        return job
    data = job.model_dump(by_alias=True, exclude_unset=True)
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise _problem(change, "write KEY=VALUE, e.g. --set rollout.groupSize=8")
        try:
            value = YAML(typ="safe", pure=True).load(text)
        except YAMLError:
            raise _problem(change, "the value is not YAML") from None
        _put(data["spec"], key.removeprefix("spec.").split("."), value, change)
    try:
        return RLJob.parse(data)
    except ValidationError as error:
        found = problems_in(data, error)
        raise InvalidJob(
            Problem("--set", None, dotted(loc), words) for loc, words in found
        ) from None


def _put(spec: dict[str, Any], path: list[str], value: Any, change: str) -> None:
    holder: Any = spec
    for part in path[:-1]:
        holder = _step(holder, part, change)
    if isinstance(holder, list):
        holder[_index(holder, path[-1], change)] = value
    else:
        holder[path[-1]] = value


def _step(holder: Any, part: str, change: str) -> Any:
    if isinstance(holder, list):
        return holder[_index(holder, part, change)]
    child = holder.setdefault(part, {})
    if not isinstance(child, dict | list):
        raise _problem(change, f"{part} has no keys of its own")
    return child


def _index(holder: list[Any], part: str, change: str) -> int:
    if not part.isdigit() or int(part) >= len(holder):
        raise _problem(change, f"{part} is not a position in a list of {len(holder)}")
    return int(part)


def _problem(change: str, message: str) -> InvalidJob:
    return InvalidJob([Problem(f"--set {change}", None, "", message)])
