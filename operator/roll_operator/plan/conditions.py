"""Conditions of a job, each with its reason, and the worst obstacle of pods that do not start."""

from collections.abc import Mapping, Sequence
from typing import Literal

from roll_api import JobStatus
from roll_api.keeping import Storage
from roll_api.status import Condition

from roll_operator.plan.model import Observed, Phase, PodPhase, Record

WORST_FIRST = (
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "ErrImagePull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "Refused",
    "Volume",
    "Quota",
    "Unschedulable",
    "SchedulingGated",
)
"""What heals by itself least likely comes first; kinds that are not named come before the scheduler's."""

GATED = "SchedulingGated"
"""A queue holds the pod back."""

TEXT = 1000
NAMED = 10
"""Pods that a message names, at most."""

Truth = tuple[bool, str, str]
"""Whether a condition holds, its reason, its message."""


def obstacle(observed: Observed) -> str:
    """`Kind: pod: the cluster's words`; empty when every pod starts."""
    found = [(name, kind, message) for name, (kind, message) in observed.refused.items()]
    for pod in observed.pods:
        if pod.pending is not None and pod.phase is not PodPhase.EXITED:
            found.append((pod.name, *pod.pending))
    if not found:
        return ""
    name, kind, message = min(found, key=lambda o: (_rank(o[1]), _of_others(o[2]), o))
    return f"{kind}: {name}: {message}"[:TEXT]


def _of_others(message: str) -> bool:
    """Whether a member of a gang only waits for the others: the one that they wait for tells more."""
    return any(words in message.lower() for words in ("pod group", "podgroup"))


def _rank(kind: str) -> int:
    return WORST_FIRST.index(kind) if kind in WORST_FIRST else WORST_FIRST.index("Refused")


def truths(
    phase: Phase,
    missing: Sequence[str],
    pending: str,
    record: Record,
    observed: Observed,
    spec_pending: bool,
    before: JobStatus,
    storage: Storage,
) -> Mapping[str, Truth]:
    failure, stalled = record.failure, record.stalled
    over = phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED)
    gated = [p.name for p in observed.pods if p.pending is not None and p.pending[0] == GATED]
    unscheduled = [p.name for p in observed.pods if not p.scheduled]
    refused = set(observed.refused).intersection(missing)  # not the objects beside the pods
    scheduled = bool(observed.pods) and not unscheduled and not refused
    told = observed.progress.ledger_lost if observed.progress else ""
    lost = told or _still(before, "LedgerLost")
    degraded = phase is Phase.RECOVERING
    return {
        "Queued": _truth(bool(gated), "WaitingForQueue", "Admitted", _names(gated)),
        "PodsScheduled": _truth(
            scheduled,
            "Scheduled",
            pending.split(":")[0] or "NotScheduled",
            "" if scheduled else pending or _names(unscheduled),
        ),
        "PodsReady": _truth(not missing, "AllReady", "NotReady", _names(missing)),
        "SchedulerReachable": _truth(
            observed.progress is not None, "Answers", "Ended" if over else "NoAnswer"
        ),
        "Running": _truth(phase is Phase.RUNNING, phase.value, phase.value),
        "Stalled": _truth(
            stalled is not None, "NoProgress", "Progressing", stalled.message if stalled else ""
        ),
        "Degraded": _truth(
            degraded, "PodsMissing", "AllServe", _names(missing) if degraded else ""
        ),
        "Suspended": _truth(phase is Phase.SUSPENDED, "Suspended", "NotSuspended"),
        "SpecChangePending": _truth(
            spec_pending,
            "SuspendFirst",
            "UpToDate",
            "the spec has changes that running pods cannot take up: set suspend: true, then false"
            if spec_pending
            else "",
        ),
        "LedgerLost": _ledger(lost, storage),
        "Complete": _truth(phase is Phase.SUCCEEDED, "Succeeded", phase.value),
        "Failed": _truth(
            failure is not None,
            failure.reason if failure else "",
            "NotFailed",
            failure.message if failure else "",
        ),
    }


def dated(
    before: JobStatus, found: Mapping[str, Truth], generation: int, now: str
) -> list[Condition]:
    """A condition keeps the time at which it last became what it is."""
    known = {condition.type: condition for condition in before.conditions}
    conditions = []
    for kind, (holds, reason, message) in found.items():
        status: Literal["True", "False"] = "True" if holds else "False"
        old = known.get(kind)
        since = old.last_transition_time if old and old.status == status else now
        conditions.append(
            Condition(
                type=kind,
                status=status,
                reason=reason[:TEXT],
                message=message[:TEXT],
                last_transition_time=since,
                observed_generation=generation,
            )
        )
    return conditions


def _ledger(lost: str, storage: Storage) -> Truth:
    """A ledger that would be lost with its pod is told before it is."""
    if lost or storage.claims_ledger:
        return _truth(bool(lost), "LedgerLost", "LedgerKept", lost)
    where = "lies on the scheduler pod's own disk and is lost with the pod"
    return _truth(
        False,
        "LedgerLost",
        "LedgerOnPodDisk",
        f"the ledger {where}: the job then goes back to its newest checkpoint; storage.ledger: Claim keeps it",
    )


def _truth(holds: bool, reason: str, otherwise: str, message: str = "") -> Truth:
    return holds, reason if holds else otherwise, message


def _names(pods: Sequence[str]) -> str:
    more = f" and {len(pods) - NAMED} more" if len(pods) > NAMED else ""
    return ", ".join(pods[:NAMED]) + more


def _still(before: JobStatus, kind: str) -> str:
    return next((c.message for c in before.conditions if c.type == kind and c.status == "True"), "")
