"""A user's pod template merged over the generated pod, as `kubectl` would: strategically, by name.

Invariant: what the operator relies on (identity, ownership, network name, the files and variables by which
a process finds its job) is the same after the merge as before it. Nothing else of a template is passed over: what
cannot be merged is an error, and what is merged wrongly the API server refuses.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

Json = dict[str, Any]


class TemplateError(ValueError):
    """A template that is none, with the path of what is wrong."""


RELIED = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
}
"""Of the lists below those that a template may not remove as a whole."""
KEYS = RELIED | {
    "imagePullSecrets": ("name",),
    "ports": ("containerPort",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
"""Lists whose items are known by a key; the item with the same key is changed, others are added."""

WHOLE = ("env", "volumes", "volumeMounts")
"""Lists whose items are replaced, not merged: half of two volumes is no volume."""

APPENDED = ("tolerations",)

HANDLERS = ("exec", "grpc", "httpGet", "tcpSocket")
"""A probe has one of them: a template that names one wants it instead of ours."""

NODE_RULES = ("matchExpressions", "matchFields")
"""What a term of nodeSelectorTerms consists of."""

KEPT_METADATA = ("name", "generateName", "namespace", "ownerReferences", "finalizers", "uid")
KEPT_SPEC = (
    "hostname",
    "subdomain",
    "restartPolicy",
    "serviceAccountName",
    "serviceAccount",
    "automountServiceAccountToken",
    "terminationGracePeriodSeconds",
    "schedulingGroup",
    "setHostnameAsFQDN",
)


def merged(
    pod: Json, template: Mapping[str, Any], protected: frozenset[str], where: str = "template"
) -> Json:
    """The pod with the template's wishes; `protected` names volumes and variables that stay as they are.

    Raises TemplateError; `where` is the template's own path.
    """
    if not template:
        return pod
    wishes = deepcopy(dict(template))
    for key in wishes:
        if key not in ("metadata", "spec"):
            raise TemplateError(f"{where}.{key}: a pod template has metadata and spec only")
    result = deepcopy(pod)
    if wishes.get("metadata") is not None:
        at = f"{where}.metadata"
        result["metadata"] = _metadata(pod["metadata"], _a_map(wishes["metadata"], at), at)
    if wishes.get("spec") is not None:
        at = f"{where}.spec"
        spec = _a_map(wishes["spec"], at)
        wanted = {key: value for key, value in spec.items() if key not in KEPT_SPEC}
        result["spec"] = _map(result["spec"], wanted, protected, at)
        _affinity(result["spec"], pod["spec"].get("affinity"), spec.get("affinity"), at)
    return result


def _a_map(value: Any, where: str) -> Json:
    if not isinstance(value, dict):
        raise TemplateError(f"{where}: a map is expected, not {_brief(value)}")
    return value


def _a_list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise TemplateError(f"{where}: a list is expected, not {_brief(value)}")
    return value


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _metadata(ours: Json, theirs: Json, where: str) -> Json:
    """Labels and annotations are added to; ours cannot be changed, because others select by them."""
    result = {**{k: v for k, v in theirs.items() if k not in KEPT_METADATA}, **ours}
    for key in ("labels", "annotations"):
        if theirs.get(key) is not None:
            result[key] = {**_a_map(theirs[key], f"{where}.{key}"), **ours.get(key, {})}
    return result


def _map(ours: Json, theirs: Json, protected: frozenset[str], where: str) -> Json:
    if not theirs.keys().isdisjoint(HANDLERS):
        ours = {key: value for key, value in ours.items() if key not in HANDLERS}
    result = dict(ours)
    for key, wish in theirs.items():
        here, at = ours.get(key), f"{where}.{key}"
        if wish is None:
            if key not in RELIED:  # one container may be changed, but not all removed
                result.pop(key, None)
        elif isinstance(here, dict):
            result[key] = _map(here, _a_map(wish, at), protected, at)
        elif isinstance(here, list):
            result[key] = _list(key, here, _a_list(wish, at), protected, at)
        else:
            result[key] = wish
    return result


def _list(
    key: str, ours: list[Any], theirs: list[Any], protected: frozenset[str], where: str
) -> list[Any]:
    if key in APPENDED:
        return [*ours, *(item for item in theirs if item not in ours)]
    if key not in KEYS:
        return theirs
    by = KEYS[key]
    result = {_named(item, by, where): item for item in ours}
    for number, given in enumerate(theirs):
        at = f"{where}[{number}]"
        item = _a_map(given, at)
        name = _named(item, by, at)
        here = result.get(name)
        if here is not None and _is_protected(key, here, protected):
            continue
        result[name] = item if here is None or key in WHOLE else _map(here, item, protected, at)
    return list(result.values())


def _named(item: Json, by: tuple[str, ...], where: str) -> tuple[str, ...]:
    for part in by:
        if not isinstance(item.get(part), str | int):
            said = _brief(item[part]) if part in item else "nothing"
            raise TemplateError(f"{where}.{part}: a text or a number is expected, not {said}")
    return tuple(str(item[part]) for part in by)


def _is_protected(key: str, item: Json, protected: frozenset[str]) -> bool:
    """A mount is protected together with its volume."""
    return key in WHOLE and item.get("name") in protected


def _affinity(spec: Json, ours: Any, theirs: Any, where: str) -> None:
    """Rules of both sides hold: pods' terms are listed together, nodes' alternatives are combined.

    That both have the same shape, the merge before has seen.
    """
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity"):
        mine, other = ours.get(kind), theirs.get(kind)
        if not isinstance(mine, dict) or not isinstance(other, dict):
            continue
        for strength in (required, preferred):
            if mine.get(strength) is None or other.get(strength) is None:
                continue
            if (kind, strength) == ("nodeAffinity", required):
                at = f"{where}.affinity.{kind}.{strength}.nodeSelectorTerms"
                terms = _both(mine[strength], other[strength], at)
                spec["affinity"][kind][strength] = {"nodeSelectorTerms": terms}
            else:
                spec["affinity"][kind][strength] = [*mine[strength], *other[strength]]


def _both(ours: Json, theirs: Json, where: str) -> list[Json]:
    """Alternatives are or-ed, the expressions within one are and-ed: every pair of alternatives."""
    given = theirs.get("nodeSelectorTerms") or [{}]
    alternatives = [_term(term, f"{where}[{number}]") for number, term in enumerate(given)]
    return [
        {key: both for key in NODE_RULES if (both := [*a.get(key, []), *b.get(key, [])])}
        for a in ours["nodeSelectorTerms"]
        for b in alternatives
    ]


def _term(given: Any, where: str) -> Json:
    term = {key: value for key, value in _a_map(given, where).items() if value is not None}
    for key, value in term.items():
        if key not in NODE_RULES:
            raise TemplateError(f"{where}.{key}: a term has {' and '.join(NODE_RULES)} only")
        _a_list(value, f"{where}.{key}")
    return term
