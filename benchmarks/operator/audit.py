"""Figures from the API server's own record: who wrote what, and when."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

WRITES = ("create", "update", "patch", "delete")


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


def read(path: Path) -> list[Write]:
    """All writes that were answered, oldest first."""
    found = []
    with path.open() as lines:
        for line in lines:
            event = json.loads(line)
            if event["verb"] not in WRITES or event["stage"] != "ResponseComplete":
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


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
