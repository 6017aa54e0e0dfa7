"""When a status is written: at once if it says something new, otherwise now and then.

Invariants: a record is on the cluster before any act that follows from it; a write names the version that the
plan was made from, so that a plan made from an old view, or by an operator that leads no more, changes nothing.
"""

import time
from collections.abc import Callable
from typing import Any

from roll_api import API_VERSION, JobStatus

from roll_operator.controller.cluster import metrics, paths
from roll_operator.controller.cluster.api import Api
from roll_operator.controller.cluster.bucket import TokenBucket
from roll_operator.controller.cluster.proof import WatchProof
from roll_operator.controller.cluster.reading import INVALID
from roll_operator.controller.cluster.store import JobEntry
from roll_operator.plan import Plan
from roll_operator.plan.record import write_record
from roll_operator.plan.status import timestamp

FIGURES_SECONDS = 10.0
"""Figures alone are written this often at most."""
MANAGER = "roll-operator"
JUDGE = "roll-operator-validation"
"""Owns the condition of a job that cannot be read, and nothing else of the status."""


class StatusWriter:
    def __init__(
        self,
        api: Api,
        bucket: TokenBucket,
        proof: WatchProof,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._bucket, self._proof, self._clock = api, bucket, proof, clock

    async def write(self, entry: JobEntry, result: Plan, *, at_once: bool = False) -> float | None:
        """Writes what is due; else the seconds after which it will be. Raises what `Api.apply` raises.

        `at_once`: nobody will tell these figures again.
        """
        why = due(entry, result)
        if why is None:
            return None
        if why == "figures" and not at_once:
            wait = entry.written_at + FIGURES_SECONDS - self._clock()
            if entry.written_at and wait > 0:
                return wait
            if not self._bucket.spare(keep=5):
                return 1.0
        else:
            await self._bucket.take()
        metrics.STATUS_WRITES.labels(why).inc()
        status = result.status.model_dump(mode="json", by_alias=True, exclude_none=True)
        status["record"] = write_record(result.record)
        await self._apply(entry, status, MANAGER)
        entry.status, entry.record = result.status, result.record
        entry.written_at = self._clock()
        return None

    async def say_invalid(self, entry: JobEntry, now: float) -> None:
        """Sets the condition `Invalid` to what holds now, whatever else the status says."""
        condition = {
            "type": INVALID,
            "status": "True" if entry.problem else "False",
            "reason": "CannotBeRead" if entry.problem else "Read",
            "message": entry.problem,
            "lastTransitionTime": timestamp(now),
            "observedGeneration": entry.generation,
        }
        await self._bucket.take()
        metrics.STATUS_WRITES.labels("invalid").inc()
        await self._apply(entry, {"conditions": [condition]}, JUDGE)
        entry.invalid = entry.problem

    async def _apply(self, entry: JobEntry, status: dict[str, Any], manager: str) -> None:
        body = {
            "apiVersion": API_VERSION,
            "kind": "RLJob",
            "metadata": {
                "name": entry.name,
                "namespace": entry.namespace,
                "uid": entry.uid,
                "resourceVersion": str(entry.version),
            },
            "status": status,
        }
        path = f"{paths.job(entry.namespace, entry.name)}/status"
        written = await self._api.apply(path, body, manager)
        entry.version = int(written["metadata"]["resourceVersion"])
        self._proof.expect(entry.uid, entry.version)


def due(entry: JobEntry, result: Plan) -> str | None:
    """What makes a write due: the record, the phase, a condition, or figures alone."""
    if result.record != entry.record:
        return "record"
    if entry.status is None or result.status.phase != entry.status.phase:
        return "phase"
    if _turns(result.status) != _turns(entry.status):
        return "condition"
    if result.status != entry.status:
        return "figures"
    return None


def _turns(status: JobStatus) -> list[tuple[str, str, str]]:
    return sorted((c.type, c.status, c.reason) for c in status.conditions if c.type != INVALID)
