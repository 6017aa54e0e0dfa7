"""Figures from the API server's own record: who wrote what, and when."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

WRITES = ("create", "update", "patch", "delete")
CALLS = (*WRITES, "get", "list")


@dataclass(frozen=True, slots=True)
class Write:
    user: str
    verb: str
    kind: str
    """Resource, and subresource after a slash."""
    name: str
    """namespace/name"""
    code: int
    asked: float
    answered: float


def read(path: Path, verbs: Sequence[str] = WRITES) -> list[Write]:
    """All writes (or other calls) that were answered, oldest first."""
    found = []
    with path.open() as lines:
        for line in lines:
            event = json.loads(line)
            if event["verb"] not in verbs or event["stage"] != "ResponseComplete":
                continue
            what = event.get("objectRef") or {}
            sub = what.get("subresource")
            found.append(
                Write(
                    user=event["user"]["username"],
                    verb=event["verb"],
                    kind=what.get("resource", "") + (f"/{sub}" if sub else ""),
                    name=f"{what.get('namespace', '')}/{what.get('name', '')}",
                    code=event["responseStatus"]["code"],
                    asked=_seconds(event["requestReceivedTimestamp"]),
                    answered=_seconds(event["stageTimestamp"]),
                )
            )
    return sorted(found, key=lambda write: write.answered)


def busiest_second(writes: Iterable[Write]) -> int:
    return max(Counter(int(w.answered) for w in writes).values(), default=0)


def replacements(writes: Sequence[Write], failer: str) -> list[float]:
    """Seconds from each failure that `failer` wrote to the answer that the pod of that name was created again."""
    waiting: dict[str, float] = {}
    found = []
    for write in writes:
        if write.code >= 300:
            continue
        if write.user == failer and (write.verb, write.kind) == ("patch", "pods/status"):
            waiting[write.name] = write.asked
        elif (write.verb, write.kind) == ("create", "pods") and write.name in waiting:
            found.append(write.answered - waiting.pop(write.name))
    if waiting:
        raise RuntimeError(f"not replaced: {', '.join(sorted(waiting)[:5])} …")
    return sorted(found)


def timeline(calls: Sequence[Write], began: float, ready: float) -> str:
    """Who asked for what, and a row for each second: how far it was, and how long a new pod took."""
    calls = [c for c in calls if began <= c.asked and c.answered <= ready and c.kind != "leases"]
    counted = Counter((c.user.rpartition(":")[2], c.verb, c.kind, c.code) for c in calls)
    asked = [f"{n:7,} {' '.join(map(str, what))}" for what, n in counted.most_common()]
    rows = ["      s  objects  pods  running  statuses  events  ms a pod"]
    for second in range(int(ready - began) + 1):
        now = [c for c in calls if int(c.answered - began) == second and c.code < 300]
        kinds = Counter((c.verb, c.kind) for c in now)
        pods = [c.answered - c.asked for c in now if (c.verb, c.kind) == ("create", "pods")]
        made = sum(n for (verb, _), n in kinds.items() if verb == "create")
        events = kinds["create", "events"]
        rows.append(
            f"{second:7} {made - events - kinds['create', 'pods/binding']:8} {len(pods):5} "
            f"{kinds['patch', 'pods/status']:8} {kinds['patch', 'rljobs/status']:9} "
            f"{events:7} {sum(pods) * 1e3 / max(1, len(pods)):9.0f}"
        )
    return "\n".join([*asked, *rows])


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
