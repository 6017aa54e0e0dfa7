"""Background programs are known by id and start time, and their last words reach the user."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from roll_cluster import ClusterError
from roll_cluster.processes import Process, start_time


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process("program", tmp_path / "pid", tmp_path / "log")


def test_one_that_ends_at_once_is_reported_with_the_end_of_its_log(process: Process) -> None:
    process.start(["sh", "-c", "echo unknown flag: --colour; exit 1"])
    with pytest.raises(ClusterError, match=r"(?s)program ended at once.*unknown flag: --colour"):
        process.wait(lambda: False, 30)


def test_one_that_does_not_answer_in_time_is_reported_too(process: Process) -> None:
    process.start(["sh", "-c", "echo thinking; exec sleep 600"])
    with pytest.raises(ClusterError, match=r"(?s)not ready after 0.5 s.*thinking"):
        process.wait(lambda: False, 0.5)
    process.stop()
    assert process.pid is None


def test_a_running_one_is_not_started_twice(process: Process) -> None:
    process.start(["sleep", "600"])
    first = process.pid
    process.start(["sleep", "600"])
    assert process.pid == first
    process.stop()


def test_one_that_ignores_the_request_to_end_is_killed(process: Process) -> None:
    process.start(["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"])
    process.wait(lambda: "deaf" in process.log.read_text(), 30)
    process.stop(seconds=0.3)
    assert process.pid is None


def test_an_id_that_belongs_to_somebody_else_by_now_is_left_alone(process: Process) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    started = start_time(bystander.pid)
    assert started is not None
    process.pid_file.write_text(f"{bystander.pid} {started - 1}")
    process.stop()
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_one_that_belongs_to_its_parent_ends_with_it_however_that_ends(process: Process) -> None:
    program = (
        "import os, sys; from pathlib import Path; from roll_cluster.processes import Process\n"
        "pid, log = map(Path, sys.argv[1:])\n"
        "process = Process('program', pid, log)\n"
        "process.start(['sh', '-c', 'echo up; exec sleep 600'], with_parent=True)\n"
        "process.wait(lambda: 'up' in log.read_text(), 30)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    arguments = [sys.executable, "-c", program, str(process.pid_file), str(process.log)]
    subprocess.run(arguments, env=os.environ, timeout=60)
    assert "up" in process.log.read_text()
    with pytest.raises(ClusterError, match="ended at once"):
        process.wait(lambda: False, 30)
