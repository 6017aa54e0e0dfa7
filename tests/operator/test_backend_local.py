"""Real child processes: seen at once when they die, stopped with grace, and none left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from roll_operator.backends import sweep
from roll_operator.backends.local import LocalBackend
from roll_operator.backends.logs import last_error
from roll_operator.plan import Pod, PodPhase, StartPod

SLEEP = "import time; time.sleep(600)"


def start_pod(code: str, name: str = "sums-reward-0", role: str = "reward", **env: str) -> StartPod:
    uid = str(uuid.uuid4())
    return StartPod(name, role, 0, 0, uid, {"CODE": code, "ROLL_POD_UID": uid, **env})


def python_code(pod: StartPod) -> list[str]:
    return [sys.executable, "-c", pod.env["CODE"]]


def backend(folder: Path) -> LocalBackend:
    return LocalBackend(folder / "logs", str(uuid.uuid4()), python_code)


async def until(backend: LocalBackend, holds: Callable[[Pod], bool], seconds: float = 20) -> Pod:
    async def wait() -> Pod:
        while True:
            backend.changed.clear()
            for pod in backend.pods():
                if holds(pod):
                    return pod
            await backend.changed.wait()

    return await asyncio.wait_for(wait(), seconds)


def read_when_there(path: Path, seconds: float = 120) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().endswith("\n"):
            return path.read_text()
        time.sleep(0.01)
    raise TimeoutError(path)


async def for_file(path: Path) -> str:
    return await asyncio.to_thread(read_when_there, path)


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def gone_within(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.01)
    return False


def exited(pod: Pod) -> bool:
    return pod.phase is PodPhase.EXITED


def test_a_killed_child_is_noticed_within_100_ms(tmp_path: Path) -> None:
    async def scenario() -> list[float]:
        delays = []
        async with backend(tmp_path) as local:
            for _ in range(5):
                pod = start_pod(SLEEP)
                await local.start(pod)
                (running,) = local.pods()
                assert running.pid is not None
                assert alive(running.pid)
                killed_at = time.monotonic()
                os.kill(running.pid, signal.SIGKILL)
                dead = await until(local, exited)
                delays.append(time.monotonic() - killed_at)
                assert dead.exit_code == 137
                await local.remove(pod.uid)
        return delays

    delays = sorted(asyncio.run(scenario()))
    print(f"noticed after {[round(d * 1000, 1) for d in delays]} ms")
    assert delays[len(delays) // 2] < 0.1


@pytest.mark.parametrize(
    ("code", "exit_code", "message"),
    [
        ("raise SystemExit(0)", 0, ""),
        (
            "import sys; print('error: no such file', file=sys.stderr); sys.exit(2)",
            2,
            "no such file",
        ),
        ("print('hello'); 1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 139, ""),
    ],
)
def test_the_end_of_a_process_is_told_with_its_last_error_line(
    tmp_path: Path, code: str, exit_code: int, message: str
) -> None:
    async def scenario() -> Pod:
        async with backend(tmp_path) as local:
            await local.start(start_pod(code))
            return await until(local, exited)

    dead = asyncio.run(scenario())
    assert (dead.exit_code, dead.message) == (exit_code, message)


def test_output_goes_to_one_log_per_process_and_attempt(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with backend(tmp_path) as local:
            await local.start(start_pod("import sys; print('out'); print('err', file=sys.stderr)"))
            await until(local, exited)

    asyncio.run(scenario())
    lines = (tmp_path / "logs" / "sums-reward-0.0.log").read_text().split()
    assert sorted(lines) == ["err", "out"]


def test_a_process_that_is_stopped_may_finish_within_its_grace(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = f"""
import signal, sys, time
def end(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
open({str(ready)!r}, "w").write("\\n")
time.sleep(600)
"""

    async def scenario() -> Pod:
        async with backend(tmp_path) as local:
            pod = start_pod(code)
            await local.start(pod)
            await for_file(ready)
            await local.stop(pod.uid, grace=20)
            assert local.pods()[0].phase is PodPhase.STOPPING
            return await until(local, exited)

    assert asyncio.run(scenario()).exit_code == 0
    assert "saved" in (tmp_path / "logs" / "sums-reward-0.0.log").read_text()


FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = [sys.executable, "-c", "import time; time.sleep(600)"]
group = subprocess.Popen(child)
strayed = subprocess.Popen(child, start_new_session=True)
open(os.environ["REPORT"], "w").write(f"{os.getpid()} {group.pid} {strayed.pid}\\n")
time.sleep(600)
"""


def test_a_process_that_does_not_end_is_killed_with_everything_it_started(tmp_path: Path) -> None:
    report = tmp_path / "report"

    async def scenario() -> list[int]:
        async with backend(tmp_path) as local:
            pod = start_pod(FAMILY, REPORT=str(report))
            await local.start(pod)
            pids = [int(pid) for pid in (await for_file(report)).split()]
            assert all(alive(pid) for pid in pids)
            await local.stop(pod.uid, grace=0.2)
            dead = await until(local, exited)
            assert dead.exit_code == 137
            assert gone_within(pids, 5)
            return pids

    assert len(asyncio.run(scenario())) == 3


def test_children_of_a_killed_process_die_with_it_while_others_live(tmp_path: Path) -> None:
    report = tmp_path / "report"

    async def scenario() -> None:
        async with backend(tmp_path) as local:
            await local.start(start_pod(FAMILY, REPORT=str(report)))
            other = start_pod(SLEEP, name="sums-reward-1")
            await local.start(other)
            pids = [int(pid) for pid in (await for_file(report)).split()]
            os.kill(pids[0], signal.SIGKILL)
            await until(local, exited)
            assert gone_within(pids, 5)
            (survivor,) = [p for p in local.pods() if p.uid == other.uid]
            assert survivor.pid is not None
            assert alive(survivor.pid)

    asyncio.run(scenario())


def test_leaving_the_backend_ends_everything(tmp_path: Path) -> None:
    report = tmp_path / "report"

    async def scenario() -> list[int]:
        async with backend(tmp_path) as local:
            await local.start(start_pod(FAMILY, REPORT=str(report)))
            return [int(pid) for pid in (await for_file(report)).split()]

    assert gone_within(asyncio.run(scenario()), 5)


PARENT = """
import asyncio, os, signal, sys
from pathlib import Path
from roll_operator.backends.local import LocalBackend
from roll_operator.plan import StartPod

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests run under nohup
folder = Path(sys.argv[1])
family = sys.argv[2]
command = lambda pod: [sys.executable, "-c", family]

async def main():
    async with LocalBackend(folder / "logs", sys.argv[3], command) as local:
        for n in range(2):
            env = {"REPORT": str(folder / f"report-{n}"), "ROLL_POD_UID": str(n)}
            await local.start(StartPod(f"p-{n}", "reward", n, 0, str(n), env))
        print("up", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_runner_that_dies_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    mark = str(uuid.uuid4())
    runner = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), FAMILY, mark],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert runner.stdout is not None
    assert runner.stdout.readline() == "up\n"
    pids = []
    for n in range(2):
        pids += [int(p) for p in read_when_there(tmp_path / f"report-{n}").split()]
    assert len(pids) == 6
    assert all(alive(pid) for pid in pids)
    os.kill(runner.pid, number)
    runner.wait(10)
    assert gone_within(pids, 5)
    assert sweep.marked(mark) == []


def test_a_new_runner_ends_what_an_old_one_left(tmp_path: Path) -> None:
    mark = str(uuid.uuid4())
    stray = subprocess.Popen(
        [sys.executable, "-c", SLEEP], env={**os.environ, sweep.MARK: mark}, start_new_session=True
    )

    async def scenario() -> None:
        async with LocalBackend(tmp_path / "logs", mark, python_code):
            assert stray.wait(5) == -signal.SIGKILL

    asyncio.run(scenario())


def test_ranks_of_one_attempt_meet_at_one_port_and_the_next_attempt_at_another(
    tmp_path: Path,
) -> None:
    show = "import os; print(os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'])"

    async def scenario() -> None:
        async with backend(tmp_path) as local:
            for index, attempt in ((0, 0), (1, 0), (0, 1)):
                uid = str(uuid.uuid4())
                env = {"CODE": show, "ROLL_POD_UID": uid}
                name = f"sums-trainer-{index}"
                await local.start(StartPod(name, "trainer", index, attempt, uid, env))
            while not all(exited(pod) for pod in local.pods()):
                local.changed.clear()
                await asyncio.wait_for(local.changed.wait(), 20)

    asyncio.run(scenario())
    logs = tmp_path / "logs"
    first, second, next_attempt = (
        (logs / f"sums-trainer-{name}.log").read_text() for name in ("0.0", "1.0", "0.1")
    )
    assert first == second
    assert first.startswith("127.0.0.1 ")
    assert next_attempt != first


def test_a_command_that_cannot_start_is_an_exit_like_any_other(tmp_path: Path) -> None:
    async def scenario() -> Pod:
        local = LocalBackend(tmp_path / "logs", str(uuid.uuid4()), lambda _: ["/no/such/program"])
        async with local:
            await local.start(start_pod(""))
            return await until(local, exited)

    dead = asyncio.run(scenario())
    assert dead.exit_code == 127
    assert "No such file" in dead.message


def test_the_error_line_is_found_above_other_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        textwrap.dedent("""\
        step 1
        error: data.jsonl:3: not JSON
        shutting down
        """)
    )
    assert last_error(log) == "data.jsonl:3: not JSON"
