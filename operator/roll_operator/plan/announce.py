"""Events for people: one at each transition, found by comparing what was reported with what is reported now."""

from collections.abc import Iterable
from typing import Literal

from roll_api import JobStatus

from roll_operator.plan.model import Action, Announce, Phase, Restarted

TEXT = 1000
"""An Event's message may have 1,024 bytes."""

WORDS = {
    Phase.RUNNING: ("Running", "all pods are ready"),
    Phase.SUSPENDED: (
        "Suspended",
        "all pods are gone; suspend: false continues from the checkpoint",
    ),
    Phase.SUCCEEDED: ("Succeeded", "all steps are trained"),
}
ALIKE = {"ErrImagePull": "ImagePullBackOff"}
"""Obstacles that take turns while one thing is wrong: a kubelet that tries, and one that waits before it tries again."""
WARNINGS = ("Stalled", "SpecChangePending", "LedgerLost")
"""Conditions that are told when they become true."""


def announcements(
    before: JobStatus | None, after: JobStatus, actions: Iterable[Action]
) -> list[Announce]:
    """The first plan of a job has nothing to compare with: what a pod's end led to is told all the same."""
    told = [_restart(action) for action in actions if isinstance(action, Restarted)]
    if before is None:
        return told
    old, new = Phase(before.phase), Phase(after.phase)
    if new is not old:
        if new is Phase.FAILED:
            told.append(_clipped("Warning", after.reason, after.message))
        elif new in WORDS:
            told.append(Announce("Normal", *WORDS[new]))
        elif old is Phase.SUSPENDED:
            told.append(Announce("Normal", "Resumed", "the job continues from its checkpoint"))
    told += [
        _clipped("Warning", kind, _message(after, kind))
        for kind in WARNINGS
        if _holds(after, kind) and not _holds(before, kind)
    ]
    kind, _, words = after.pending_reason.partition(": ")
    if kind and _alike(kind) != _alike(before.pending_reason.partition(": ")[0]):
        told.append(_clipped("Warning", kind, words))
    runs = new in (Phase.RUNNING, Phase.RECOVERING)
    if runs and _holds(before, "SchedulerReachable") and not _holds(after, "SchedulerReachable"):
        told.append(Announce("Warning", "SchedulerUnreachable", "the scheduler does not answer"))
    return told


def _alike(kind: str) -> str:
    return ALIKE.get(kind, kind)


def _restart(event: Restarted) -> Announce:
    failure = event.failure
    when = "now" if event.wait <= 0 else f"in {event.wait:.0f} s"
    uncounted = "" if event.counted else ", uncounted"
    last = failure.message.strip().splitlines()[-1:] or [""]
    text = f"{failure.pod}: {failure.reason}; restarting {event.role} {when}{uncounted}: {last[0]}"
    return _clipped("Warning" if event.counted else "Normal", "PodRestart", text)


def _clipped(kind: Literal["Normal", "Warning"], reason: str, message: str) -> Announce:
    return Announce(kind, reason[:128], message.encode()[:TEXT].decode(errors="ignore"))


def _holds(status: JobStatus, kind: str) -> bool:
    return any(c.type == kind and c.status == "True" for c in status.conditions)


def _message(status: JobStatus, kind: str) -> str:
    return next((c.message for c in status.conditions if c.type == kind), "")
