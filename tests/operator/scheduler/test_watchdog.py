"""A scheduler that stands still ends by itself; one that was only stopped for a while does not."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from roll_wire import control_pb2
from support.scheduler_process import SECONDS, Peer, Scheduler

HUNG_SECONDS = 3.0
HANGS = f"""
import sys, time
from pathlib import Path
from roll_operator.scheduler import __main__, core, watchdog
from roll_operator.scheduler.ledger import SqliteLedger

what, hangs = sys.argv[1], Path(sys.argv[2])
owner = {{"open": SqliteLedger, "finish": SqliteLedger, "tick": core}}[what]
does, usual = getattr(owner, what), watchdog.TICK_SECONDS

def does_not_return(*args):
    while hangs.exists():
        watchdog.TICK_SECONDS = {HUNG_SECONDS} / watchdog.STILL_TICKS
        time.sleep(0.01)
    watchdog.TICK_SECONDS = usual
    return does(*args)

setattr(owner, what, does_not_return)
sys.exit(__main__.main())
"""
"""The real scheduler with one function that can be made to hang, and a shorter minute while that hangs: at all other
times a slow disk has the whole minute."""

STOPPED_SECONDS = 12.0
STOPPED = f"""
import sys
from roll_operator.scheduler import __main__, watchdog

watchdog.TICK_SECONDS = {STOPPED_SECONDS} / watchdog.STILL_TICKS
sys.exit(__main__.main())
"""
"""The real scheduler with a minute that a test can wait for and a slow machine does not use up."""


@pytest.fixture
def hangs(tmp_path: Path) -> Path:
    return tmp_path / "hangs"


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Scheduler]:
    scheduler = Scheduler(tmp_path)
    yield scheduler
    scheduler.close()


@pytest.mark.parametrize("what", ["finish", "tick"], ids=["the disk", "the event loop"])
def test_a_scheduler_whose_pump_is_blocked_ends_with_one_line_and_the_next_one_goes_on(
    scheduler: Scheduler, hangs: Path, what: str
) -> None:
    scheduler.command = ("-c", HANGS, what, str(hangs))
    scheduler.start()
    assert scheduler.process is not None and scheduler.process.stderr is not None
    hangs.touch()
    Peer(scheduler, "trainer")  # whose term has to be written down
    assert scheduler.process.wait(SECONDS) == 1
    last = scheduler.process.stderr.read().strip().splitlines()[-1]
    assert last.startswith("error: the scheduler has stood still for 3 s")
    hangs.unlink()
    scheduler.start()
    Peer(scheduler, "trainer").expect("welcome")


def test_a_scheduler_that_was_stopped_for_longer_goes_on(scheduler: Scheduler) -> None:
    scheduler.command = ("-c", STOPPED)
    scheduler.start()
    assert scheduler.process is not None
    scheduler.process.send_signal(signal.SIGSTOP)
    time.sleep(STOPPED_SECONDS + 0.5)
    scheduler.process.send_signal(signal.SIGCONT)
    assert scheduler.control.GetProgress(control_pb2.ProgressRequest(), timeout=SECONDS)
    with pytest.raises(TimeoutError):
        _ends_within(scheduler, 1.0)


def test_a_ledger_that_takes_long_to_open_is_waited_for(scheduler: Scheduler, hangs: Path) -> None:
    scheduler.command = ("-c", HANGS, "open", str(hangs))
    hangs.touch()
    scheduler.launch()
    with pytest.raises(TimeoutError):
        _ends_within(scheduler, HUNG_SECONDS + 1)
    hangs.unlink()
    Peer(scheduler, "trainer").expect("welcome")


def _ends_within(scheduler: Scheduler, seconds: float) -> int:
    assert scheduler.process is not None
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (code := scheduler.process.poll()) is not None:
            return code
        time.sleep(0.05)
    raise TimeoutError
