"""Leaves nothing behind: ends every process that carries a run's mark in its environment.

The environment is inherited by every descendant, whatever process group or session it moved to, so the mark
finds what a process group cannot. Run as a file (`python -I -S sweep.py MARK`) it is the run's last guard: it
waits for the end of its standard input, which comes when `roll run` ends in any way, SIGKILL included.
"""

import os
import signal
import sys
import time

MARK = "ROLL_RUN_MARK"
POLL_SECONDS = 0.02
LIMIT_SECONDS = 10.0


def marked(mark: str, variable: str = MARK) -> list[int]:
    """Live processes that have this value in their environment, without this one."""
    wanted = f"{variable}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as environ:
                if wanted in environ.read().split(b"\0"):
                    found.append(int(entry))
        except OSError:  # it ended meanwhile, or belongs to somebody else
            continue
    return found


def sweep(mark: str) -> int:
    """Kills until none is left; returns how many there were. A zombie has no environment and is no concern."""
    killed: set[int] = set()
    deadline = time.monotonic() + LIMIT_SECONDS
    while left := marked(mark):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    return len(killed)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    sweep(sys.argv[1])


if __name__ == "__main__":
    main()
