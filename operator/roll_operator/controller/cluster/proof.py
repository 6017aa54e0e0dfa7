"""Proof that the watches live: what this operator writes has to come back as a watch event.

A watch that fell silent looks like a cluster in which nothing happens; but own writes are known to have happened.
"""

import time
from collections import OrderedDict
from collections.abc import Callable


class WatchProof:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._expected: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Uid → version that was written, and when; the oldest first."""
        self._newest: OrderedDict[str, int] = OrderedDict()
        """Uid → version of events that came before the answer to the write that caused them."""
        self.seen_at = clock()

    def expect(self, uid: str, version: int) -> None:
        if self._newest.get(uid, -1) >= version:
            return
        _, since = self._expected.get(uid, (0, self._clock()))
        self._expected[uid] = (version, since)

    def seen(self, uid: str, version: int) -> None:
        self.seen_at = self._clock()
        expected = self._expected.get(uid)
        if expected is not None and version >= expected[0]:
            del self._expected[uid]
        self._newest[uid] = version
        self._newest.move_to_end(uid)
        while len(self._newest) > 1000:
            self._newest.popitem(last=False)

    def gone(self, uid: str) -> None:
        """A list told that the object was deleted: no event will tell of it any more."""
        self._expected.pop(uid, None)

    def overdue(self) -> float:
        """Seconds for which the oldest own write has not come back."""
        if not self._expected:
            return 0.0
        return self._clock() - min(since for _, since in self._expected.values())
