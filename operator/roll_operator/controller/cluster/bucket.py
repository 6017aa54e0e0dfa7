"""A token bucket: at most `rate` calls a second in the long run, `burst` at once.

A taker is told how long to wait and its token is gone at once, so takers go in the order in which they came.
"""

import asyncio
import time
from collections.abc import Callable


class TokenBucket:
    def __init__(
        self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._tokens = burst
        self._at = clock()

    def reserve(self) -> float:
        """Takes a token; the seconds until it may be used."""
        self._refill()
        self._tokens -= 1
        return max(0.0, -self._tokens / self._rate)

    def spare(self, keep: float) -> bool:
        """Takes a token only if `keep` stay for those who cannot wait."""
        self._refill()
        if self._tokens < keep + 1:
            return False
        self._tokens -= 1
        return True

    def until(self, keep: float) -> float:
        """Seconds after which `spare` may succeed."""
        self._refill()
        return max(0.0, (keep + 1 - self._tokens) / self._rate)

    def pause(self, seconds: float) -> None:
        """Nothing for a while: the other side asked for it."""
        self._refill()
        self._tokens = min(self._tokens, -seconds * self._rate)

    async def take(self) -> None:
        wait = self.reserve()
        if wait > 0:
            await asyncio.sleep(wait)

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
