"""Lines to the jobs' schedulers: what they report, and what they were told about pods.

Invariants: only the word of the scheduler pod that runs now counts; a scheduler hears of every change of the
job's pods, of all of them again when it restarted, and now and then in any case. Calls are spread over time:
with many jobs each is asked less often, and less again while new jobs wait and all workers of this one are ready.
"""

import asyncio
import functools
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from roll_operator.controller.cluster import metrics
from roll_operator.controller.cluster.queue import WorkQueue
from roll_operator.controller.link import SchedulerLink
from roll_operator.plan import Pod, Progress

POLL_SECONDS = 2.0
POLLS_PER_SECOND = 50.0
"""Over all jobs."""
BUSY_POLLS_PER_SECOND = 10.0
"""Of those that are ready, while new jobs wait; but each of them every `REPEAT_SECONDS`."""
SHOW_SECONDS = 10.0
SHOWS_PER_SECOND = 20.0
"""New figures of a job are passed on this often, and of all jobs not more than can be written."""
REPEAT_SECONDS = 60.0
"""A scheduler is told again after this time, though nothing changed."""
PATIENCE = 3
"""Calls in a row that may fail before the last report counts no more."""
PORT = 7070
CALLERS = 16

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a job's scheduler is, and what it has to know."""

    job_uid: str
    scheduler: str
    """Uid of its pod, with the count of its restarts in place."""
    ip: str
    name: str
    """The name in its certificate."""
    bundle: bytes
    """Certificates to trust."""
    current: tuple[Pod, ...]
    gone: tuple[str, ...]

    def news(self) -> tuple[object, ...]:
        return (self.scheduler, *sorted(pod.uid for pod in self.current), "", *self.gone)


@dataclass(slots=True)
class _Line:
    target: Target
    link: SchedulerLink
    told: tuple[object, ...] = ()
    told_gone: frozenset[str] = frozenset()
    told_at: float = 0.0
    failures: int = 0
    asked: int = 0
    heard: int = 0
    """The question that `progress` answers: a slow answer does not replace one to a later question."""
    progress: Progress | None = None

    async def ask(self) -> Progress | None:
        self.asked += 1
        question = self.asked
        answer = await self.link.progress()
        if answer is not None and question > self.heard:
            self.heard, self.progress = question, answer
        return answer

    decisive: tuple[object, ...] = ()
    shown: Progress | None = None
    shown_at: float = 0.0


class LinkPool:
    """`changed` is called when a scheduler's word may change the plan."""

    def __init__(
        self,
        changed: Callable[[str], None],
        token: Callable[[str], Awaitable[str]] | None,
        term: Callable[[], int],
        clock: Callable[[], float],
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`token`: what the scheduler of the job with this uid is shown; None: lines are plain text, and a scheduler
        that verifies its callers does not answer. `busy`: new jobs wait."""
        self._changed, self._term, self._clock, self._busy = changed, term, clock, busy
        self._token = token
        self._lines: dict[str, _Line] = {}
        self._queue = WorkQueue(clock)
        self._closing: set[asyncio.Task[None]] = set()

    def progress(self, key: str) -> Progress | None:
        line = self._lines.get(key)
        return line.progress if line else None

    async def last_word(self, key: str) -> Progress | None:
        """What the scheduler says when it is asked now, and what it is known to have said from then on; None: nothing."""
        line = self._lines.get(key)
        return await line.ask() if line else None

    def acknowledged(self, key: str) -> frozenset[str]:
        """Uids that the scheduler knows to be gone."""
        line = self._lines.get(key)
        return line.told_gone if line else frozenset()

    def point(self, key: str, target: Target | None) -> None:
        """None: no scheduler of the job runs."""
        line = self._lines.get(key)
        if target is None:
            if line is not None:
                self._drop(key, line)
            return
        if line is not None and _same_line(line.target, target):
            line.target = target
            if target.news() != line.told:
                self._queue.add(key)
            return
        if line is not None:
            self._drop(key, line)
        self._lines[key] = _Line(target, self._dial(target))
        self._queue.add(key)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as callers:
            for _ in range(CALLERS):
                callers.create_task(self._call_for_ever())

    async def close(self) -> None:
        for key, line in list(self._lines.items()):
            self._drop(key, line)
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _call_for_ever(self) -> None:
        while True:
            key = await self._queue.get()
            line = self._lines.get(key)
            try:
                if line is not None:
                    await self._call(key, line)
            finally:
                self._queue.done(key)

    async def _call(self, key: str, line: _Line) -> None:
        answered = await self._tell(line)
        progress = await line.ask() if answered else None
        if self._lines.get(key) is not line:
            return  # another scheduler runs by now
        _count("GetProgress", progress is not None)
        line.failures = 0 if progress is not None else line.failures + 1
        if progress is None:
            line.told = ()  # it may have restarted: tell it everything again
        if line.failures >= PATIENCE:
            line.progress = None
        decisive = (_decisive(line.progress), line.told_gone)
        if decisive != line.decisive or self._shows(line):
            line.decisive, line.shown, line.shown_at = decisive, line.progress, self._clock()
            self._changed(key)
        spread = max(POLL_SECONDS, len(self._lines) / POLLS_PER_SECOND)
        if self._busy() and _settled(line):
            spread = max(spread, min(len(self._lines) / BUSY_POLLS_PER_SECOND, REPEAT_SECONDS))
        self._queue.add_after(key, spread * random.uniform(0.8, 1.2))

    def _shows(self, line: _Line) -> bool:
        often = max(SHOW_SECONDS, len(self._lines) / SHOWS_PER_SECOND)
        news = _figures(line.progress) != _figures(line.shown)
        return news and self._clock() >= line.shown_at + often

    async def _tell(self, line: _Line) -> bool:
        target, now = line.target, self._clock()
        if target.news() == line.told and now < line.told_at + REPEAT_SECONDS:
            return True
        told = await line.link.sync(target.job_uid, target.current, target.gone, self._term())
        _count("SyncPods", told)
        if told:
            line.told, line.told_at = target.news(), now
            line.told_gone = frozenset(target.gone)
        return told

    def _dial(self, target: Target) -> SchedulerLink:
        address = f"[{target.ip}]:{PORT}" if ":" in target.ip else f"{target.ip}:{PORT}"
        if self._token is None:
            return SchedulerLink(address)
        token = functools.partial(self._token, target.job_uid)
        return SchedulerLink(address, target.bundle, target.name, token)

    def _drop(self, key: str, line: _Line) -> None:
        del self._lines[key]
        self._queue.forget(key)
        task = asyncio.create_task(line.link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _same_line(a: Target, b: Target) -> bool:
    return (a.job_uid, a.scheduler, a.ip, a.bundle) == (b.job_uid, b.scheduler, b.ip, b.bundle)


def _settled(line: _Line) -> bool:
    known = line.progress
    return known is not None and all(pod.uid in known.ready for pod in line.target.current)


def _decisive(progress: Progress | None) -> tuple[object, ...]:
    """What of a report may change the plan at once; figures wait for the next look."""
    if progress is None:
        return ()
    return (progress.finished, progress.error, progress.ready, progress.lineage)


def _figures(progress: Progress | None) -> Progress | None:
    """What of a report is shown: ages, which differ in every one of them, are not."""
    return None if progress is None else replace(progress, last_progress_at=0.0, held=None)


def _count(call: str, answered: bool) -> None:
    metrics.SCHEDULER_CALLS.labels(call, "answered" if answered else "failed").inc()
