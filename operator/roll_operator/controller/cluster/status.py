"""When a status is written: at once if an act waits for it, otherwise when it is the job's turn.

Invariants: what a record counts is on the cluster before any act that follows from it; a write names the version
that the plan was made from, so that a plan made from an old view, or by an operator that leads no more, changes
nothing. What waits for its turn, or could not be written, is not lost: the next plan starts from it, and what is to
be announced with it waits on the job's entry.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from roll_api import API_VERSION, JobStatus

from roll_operator.controller.cluster import metrics, paths
from roll_operator.controller.cluster.api import Api
from roll_operator.controller.cluster.bucket import TokenBucket
from roll_operator.controller.cluster.proof import WatchProof
from roll_operator.controller.cluster.reading import INVALID
from roll_operator.controller.cluster.store import JobEntry
from roll_operator.controller.cluster.turns import ARRIVED, FIGURES, ON_ITS_WAY, Turns
from roll_operator.plan import Announce, Phase, Plan, Record, Restarted
from roll_operator.plan.model import Scope
from roll_operator.plan.record import write_record
from roll_operator.plan.status import timestamp

FIGURES_SECONDS = 10.0
"""Figures alone are written this often at most."""
MANAGER = "roll-operator"
JUDGE = "roll-operator-validation"
"""Owns the condition of a job that cannot be read or looked at, and nothing else of the status."""
WAYS = (Phase.PENDING, Phase.STARTING)


class StatusWriter:
    def __init__(
        self,
        api: Api,
        bucket: TokenBucket,
        proof: WatchProof,
        call: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`call` has a job looked at whose turn has come; `busy`: new jobs wait to be looked at."""
        self._api, self._bucket, self._proof, self._clock = api, bucket, proof, clock
        self.turns = Turns(bucket, call, busy=busy)

    async def before_acts(self, entry: JobEntry, result: Plan, *, at_once: bool = False) -> None:
        """Writes what the plan's acts wait for. Raises what `Api.apply` raises.

        `at_once`: nobody will tell these figures again.
        """
        why = due(entry, result)
        entry.ahead = (result.status, result.record) if why else None
        entry.untold += [a for a in result.actions if isinstance(a, Announce | Restarted)]
        if why is not None and (at_once or binding(entry.record, result.record)):
            await self._bucket.take()
            await self._write(entry, result, why)

    async def after_acts(self, entry: JobEntry, result: Plan, *, newest: bool) -> float | None:
        """Writes what is due and has its turn; else the seconds after which figures will be due.

        `newest`: nothing has happened since the plan; otherwise the next look, which is due, knows more.
        """
        why = due(entry, result)
        if why is None:
            self.turns.leave(entry.key)
        if why is None or not newest:
            return None
        if why == "figures":
            wait = entry.written_at + FIGURES_SECONDS - self._clock()
            if entry.written_at and wait > 0:
                return wait
        if self.turns.take(entry.key, _line(why, result)):
            await self._write(entry, result, why)
        return None

    async def say_invalid(self, entry: JobEntry, problem: str, reason: str, now: float) -> None:
        """Sets the condition `Invalid` to what holds now, whatever else the status says. No problem: it is false."""
        condition = {
            "type": INVALID,
            "status": "True" if problem else "False",
            "reason": reason if problem else "Read",
            "message": problem,
            "lastTransitionTime": timestamp(now),
            "observedGeneration": entry.generation,
        }
        await self._bucket.take()
        metrics.STATUS_WRITES.labels("invalid").inc()
        await self._apply(entry, {"conditions": [condition]}, JUDGE)
        entry.invalid = problem

    async def _write(self, entry: JobEntry, result: Plan, why: str) -> None:
        metrics.STATUS_WRITES.labels(why).inc()
        status = result.status.model_dump(mode="json", by_alias=True, exclude_none=True)
        status["record"] = write_record(result.record)
        await self._apply(entry, status, MANAGER)
        entry.status, entry.record, entry.ahead = result.status, result.record, None
        entry.written_at = self._clock()

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
        version = int(written["metadata"]["resourceVersion"])
        if (
            version > entry.version
        ):  # an apply that changes nothing is no news, and no watch tells of it
            entry.version = version
            self._proof.expect(entry.uid, version)


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


def binding(written: Record, planned: Record) -> bool:
    """Whether acts have to wait for the record: it holds what cannot be told from the cluster again."""
    if written == Record():  # of a job that nobody touched yet, everything can
        written = replace(written, spec_hash=planned.spec_hash, restart_id=planned.restart_id)
    return _counted(written) != _counted(planned)


def _counted(record: Record) -> Record:
    """Without what the next operator would find out by itself: which pods are there, what they run and since when."""
    scopes = {key: replace(scope, started={}) for key, scope in record.scopes.items()}
    return replace(
        record,
        scopes={key: scope for key, scope in scopes.items() if scope != Scope()},
        scheduler_image="",
        worker_image="",
        started_at=0.0,
        ready_since=0.0,
        was_running=False,
    )


def _line(why: str, result: Plan) -> int:
    if why == "figures":
        return FIGURES
    return ON_ITS_WAY if result.status.phase in WAYS else ARRIVED


def _turns(status: JobStatus) -> list[tuple[str, str, str]]:
    return sorted((c.type, c.status, c.reason) for c in status.conditions)
