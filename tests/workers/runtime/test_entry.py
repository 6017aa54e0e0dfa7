"""`python -m roll_workers` as a pod runs it: what it prints, how it exits, what it costs."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from roll_wire.ports import free_port
from roll_workers.errors import UserError
from roll_workers.runtime.config import WorkerConfig
from roll_workers.runtime.metrics import serve_metrics
from scheduler import TIMEOUT, Scheduler, config_for, run

JOB = {
    "apiVersion": "roll.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "arithmetic"},
    "spec": {
        "pipeline": "RLVR",
        "steps": 2,
        "model": {"path": "builtin:tiny-qwen2"},
        "data": {"train": {"path": "builtin:largest-of-three"}},
        "rollout": {"groupsPerStep": 4, "groupSize": 2},
        "rewards": [{"name": "exact", "scorer": {"kind": "exactMatch"}}],
        "roles": {
            "trainer": {"replicas": 1},
            "inference": {"replicas": 1},
            "reward": {"replicas": 1},
            "environment": {"replicas": 1},
        },
    },
}


def environment(folder: Path, **changes: str) -> dict[str, str]:
    spec = folder / "job.json"
    spec.write_text(json.dumps(JOB))
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith("ROLL_")},
        "ROLL_JOB": "arithmetic",
        "ROLL_JOB_UID": "job-uid",
        "ROLL_ROLE": "reward",
        "ROLL_INDEX": "0",
        "ROLL_POD": "arithmetic-reward-0",
        "ROLL_POD_UID": "pod-uid",
        "ROLL_ATTEMPT": "0",
        "ROLL_SCHEDULER": "127.0.0.1:1",
        "ROLL_SPEC": str(spec),
        "ROLL_STORAGE": str(folder),
        "ROLL_SOURCE": str(folder),
        "ROLL_PORT": "0",
        "ROLL_METRICS_PORT": "",
        "OMP_NUM_THREADS": "1",
        **changes,
    }


def worker(env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "roll_workers"], env=env, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    _, stderr = process.communicate(timeout=60)
    return process.returncode, stderr.splitlines()


def test_everything_that_is_wrong_with_the_environment_is_one_message(tmp_path: Path) -> None:
    env = environment(tmp_path, ROLL_ROLE="judge", ROLL_INDEX="first")
    del env["ROLL_SCHEDULER"], env["ROLL_POD_UID"]
    code, lines = finish(worker(env))
    assert code == 2
    [line] = lines
    assert line.startswith("error: ")
    for part in ("ROLL_ROLE", "'judge'", "ROLL_INDEX", "ROLL_SCHEDULER is not set", "ROLL_POD_UID"):
        assert part in line


def test_a_trainer_needs_its_rank(tmp_path: Path) -> None:
    env = environment(tmp_path, ROLL_ROLE="trainer")
    with pytest.raises(UserError, match="RANK is not set; WORLD_SIZE is not set"):
        WorkerConfig.from_env(env)
    config = WorkerConfig.from_env(env | {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500"})
    assert (config.rank, config.world, config.master_port) == (1, 2, 29500)
    assert config.metrics_port is None


def test_a_process_that_starts_later_has_a_higher_incarnation(tmp_path: Path) -> None:
    env = environment(tmp_path)
    assert WorkerConfig.from_env(env).incarnation < WorkerConfig.from_env(env).incarnation


@pytest.mark.parametrize("content", [None, "{", '{"kind": "RLJob"}'])
def test_a_job_that_can_not_be_read_is_the_users_error(tmp_path: Path, content: str | None) -> None:
    env = environment(tmp_path)
    spec = tmp_path / "job.json"
    spec.unlink() if content is None else spec.write_text(content)
    code, lines = finish(worker(env))
    assert code == 2
    assert lines[-1].startswith("error: ROLL_SPEC")
    assert str(spec) in lines[-1]


def test_sigterm_before_any_scheduler_answers_exits_0(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.settimeout(TIMEOUT)
        env = environment(tmp_path, ROLL_SCHEDULER=f"127.0.0.1:{silent.getsockname()[1]}")
        process = worker(env)
        silent.accept()  # it is trying to connect
        process.send_signal(signal.SIGTERM)
        code, lines = finish(process)
    assert code == 0, lines
    assert any("draining: SIGTERM" in line for line in lines)


@pytest.mark.parametrize(("reason", "expected"), [("fenced", 3), ("job-ended", 0)])
def test_a_refused_process_exits_by_the_reason(tmp_path: Path, reason: str, expected: int) -> None:
    import asyncio

    from roll_wire.session_pb2 import Refused

    async def main() -> None:
        scheduler = Scheduler(free_port())
        scheduler.refuse = Refused(reason=reason, message="no longer wanted")
        await scheduler.start()
        process = worker(environment(tmp_path, ROLL_SCHEDULER=f"127.0.0.1:{scheduler.port}"))
        code, lines = await asyncio.to_thread(finish, process)
        assert code == expected
        assert any("no longer wanted" in line for line in lines)
        await scheduler.kill()

    run(main, timeout=60)


@pytest.mark.parametrize("role", ["reward", "environment"])
def test_a_role_without_a_model_imports_no_torch(role: str) -> None:
    code = f"import sys, roll_workers.{role}.loop; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_metrics_are_served_and_a_port_in_use_is_a_clear_error() -> None:
    port = serve_metrics(config_for(1, metrics_port=0))
    assert port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT) as answer:
        text = answer.read().decode()
    for name in ("results", "failures", "reconnects_total", "leases", "tokens_total"):
        assert f"roll_worker_{name}" in text
    with pytest.raises(UserError, match=f"ROLL_METRICS_PORT.*{port}"):
        serve_metrics(config_for(1, metrics_port=port))
    assert serve_metrics(config_for(1)) is None
