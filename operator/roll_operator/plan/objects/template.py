"""A user's pod template merged over the generated pod, as `kubectl` would: strategically, by name.

Invariant: what the operator relies on (identity, ownership, network name, the files and variables by which
a process finds its job) is the same after the merge as before it.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

Json = dict[str, Any]

KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
}
"""Lists whose items are known by a key; the item with the same key is changed, others are added."""

WHOLE = ("env", "volumes", "volumeMounts")
"""Lists whose items are replaced, not merged: half of two volumes is no volume."""

APPENDED = ("tolerations",)

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


def merged(pod: Json, template: Mapping[str, Any], protected: frozenset[str]) -> Json:
    """The pod with the template's wishes; `protected` names volumes and variables that stay as they are."""
    if not template:
        return pod
    wishes = deepcopy(dict(template))
    result = deepcopy(pod)
    metadata, spec = wishes.get("metadata"), wishes.get("spec")
    if isinstance(metadata, dict):
        result["metadata"] = _metadata(pod["metadata"], metadata)
    if isinstance(spec, dict):
        wanted = {key: value for key, value in spec.items() if key not in KEPT_SPEC}
        result["spec"] = _map(result["spec"], wanted, protected)
        _affinity(result["spec"], pod["spec"].get("affinity"), spec.get("affinity"))
    return result


def _metadata(ours: Json, theirs: Json) -> Json:
    """Labels and annotations are added to; ours cannot be changed, because others select by them."""
    result = {**{k: v for k, v in theirs.items() if k not in KEPT_METADATA}, **ours}
    for key in ("labels", "annotations"):
        added = theirs.get(key)
        if isinstance(added, dict):
            result[key] = {**added, **ours.get(key, {})}
    return result


def _map(ours: Json, theirs: Json, protected: frozenset[str]) -> Json:
    result = dict(ours)
    for key, wish in theirs.items():
        here = result.get(key)
        if wish is None:
            if key not in KEYS:  # one container may be changed, but not all removed
                result.pop(key, None)
        elif isinstance(here, dict) and isinstance(wish, dict):
            result[key] = _map(here, wish, protected)
        elif isinstance(here, list) and isinstance(wish, list):
            result[key] = _list(key, here, wish, protected)
        elif not (key in ours and isinstance(here, dict | list)):
            result[key] = wish
    return result


def _list(key: str, ours: list[Any], theirs: list[Any], protected: frozenset[str]) -> list[Any]:
    if key in APPENDED:
        return [*ours, *(item for item in theirs if item not in ours)]
    if key not in KEYS:
        return theirs
    by = KEYS[key]
    result = {item[by]: item for item in ours}
    for item in theirs:
        if not isinstance(item, dict) or by not in item:
            continue
        name = item[by]
        if name in result and _is_protected(key, result[name], protected):
            continue
        here = result.get(name)
        result[name] = item if here is None or key in WHOLE else _map(here, item, protected)
    return list(result.values())


def _is_protected(key: str, item: Json, protected: frozenset[str]) -> bool:
    """A mount is protected together with its volume."""
    return key in WHOLE and item["name"] in protected


def _affinity(spec: Json, ours: Any, theirs: Any) -> None:
    """Rules of both sides hold: pods' terms are listed together, nodes' alternatives are combined."""
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity"):
        mine, other = ours.get(kind), theirs.get(kind)
        if not isinstance(mine, dict) or not isinstance(other, dict):
            continue
        for strength in (required, preferred):
            if strength not in mine or strength not in other:
                continue
            if (kind, strength) == ("nodeAffinity", required):
                terms = _both(mine[strength], other[strength])
                spec["affinity"][kind][strength] = {"nodeSelectorTerms": terms}
            else:
                spec["affinity"][kind][strength] = [*mine[strength], *other[strength]]


def _both(ours: Json, theirs: Json) -> list[Json]:
    """Alternatives are or-ed, the expressions within one are and-ed: every pair of alternatives."""
    pairs = [
        (a, b)
        for a in ours["nodeSelectorTerms"]
        for b in theirs.get("nodeSelectorTerms", []) or [{}]
    ]
    return [
        {
            key: [*a.get(key, []), *b.get(key, [])]
            for key in ("matchExpressions", "matchFields")
            if a.get(key) or b.get(key)
        }
        for a, b in pairs
    ]
