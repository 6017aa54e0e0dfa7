"""Objects made from a base by setting and removing keys by their dotted paths."""

from copy import deepcopy
from typing import Any


def changed(
    base: Any, assign: dict[str, Any] | None = None, remove: list[str] | None = None
) -> Any:
    """A copy of `base` with some keys set and some removed; `rewards.0.name` reaches into a list."""
    result = deepcopy(base)
    for path, value in (assign or {}).items():
        holder, key = _holder(result, path)
        holder[key] = deepcopy(value)
    for path in remove or []:
        holder, key = _holder(result, path)
        del holder[key]
    return result


def _holder(value: Any, path: str) -> tuple[Any, Any]:
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        value = value.setdefault(part, {}) if isinstance(value, dict) else value[part]
    return value, last
