"""Pods of a cluster as the planner sees them.

Reading is total: whatever a kubelet or an API server of another version writes, a pod is understood as far as
possible and never stops the operator.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from roll_operator.plan import Pod, PodPhase
from roll_operator.plan.objects.cluster import (
    ATTEMPT_LABEL,
    INDEX_LABEL,
    JOB_LABEL,
    MANAGED_BY_LABEL,
    MANAGER,
    ROLE_LABEL,
    SPEC_HASH_ANNOTATION,
)
from roll_operator.plan.objects.gang import group_of
from roll_operator.plan.objects.queue import FINALIZER
from roll_operator.plan.rules import DISRUPTION, of_the_cluster

Manifest = dict[str, Any]

SELECTOR = f"{MANAGED_BY_LABEL}={MANAGER}"

QUIET = frozenset({"", "ContainerCreating", "PodInitializing", "Completed", "Error"})
"""Reasons that tell nothing."""
VOLUME = ("persistentvolume", "persistent volume", "volume node affinity", "storageclass")
"""In the scheduler's words, of a pod that waits for its volume and not for room on a node."""
MESSAGE = 4000
SERIAL = re.compile(r"-tls-([0-9a-f]{16})$")
"""In the name of a Secret that the operator made; cert-manager's has none."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What is kept of a pod: a hundredth of its manifest."""

    key: str
    """Of the job: namespace/name."""
    owner: str
    """Uid of the job."""
    version: int
    pod: Pod
    node: str = ""
    ip: str = ""
    serial: str = ""
    """Of the certificate that it serves with, if the operator made it."""
    group: str = ""
    """The PodGroup that it is scheduled with."""
    log_read: bool = False
    queued: bool = False
    """Kueue's finalizer keeps its object."""


def read_pod(manifest: Manifest) -> PodFacts | None:
    """None for a pod that is no job's."""
    metadata = manifest["metadata"]
    labels = metadata.get("labels") or {}
    owner = owner_of(manifest)
    job, role = labels.get(JOB_LABEL), labels.get(ROLE_LABEL)
    if owner is None or not job or not role:
        return None
    status, spec = manifest.get("status") or {}, manifest.get("spec") or {}
    return PodFacts(
        key=f"{metadata['namespace']}/{job}",
        owner=owner,
        version=int(metadata["resourceVersion"]),
        pod=_pod(manifest, status, role),
        node=spec.get("nodeName") or "",
        ip=status.get("podIP") or "",
        serial=_serial(spec),
        group=group_of(manifest),
        queued=FINALIZER in (metadata.get("finalizers") or []),
    )


def owner_of(manifest: Manifest) -> str | None:
    """Uid of the RLJob that controls the object."""
    for reference in manifest["metadata"].get("ownerReferences") or []:
        if reference.get("controller") and reference.get("kind") == "RLJob":
            return str(reference["uid"])
    return None


def _serial(spec: Manifest) -> str:
    for volume in spec.get("volumes") or []:
        if volume.get("name") == "roll-tls":
            named = SERIAL.search(str((volume.get("secret") or {}).get("secretName", "")))
            return named[1] if named else ""
    return ""


def wants_log(facts: PodFacts) -> bool:
    """Whether the pod's last words are worth a call: it failed by itself and left no message."""
    pod = facts.pod
    failed = pod.phase is PodPhase.EXITED and pod.exit_code not in (None, 0)
    return failed and not (pod.message or pod.disrupted or facts.log_read)


def with_log(facts: PodFacts, lines: str) -> PodFacts:
    message = lines.strip() or facts.pod.message
    return replace(facts, log_read=True, pod=replace(facts.pod, message=message[-MESSAGE:]))


def _began(container: Manifest) -> str | None:
    """When its process started: the pod's own start is before its image was there."""
    began: str | None = ((container.get("state") or {}).get("running") or {}).get("startedAt")
    return began


def _pod(manifest: Manifest, status: Manifest, role: str) -> Pod:
    metadata, labels = manifest["metadata"], manifest["metadata"]["labels"]
    container = _container(status, role)
    ended, restarts = _end(container), int(container.get("restartCount") or 0)
    deletion_at = seconds(metadata.get("deletionTimestamp")) or None
    conditions = _true_conditions(status)
    ended_at = seconds(ended.get("finishedAt"))
    phase = _phase(status, deletion_at)
    lingers = phase in (PodPhase.PENDING, PodPhase.RUNNING) and _is_over(manifest, container)
    if lingers:
        phase = PodPhase.EXITED
    if phase is PodPhase.EXITED and not ended_at:  # evicted before a container ran
        ended_at = _newest_transition(status) or deletion_at or 0.0
    return Pod(
        name=metadata["name"],
        role=role,
        index=_number(labels.get(INDEX_LABEL)),
        uid=metadata["uid"],
        attempt=_number(labels.get(ATTEMPT_LABEL)),
        phase=phase,
        started_at=seconds(_began(container) or ended.get("startedAt") or status.get("startTime")),
        ended_at=ended_at,
        exit_code=ended.get("exitCode"),
        message=str(ended.get("message") or status.get("message") or "").strip()[-MESSAGE:],
        ran=bool(seconds(_began(container) or ended.get("startedAt"))),
        disrupted=DISRUPTION in conditions or of_the_cluster(status.get("reason") or ""),
        restarts=restarts,
        reasons=tuple(dict.fromkeys(_reasons(status, ended))),
        conditions=conditions,
        pending=_pending(status, role),
        scheduled="PodScheduled" in conditions
        or bool((manifest.get("spec") or {}).get("nodeName")),
        deletion_at=deletion_at,
        lingers=lingers,
        spec_hash=(metadata.get("annotations") or {}).get(SPEC_HASH_ANNOTATION, ""),
        image=_image(manifest, role),
    )


def _phase(status: Manifest, deletion_at: float | None) -> PodPhase:
    phase = status.get("phase")
    if phase in ("Failed", "Succeeded"):
        return PodPhase.EXITED
    if deletion_at is not None:
        return PodPhase.STOPPING
    return PodPhase.RUNNING if phase == "Running" else PodPhase.PENDING


def _is_over(manifest: Manifest, container: Manifest) -> bool:
    """Whether the role's process ended for good. The pod itself runs on until its side-cars end, and
    is pending while one of them has not started."""
    never = (manifest.get("spec") or {}).get("restartPolicy") == "Never"
    return never and bool((container.get("state") or {}).get("terminated"))


def _container(status: Manifest, role: str) -> Manifest:
    """State of the role's own container; others are side-cars."""
    for container in status.get("containerStatuses") or []:
        if container.get("name") == role:
            return dict(container)
    return {}


def _image(manifest: Manifest, role: str) -> str:
    """As it was asked for; the kubelet's status has it under the name that the node knows."""
    for container in (manifest.get("spec") or {}).get("containers") or []:
        if container.get("name") == role:
            return str(container.get("image") or "")
    return ""


def _end(container: Manifest) -> Manifest:
    """How the container ended, for good or before it was last restarted in place."""
    for state in ("state", "lastState"):
        terminated = (container.get(state) or {}).get("terminated")
        if terminated:
            return dict(terminated)
    return {}


def _reasons(status: Manifest, ended: Manifest) -> Iterator[str]:
    for reason in (ended.get("reason"), status.get("reason")):
        if reason and reason not in QUIET:
            yield str(reason)
    for condition in status.get("conditions") or []:
        if condition.get("type") == DISRUPTION and condition.get("reason"):
            yield str(condition["reason"])
    if ended.get("reason") in ("Error", "Completed"):
        yield str(ended["reason"])


def _pending(status: Manifest, role: str) -> tuple[str, str] | None:
    """Why the pod does not run, in the words of the scheduler or the kubelet: of the role's own container first, then
    of its side-cars, then of what has to end before them."""
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            reason, words = (str(condition.get(key) or "") for key in ("reason", "message"))
            if any(word in words.lower() for word in VOLUME):
                return "Volume", words
            return reason or "Unschedulable", words
    beside = [c for c in status.get("containerStatuses") or [] if c.get("name") != role]
    before = status.get("initContainerStatuses") or []
    for container in (_container(status, role), *beside, *before):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason not in QUIET:
            return reason, str(waiting.get("message") or "")
    return None


def _true_conditions(status: Manifest) -> frozenset[str]:
    return frozenset(
        str(c.get("type")) for c in status.get("conditions") or [] if c.get("status") == "True"
    )


def _newest_transition(status: Manifest) -> float:
    times = (seconds(c.get("lastTransitionTime")) for c in status.get("conditions") or [])
    return max(times, default=0.0)


def seconds(stamp: str | None) -> float:
    """Unix time of an API server's time; 0 where there is none."""
    if not stamp:
        return 0.0
    try:
        return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
