"""Pods whose node is lost: the kubelet cannot confirm their end, so nobody else would ever free their place.

Invariant: a pod object is force-deleted only when its process, should it still run, can do no harm: its uid is
in the durable record, and the running scheduler has confirmed that it refuses it. A scheduler that is not there
cannot be told; the next one hears only of pods that are not fenced.
"""

from dataclasses import replace

from roll_operator.plan.model import (
    SCHEDULER,
    Action,
    FencePod,
    ForceDelete,
    Observed,
    Pod,
    PodPhase,
    Record,
)

LOST_SECONDS = 30.0
"""How long after its grace a pod may be Terminating on a node that is not Ready."""


def fence(
    observed: Observed, record: Record, now: float
) -> tuple[Record, list[Action], float | None]:
    """The record with new fences, what to do now, and when the next pod is overdue."""
    actions: list[Action] = []
    wake_at: float | None = None
    present = {pod.uid for pod in observed.pods}
    fenced = [uid for uid in record.fenced if uid in present]
    listening = any(
        p.role == SCHEDULER and p.phase is PodPhase.RUNNING and p.node_ready for p in observed.pods
    )
    for pod in observed.pods:
        if pod.deletion_at is None or pod.node_ready:
            continue
        due = pod.deletion_at + LOST_SECONDS
        if now < due:
            wake_at = due if wake_at is None else min(wake_at, due)
        elif pod.uid not in record.fenced:
            fenced.append(pod.uid)
            actions.append(FencePod(pod.uid, pod.name))
        elif _known(pod, observed, listening):
            actions.append(ForceDelete(pod.uid, pod.name))
        else:
            actions.append(FencePod(pod.uid, pod.name))
    if tuple(fenced) != record.fenced:
        record = replace(record, fenced=tuple(fenced))
    return record, actions, wake_at


def _known(pod: Pod, observed: Observed, listening: bool) -> bool:
    return pod.role == SCHEDULER or not listening or pod.uid in observed.fenced
