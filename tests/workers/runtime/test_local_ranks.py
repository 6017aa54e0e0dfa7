"""A pod of several ranks: as many processes as it has GPUs, that end together. (What trains is tested with the trainer.)"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from roll_workers.runtime.local_ranks import environment
from scheduler import TIMEOUT, config_for

SPLIT = """
import os, signal, sys, time
from pathlib import Path
from roll_workers.runtime.config import WorkerConfig
from roll_workers.runtime.local_ranks import split

def leave(number, frame):
    Path(f"told-{os.environ['LOCAL_RANK']}").touch()
    sys.exit(0)

signal.signal(signal.SIGTERM, leave)
where = Path()
config = WorkerConfig("j", "u", "trainer", 1, "p", "p", 0, "s", where, where, where, rank=4, local_world=3)
code = split(config)
if code is not None:
    sys.exit(code)
rank = os.environ["RANK"]
Path(f".{rank}").write_text(str(os.getpid()))
Path(f".{rank}").rename(f"pid-{rank}")
"""
WAIT = "time.sleep(600)"


def start(folder: Path, then: str) -> subprocess.Popen[str]:
    program = [sys.executable, "-c", SPLIT + then]
    return subprocess.Popen(program, cwd=folder, stderr=subprocess.PIPE, text=True)


def pids(folder: Path) -> list[int]:
    """Of the ranks 4, 5 and 6, once they are there."""
    files = [folder / f"pid-{rank}" for rank in (4, 5, 6)]
    until(lambda: all(file.exists() for file in files))
    return [int(file.read_text()) for file in files]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = start(tmp_path, WAIT)
    yield process
    process.kill()
    process.communicate()


def test_the_pod_ends_well_when_all_ranks_have(tmp_path: Path) -> None:
    process = start(tmp_path, "")
    process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0
    assert len({*pids(tmp_path), process.pid}) == 4


@pytest.mark.parametrize(
    ("how", "code"), [("sys.exit(2)", 2), ("os.kill(os.getpid(), signal.SIGKILL)", 137)]
)
def test_a_rank_that_fails_ends_the_others_and_gives_its_exit_code(
    tmp_path: Path, how: str, code: int
) -> None:
    others = "Path('pid-4').exists() and Path('pid-6').exists()"
    fails = f"if rank == '5':\n    while not ({others}): time.sleep(0.01)\n    {how}\n"
    process = start(tmp_path, fails + WAIT)
    _, said = process.communicate(timeout=TIMEOUT)
    assert process.returncode == code
    assert ("rank 5 was ended by SIGKILL" in said) == (code == 137)
    assert not any(alive(pid) for pid in pids(tmp_path))


def test_the_users_error_of_a_rank_counts_for_more_than_the_crash_that_it_caused(
    tmp_path: Path,
) -> None:
    crashes = "if rank == '5':\n    sys.exit(1)\n"
    leaves = "if rank == '6':\n    time.sleep(0.5)\n    sys.exit(2)\n"
    process = start(tmp_path, crashes + leaves + WAIT)
    process.communicate(timeout=TIMEOUT)
    assert process.returncode == 2
    assert not any(alive(pid) for pid in pids(tmp_path))


def test_sigterm_reaches_every_rank(tmp_path: Path, waiting: subprocess.Popen[str]) -> None:
    pids(tmp_path)
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(TIMEOUT) == 0
    assert all((tmp_path / f"told-{local}").exists() for local in range(3))


def test_no_rank_outlives_the_process_that_started_it(
    tmp_path: Path, waiting: subprocess.Popen[str]
) -> None:
    ranks = pids(tmp_path)
    assert all(alive(pid) for pid in ranks)
    os.kill(waiting.pid, signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in ranks))


def test_the_pods_ports_are_those_of_its_first_rank() -> None:
    config = config_for(1, role="trainer", rank=4, world=6, local_world=2)
    assert environment(config, 0) == {"RANK": "4", "LOCAL_RANK": "0"}
    other = {"RANK": "5", "LOCAL_RANK": "1", "ROLL_PORT": "0", "ROLL_METRICS_PORT": ""}
    assert environment(config, 1) == other
