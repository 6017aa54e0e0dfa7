"""Ends a scheduler that stands still, so that whoever started it starts it again.

That its port is open says nothing: the kernel takes connections for a process whose event loop is blocked, or whose
disk does not answer, for as long as it exists.

Invariant: the process ends only if the pump did not turn while this thread woke up STILL_TICKS times in a row. Ticks are
counted, not time: who was stopped by a signal, or slept with the whole machine, has missed as many ticks as turns.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable

TICK_SECONDS = 1.0
STILL_TICKS = 60
"""The pump turns twice a second. A ledger that is opened, which may take minutes, has no pump yet."""

LAST_WORDS_SECONDS = 5.0


def watch(turns: Callable[[], int]) -> None:
    """Compares the number of turns from now on, until the process ends."""
    threading.Thread(target=_watch, args=(turns,), name="watchdog", daemon=True).start()


def _watch(turns: Callable[[], int]) -> None:
    seen, still = turns(), 0
    while still < STILL_TICKS:
        time.sleep(TICK_SECONDS)
        now = turns()
        seen, still = now, still + 1 if now == seen else 0
    # A stderr that nobody reads may be what blocks the process: nobody waits long for it.
    words = threading.Thread(target=_last_words, daemon=True)
    words.start()
    words.join(LAST_WORDS_SECONDS)
    os._exit(1)


def _last_words() -> None:
    """Where each thread stands; then, as the last line, what a user has to know."""
    faulthandler.dump_traceback(all_threads=True)
    print(
        f"error: the scheduler has stood still for {STILL_TICKS * TICK_SECONDS:.0f} s, by a disk that does not "
        "answer or a defect: it ends, to be started again. Nothing that was acknowledged is lost",
        file=sys.stderr,
        flush=True,
    )
