"""Whose status is written next, where more jobs have news than may be written.

Invariants: a job stands in one line at most, and nobody in a line is forgotten; a turn is given when the bucket
has a token beyond those kept for writes that an act waits for; whatever its line, what is written then is the
newest. Who has arrived somewhere (it runs, it ended) goes before who is on its way, and figures come last.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from roll_operator.controller.cluster.bucket import TokenBucket

ARRIVED, ON_ITS_WAY, FIGURES = range(3)
"""The lines, the most urgent first."""

KEPT = (4, 4, 8)
"""Tokens that stay for others, by line."""


def status_bucket(rate: float) -> TokenBucket:
    """However few writes are allowed, it holds enough for everybody's turn to come."""
    return TokenBucket(rate, max(rate, max(KEPT) + 1))


class Turns:
    def __init__(self, bucket: TokenBucket, call: Callable[[str], None]) -> None:
        """`call` has the job looked at: its turn has come."""
        self._bucket, self._call = bucket, call
        self._lines: tuple[OrderedDict[str, None], ...] = tuple(OrderedDict() for _ in KEPT)
        self._called: set[str] = set()
        self._somebody = asyncio.Event()

    def take(self, key: str, line: int) -> bool:
        """Whether the job may write now; otherwise it stands in line and is called."""
        if key in self._called:
            self._called.discard(key)
            return True
        ahead = any(self._lines[: line + 1])
        if not ahead and self._bucket.spare(KEPT[line]):
            self.leave(key)
            return True
        for number, waiting in enumerate(self._lines):
            if key in waiting and number <= line:
                return False
            waiting.pop(key, None)
        self._lines[line][key] = None
        self._somebody.set()
        return False

    def leave(self, key: str) -> None:
        """Nothing is to be written any more."""
        self._called.discard(key)
        for waiting in self._lines:
            waiting.pop(key, None)

    async def run(self) -> None:
        while True:
            await self._somebody.wait()
            line = next((n for n, waiting in enumerate(self._lines) if waiting), None)
            if line is None:
                self._somebody.clear()
            elif self._bucket.spare(KEPT[line]):
                key, _ = self._lines[line].popitem(last=False)
                self._called.add(key)
                self._call(key)
            else:
                await asyncio.sleep(self._bucket.until(KEPT[line]))
