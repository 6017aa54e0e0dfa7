"""What user code did wrong, in the worker's log, without flooding it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from roll_wire.session_pb2 import Unit

EVERY_SECONDS = 10.0


class Complaints:
    """The first is told at once, then at most one in ten seconds, with how many were left out."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._next = float("-inf")
        self._left_out = 0

    def tell(self, unit: Unit, message: str) -> None:
        now = self._clock()
        if now < self._next:
            self._left_out += 1
            return
        self._next = now + EVERY_SECONDS
        more = f" (and {self._left_out} more failures before it)" if self._left_out else ""
        self._left_out = 0
        name = f"group {unit.group}" if unit.index < 0 else f"sample {unit.group}.{unit.index}"
        self._log.warning("%s: %s%s", name, message, more)
