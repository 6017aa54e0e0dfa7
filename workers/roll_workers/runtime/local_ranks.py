"""The ranks of one pod: one process for each of its GPUs, that live and die together.

Invariants:
- the pod ends when all its ranks have ended, with the exit code of the first that failed, or of the one whose user's
  error made it fail: the others are killed then, because ranks without one of them train nothing;
- a signal to the pod reaches every rank, also one that has just begun: all drain together;
- no rank outlives the process that started it.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import signal
import time
from collections.abc import Iterable

from roll_workers.runtime.config import WorkerConfig

log = logging.getLogger(__name__)

_PASSED_ON = {signal.SIGTERM, signal.SIGINT}
_AWAITED = _PASSED_ON | {signal.SIGCHLD}
_PR_SET_PDEATHSIG = 1
_BAD_INPUT = 2
_LAST_WORDS_SECONDS = 3.0
"""A rank that leaves for a user's error cuts its connections first, and others crash before its own end is seen."""


def split(config: WorkerConfig) -> int | None:
    """Becomes the ranks of this pod: returns None in each of them, and the exit code of all where they began.

    Forks: nothing that starts threads may have been imported yet.
    """
    parent, ranks = os.getpid(), dict[int, int]()
    # Until each is waited for by name, here and in the ranks: no signal is lost in between.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    for local in range(config.local_world):
        pid = os.fork()
        if pid == 0:
            _end_with(parent)
            os.environ |= environment(config, local)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return None
        ranks[pid] = config.rank + local
    return _wait(ranks)


def environment(config: WorkerConfig, local: int) -> dict[str, str]:
    """What a rank is told beyond its pod; the pod's own ports are the first one's."""
    own = {"RANK": str(config.rank + local), "LOCAL_RANK": str(local)}
    return own if local == 0 else own | {"ROLL_PORT": "0", "ROLL_METRICS_PORT": ""}


def _end_with(parent: int) -> None:
    """The kernel kills this process when its parent ends, in whatever way."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the promise was made
        os._exit(1)


def _wait(ranks: dict[int, int]) -> int:
    """Passes signals on until no rank (pid -> rank) is left."""
    decisive, deadline = 0, math.inf
    while ranks:
        # The kernel's clock has no infinity; an hour on, this only looks again.
        told = signal.sigtimedwait(_AWAITED, min(max(0.0, deadline - time.monotonic()), 3600.0))
        if told is not None and told.si_signo in _PASSED_ON:
            _send(ranks, signal.Signals(told.si_signo))
        # One SIGCHLD may stand for several ends, and for those of orphans that were handed to this process.
        while ranks and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            rank = ranks.pop(ended[0], None)
            code = os.waitstatus_to_exitcode(ended[1])
            if rank is None or code == 0:
                continue
            if code == _BAD_INPUT:
                decisive, deadline = code, 0.0
            elif not decisive:
                if code < 0:
                    log.error("rank %d was ended by %s", rank, signal.Signals(-code).name)
                decisive = code if code > 0 else 128 - code
                deadline = time.monotonic() + _LAST_WORDS_SECONDS
        if time.monotonic() >= deadline:
            _send(ranks, signal.SIGKILL)
            deadline = math.inf
    return decisive


def _send(ranks: Iterable[int], number: signal.Signals) -> None:
    """Nobody else waits for these processes, so that their ids are still their own."""
    for pid in ranks:
        os.kill(pid, number)
