"""Runs one job on this machine: observe, plan, write the record, act; until the plan is done.

Invariants: the record of a plan is on disk before its first action; the scheduler hears of a dead process
at once, and again whenever it was away; nothing is decided here.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from roll_api import JobStatus, RLJob

from roll_operator.backends.local import LocalBackend
from roll_operator.controller.folder import RunFolder
from roll_operator.controller.link import SchedulerLink
from roll_operator.controller.state import Clock, State
from roll_operator.plan import (
    FailJob,
    Observed,
    Plan,
    Pod,
    PodPhase,
    Process,
    Progress,
    Record,
    RemovePod,
    Restarted,
    Site,
    StartPod,
    StopPod,
    desired_pods,
    doubtful,
    plan,
    processes,
)
from roll_operator.plan.desired import uid_of
from roll_operator.plan.model import SCHEDULER

POLL_SECONDS = 0.5
EARLY_SECONDS = 0.1
"""Until the first validation is seen: a quick job's ledger soon prunes what was said in it."""
RETRY_SECONDS = 0.2
SAVE_SECONDS = 2.0
"""Figures are written this often; a change of the record or of a process is written at once."""

REMEMBERED_ATTEMPTS = 8
"""A process of an older attempt cannot be alive: its guard ended it before this attempt began."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a view shows."""

    job: RLJob
    status: JobStatus
    progress: Progress | None
    processes: Sequence[Process]
    record: Record
    stopping: bool
    seconds: float
    """Since this run began, of perhaps several of the job."""


Watcher = Callable[[Snapshot, Sequence[FailJob | Restarted]], None]


@dataclass(slots=True)
class LocalRun:
    job: RLJob
    folder: RunFolder
    site: Site
    backend: LocalBackend
    link: SchedulerLink
    watch: Watcher
    state: State
    progress: Progress | None = None
    progress_from: str = ""
    """Uid of the scheduler that said so: the words of a dead one tell nothing about now."""
    suspend: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _poll_now: asyncio.Event = field(default_factory=asyncio.Event)
    _sync_now: asyncio.Event = field(default_factory=asyncio.Event)
    _saved_at: float = 0.0
    _saved: tuple[object, ...] = ()
    _seen: set[str] = field(default_factory=set)

    async def run(self) -> Snapshot:
        """Returns when the job ended, or was stopped, and no process is left."""
        helpers = [asyncio.create_task(self._poll()), asyncio.create_task(self._sync())]
        try:
            while True:
                self._wake.clear()
                self.backend.changed.clear()
                await self._ask_again()
                result = self._plan()
                snapshot = self._snapshot(result)
                self._save(result, snapshot)
                self.watch(
                    snapshot, [a for a in result.actions if isinstance(a, FailJob | Restarted)]
                )
                await self._act(result)
                if result.done:
                    return snapshot
                await self._wait(result.wake_at, helpers)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    def stop(self) -> None:
        """Ctrl-C: everything is asked to end and may be continued later; again: it is killed."""
        if self.suspend:
            self.backend.kill_all()
        self.suspend = True
        self._wake.set()

    async def _ask_again(self) -> None:
        observed, asked = self._observed(), self._scheduler()
        if doubtful(observed.pods, observed.progress):
            answer = await self.link.progress()
            if answer is not None and asked == self._scheduler():
                self.progress = answer

    def _plan(self) -> Plan:
        observed = self._observed()
        return plan(self.job, observed, time.time(), self.site)

    def _observed(self) -> Observed:
        return Observed(
            pods=self.backend.pods(),
            record=self.state.record,
            progress=self.progress if self.progress_from == self._scheduler() else None,
            suspend=self.suspend,
            status=self.state.status,
        )

    def _snapshot(self, result: Plan) -> Snapshot:
        self.state.clock.tick(time.time(), training=result.record.was_running)
        self.state.remember(self._observed().progress, self.folder)
        shown = processes(self.job, self._observed(), result.record)
        return Snapshot(
            self.job,
            result.status,
            self.state.last_progress,
            shown,
            result.record,
            self.suspend,
            self.state.clock.total - self.state.clock.earlier,
        )

    def _save(self, result: Plan, snapshot: Snapshot) -> None:
        decisive = (
            result.record,
            result.status.phase,
            result.status.conditions,
            snapshot.processes,
        )
        self.state.record, self.state.status = result.record, result.status
        due = time.monotonic() >= self._saved_at + SAVE_SECONDS
        if decisive == self._saved and not due:
            return
        self.state.save(self.folder, self.job, snapshot.processes)
        self._saved, self._saved_at = decisive, time.monotonic()

    async def _act(self, result: Plan) -> None:
        for action in result.actions:
            match action:
                case StartPod():
                    await self.backend.start(action)
                case StopPod():
                    await self.backend.stop(action.uid, action.grace)
                case RemovePod():
                    await self.backend.remove(action.uid)
        self._sync_now.set()

    async def _wait(self, wake_at: float | None, helpers: Sequence[asyncio.Task[None]]) -> None:
        timeout = None if wake_at is None else max(0.0, wake_at - time.time())
        waits = [
            asyncio.create_task(self._wake.wait()),
            asyncio.create_task(self.backend.changed.wait()),
        ]
        try:
            done, _ = await asyncio.wait(
                [*waits, *helpers], timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for wait in waits:
                wait.cancel()
        for helper in helpers:
            if helper in done:
                helper.result()
        if self.backend.changed.is_set():
            self._poll_now.set()
            self._sync_now.set()

    async def _poll(self) -> None:
        while True:
            self._poll_now.clear()
            asked = self._scheduler()
            answer = await self.link.progress() if asked else None
            if asked == self._scheduler():
                self.progress, self.progress_from = answer, asked
            self._wake.set()
            early = self.state.first_answers is None and answer is not None and self._validates()
            await _within(EARLY_SECONDS if early else POLL_SECONDS, self._poll_now)

    def _validates(self) -> bool:
        data, world = self.job.spec.data, self.job.spec.environment
        return bool((data and data.validation) or (world and world.validation))

    async def _sync(self) -> None:
        """Tells the scheduler who is there and who is gone, whenever that or the scheduler changed."""
        told: tuple[object, ...] = ()
        while True:
            self._sync_now.clear()
            scheduler = self._scheduler()
            current = [p for p in self.backend.pods() if p.role != SCHEDULER and _lives(p)]
            gone = self._gone({p.uid for p in current})
            news = (scheduler, *sorted(p.uid for p in current), *gone)
            if not scheduler or news == told:
                await self._sync_now.wait()
            elif await self.link.sync(self.site.job_uid, current, gone):
                told = news
            else:
                await _within(RETRY_SECONDS, self._sync_now)

    def _scheduler(self) -> str:
        """Uid of the scheduler that runs, or nothing."""
        return next((p.uid for p in self.backend.pods() if p.role == SCHEDULER and _lives(p)), "")

    def _gone(self, current: set[str]) -> list[str]:
        """Uids of earlier attempts can be computed, so none is forgotten when this process restarts."""
        self._seen.update(pod.uid for pod in self.backend.pods())
        gone = set(self._seen)
        for place in desired_pods(self.job):
            attempt = self.state.record.scope(place.scope).attempt
            for older in range(max(0, attempt - REMEMBERED_ATTEMPTS), attempt):
                gone.add(uid_of(self.site.job_uid, place.name, older))
        return sorted(gone - current)


async def _within(seconds: float, event: asyncio.Event) -> None:
    """Not `wait_for`: until Python 3.12 it loses a cancellation that comes together with the event."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _lives(pod: Pod) -> bool:
    return pod.phase is not PodPhase.EXITED


__all__ = ["Clock", "LocalRun", "Snapshot"]
