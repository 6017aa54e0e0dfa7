"""Whose status is written next, where more jobs have news than may be written.

Invariants: a job stands in one line at most, and nobody in a line is forgotten; a turn is given when the bucket
has a token beyond those kept for writes that an act waits for; whatever its line, what is written then is the
newest. Who has arrived somewhere (it runs, it ended) goes before who is on its way, and figures come last. In a
crowd, or while new jobs wait to be looked at, who is on its way waits, the longer the more they are: most arrive
meanwhile, and one write tells all of it. Figures wait longer then, and not for ever.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from roll_operator.controller.cluster.bucket import TokenBucket

ARRIVED, ON_ITS_WAY, FIGURES = range(3)
"""The lines, the most urgent first."""

KEPT = (4, 8, 8)
"""Tokens that stay for others, by line."""

PATIENCE = (0.0, 8.0, 60.0)
"""Seconds that one stands in line at least; figures only while others are on their way."""
CROWD = 5.0
"""A larger crowd on its way waits a second for every so many."""


def status_bucket(rate: float) -> TokenBucket:
    """However few writes are allowed, it holds enough for everybody's turn to come."""
    return TokenBucket(rate, max(rate, max(KEPT) + 1))


class Turns:
    def __init__(
        self,
        bucket: TokenBucket,
        call: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`call` has the job looked at: its turn has come. `busy`: new jobs wait to be looked at."""
        self._bucket, self._call, self._clock, self._busy = bucket, call, clock, busy
        self._lines: tuple[OrderedDict[str, float], ...] = tuple(OrderedDict() for _ in KEPT)
        """Key → since when it stands there."""
        self._called: set[str] = set()
        self._somebody = asyncio.Event()

    def take(self, key: str, line: int) -> bool:
        """Whether the job may write now; otherwise it stands in line and is called."""
        if key in self._called:
            self._called.discard(key)
            return True
        ahead = any(self._lines[: line + 1])
        stands = ahead or (line == ON_ITS_WAY and self._busy())
        if not stands and self._bucket.spare(KEPT[line]):
            self.leave(key)
            return True
        for number, waiting in enumerate(self._lines):
            if key in waiting and number <= line:
                return False
            waiting.pop(key, None)
        self._lines[line][key] = self._clock()
        self._somebody.set()
        return False

    def leave(self, key: str) -> None:
        """Nothing is to be written any more."""
        self._called.discard(key)
        for waiting in self._lines:
            waiting.pop(key, None)
        self._somebody.set()  # the others wait for less now

    async def run(self) -> None:
        while True:
            self._somebody.clear()
            pause = self._call_next()
            try:
                async with asyncio.timeout(pause):
                    await self._somebody.wait()  # who comes may be more urgent
            except TimeoutError:
                continue

    def _call_next(self) -> float | None:
        """Seconds until somebody may be called; None: nobody waits."""
        now, soonest = self._clock(), None
        for line, waiting in enumerate(self._lines):
            if not waiting:
                continue
            key, since = next(iter(waiting.items()))
            pause = since + self._patience(line) - now
            if pause > 0:  # who is less urgent need not wait for that
                soonest = pause if soonest is None else min(pause, soonest)
                continue
            if not self._bucket.spare(KEPT[line]):
                return self._bucket.until(KEPT[line])
            del waiting[key]
            self._called.add(key)
            self._call(key)
            return 0.0
        return soonest

    def _patience(self, line: int) -> float:
        """As the lines are now: a crowd that has gone holds up nobody."""
        crowd = len(self._lines[ON_ITS_WAY])
        if line == ON_ITS_WAY:
            return max(PATIENCE[line], crowd / CROWD)
        return PATIENCE[line] if crowd else 0.0
