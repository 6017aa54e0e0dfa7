"""The work queue: keys of jobs that have to be looked at.

Invariants: a key is worked on by one worker at a time; however often it is added meanwhile, it is looked at
once more afterwards, never lost and never twice; a key that failed waits ever longer, alone. A key that was
looked at before goes ahead of new ones: its look is short, and somebody waits for it, while a new job has all its
objects made. Every fourth look is a new one's all the same; but new ones never have all workers.
"""

import asyncio
import heapq
import time
from collections import OrderedDict, deque
from collections.abc import Callable

FIRST_BACK_OFF = 0.05
LONGEST_BACK_OFF = 60.0
NEW_ONES_TURN = 4
NEW_AT_ONCE = 24
"""Of 32 workers. A new job holds one for seconds; a pod that failed meanwhile would wait for it."""


class WorkQueue:
    """Time is asked from `clock`, so that the whole of it can be tested without waiting."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ready: OrderedDict[str, float] = OrderedDict()
        """Key → since when it waits for a worker; of those that were looked at before."""
        self._new: OrderedDict[str, float] = OrderedDict()
        self._known: set[str] = set()
        self._taken = 0
        self._working: set[str] = set()
        self._first: set[str] = set()
        """Keys in work for the first time."""
        self._again: set[str] = set()
        self._later: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}
        """Key → its earliest time in `_later`; what else stands there is void."""
        self._failures: dict[str, int] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._alarm: tuple[float, asyncio.TimerHandle] | None = None
        """For the first time in `_later`."""
        self.finished_at = clock()
        """When a worker last took or ended a piece of work: the proof that work goes on."""

    def open(self) -> None:
        """Workers begin to take from it: until now nobody should have, so nobody has waited for them yet."""
        self.finished_at = now = self._clock()
        for line in (self._ready, self._new):
            line.update(dict.fromkeys(line, now))

    def __len__(self) -> int:
        return len(self._ready) + len(self._new)

    def newcomers(self) -> int:
        """Keys in line that nobody has looked at yet."""
        return len(self._new)

    def add(self, key: str) -> None:
        """The key has news: as soon as a worker is free."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._ready and key not in self._new:
            (self._ready if key in self._known else self._new)[key] = self._clock()
            self._wake_one()

    def add_at(self, key: str, when: float) -> None:
        """Not later than `when`, on the queue's clock."""
        due = self._due.get(key)
        if due is None or when < due:
            self._due[key] = when
            heapq.heappush(self._later, (when, key))
            self._set_alarm()

    def add_after(self, key: str, seconds: float) -> None:
        self.add_at(key, self._clock() + seconds)

    def retry(self, key: str) -> float:
        """The work failed: again after a pause that doubles. Gives the pause."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause = float(min(FIRST_BACK_OFF * 2 ** min(failures, 32), LONGEST_BACK_OFF))
        self.add_after(key, pause)
        return pause

    def succeeded(self, key: str) -> None:
        self._failures.pop(key, None)

    def forget(self, key: str) -> None:
        """The job is no more: nothing is due for it."""
        self._failures.pop(key, None)
        self._due.pop(key, None)
        self._again.discard(key)
        self._known.discard(key)

    def take(self) -> str | None:
        """The key that waited longest, now in work; None when nothing is due."""
        self._ripen()
        room = bool(self._new) and len(self._first) < NEW_AT_ONCE
        if not self._ready and not room:
            return None
        self._taken += 1
        new_ones = room and (not self._ready or self._taken % NEW_ONES_TURN == 0)
        key, _ = (self._new if new_ones else self._ready).popitem(last=False)
        if new_ones:
            self._first.add(key)
        self._working.add(key)
        self._known.add(key)
        self._due.pop(key, None)  # this look is the one that was due
        self.finished_at = self._clock()
        return key

    def done(self, key: str) -> None:
        self._working.discard(key)
        self._first.discard(key)
        self.finished_at = self._clock()
        if key in self._again:
            self._again.discard(key)
            self.add(key)
        elif self._new:
            self._wake_one()  # there may be room for a new one

    async def get(self) -> str:
        """Each key that is due wakes one of those who wait."""
        while True:
            key = self.take()
            if key is not None:
                return key
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            self._set_alarm()
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()  # the next one, in its place
                raise

    def oldest_wait(self) -> float:
        """Seconds that the first key in line has waited for a worker."""
        self._ripen()
        firsts = [next(iter(line.values())) for line in (self._ready, self._new) if line]
        return self._clock() - min(firsts) if firsts else 0.0

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _set_alarm(self) -> None:
        """Only while somebody waits: who takes a key looks at the clock itself."""
        if not self._later or not self._waiters:
            return
        when = self._later[0][0]
        if self._alarm is not None:
            if self._alarm[0] <= when:
                return
            self._alarm[1].cancel()
        loop = asyncio.get_running_loop()
        self._alarm = (when, loop.call_later(max(0.0, when - self._clock()), self._ring))

    def _ring(self) -> None:
        self._alarm = None
        self._ripen()
        self._set_alarm()

    def _ripen(self) -> None:
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            when, key = heapq.heappop(self._later)
            if self._due.get(key) == when:
                del self._due[key]
                self.add(key)
