"""The reward role against a real gRPC scheduler: every task ends as a reward or as a typed failure."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from roll_api import RLJob
from roll_wire import sample_pb2
from roll_wire.ports import free_port
from roll_wire.session_pb2 import Cancel, Drain, Failure, Task
from roll_workers.errors import UserError
from roll_workers.reward.loop import main as reward_role
from roll_workers.runtime.trajectory import Trajectory, action_piece, prompt_piece
from roll_workers.text import Codec
from scheduler import Scheduler, config_for, run, task

CODEC = Codec.of_model("builtin:tiny-qwen2", Path(), Path())
EOS = 1


def job_with(*rewards: dict[str, Any], rollout: dict[str, Any] | None = None) -> RLJob:
    return RLJob.parse(
        {
            "apiVersion": "roll.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "j"},
            "spec": {
                "model": {"path": "builtin:tiny-qwen2"},
                "data": {"train": {"path": "builtin:largest-of-three"}},
                "rewards": list(rewards),
                "rollout": rollout or {},
                "roles": {
                    "inference": {"replicas": 1},
                    "reward": {"replicas": 1},
                    "environment": {"replicas": 1},
                },
            },
        }
    )


def score_task(number: int, response: str, *, tag: str = "number", answer: str = "7") -> Task:
    tokens = [*CODEC.encode(response), EOS]
    made = task(number)
    made.payload = Trajectory.payload(
        prompt_piece(CODEC.encode("3,7,5=")),
        facts={"prompt": '"3,7,5="', "answer": f'"{answer}"', "tag": f'"{tag}"'},
    ) + Trajectory.payload(action_piece(tokens, [-0.5] * len(tokens), 3, 0, "stop"))
    return made


def with_role(
    folder: Path, job: RLJob, body: Callable[[Scheduler], Awaitable[None]], timeout: float = 60.0
) -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        await scheduler.start()
        role = asyncio.create_task(reward_role(config_for(scheduler.port, folder), job))
        await body(scheduler)
        scheduler.say(drain=Drain(reason="test over"))
        await role
        await scheduler.kill()

    run(main, timeout)


EXACT = {"name": "exact", "tags": ["number"], "scorer": {"kind": "exactMatch"}}


def test_answers_are_decoded_and_scored(tmp_path: Path) -> None:
    async def body(scheduler: Scheduler) -> None:
        scheduler.assign(score_task(1, "7"), score_task(2, "3"), score_task(3, "77"))
        await scheduler.until(lambda: len(scheduler.results()) == 3)
        got = {result.lease.number: result for result in scheduler.results()}
        assert {n: result.reward for n, result in got.items()} == {1: 1.0, 2: 0.0, 3: 0.0}
        assert all(result.has_reward for result in got.values())
        added = sample_pb2.Trajectory.FromString(got[1].payload)
        assert (added.reward.value, dict(added.reward.parts)) == (1.0, {"exact": 1.0})
        assert not added.pieces, "a stage repeats nothing"

    with_role(tmp_path, job_with(EXACT), body)


def test_each_way_to_fail_has_its_kind_and_none_is_a_zero(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "rewards.py").write_text(
        "import os\n"
        "def score(response):\n"
        "    if response == '1': raise ValueError('one')\n"
        "    if response == '2': return float('nan')\n"
        "    while response == '3': pass\n"
        "    if response == '4': os._exit(1)\n"
        "    return 1.0\n"
    )
    scorer = {"python": "rewards.py:score", "timeoutSeconds": 3.0}
    mine = {"name": "mine", "tags": ["number"], "scorer": scorer}

    async def body(scheduler: Scheduler) -> None:
        scheduler.assign(*(score_task(n, str(n)) for n in range(1, 6)))
        scheduler.assign(score_task(6, "7", tag="verse"))
        await scheduler.until(lambda: len(scheduler.failures()) == 5 and scheduler.results())
        kinds = {failure.lease.number: failure.kind for failure in scheduler.failures()}
        assert kinds == {
            1: Failure.INPUT,
            2: Failure.INPUT,
            3: Failure.TIMEOUT,
            4: Failure.INFRASTRUCTURE,
            6: Failure.INPUT,
        }
        messages = {failure.lease.number: failure.message for failure in scheduler.failures()}
        assert messages[1] == "rewards.py:score raised: rewards.py, line 3: ValueError: one"
        assert "verse" in messages[6]
        [result] = scheduler.results()
        assert (result.lease.number, result.reward) == (5, 1.0)

    with_role(tmp_path, job_with(mine), body)
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 1, "five failures in a moment are one line in the log"
    assert warnings[0].startswith("sample ")


def test_an_answer_that_is_judged_for_long_is_never_without_a_sign_of_life(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text("import time\ndef score(): return time.sleep(4) or 1.0\n")
    mine = {"name": "mine", "scorer": {"python": "rewards.py:score"}}
    job = job_with(mine, rollout={"retry": {"noProgressSeconds": 2.0}})

    async def body(scheduler: Scheduler) -> None:
        scheduler.assign(score_task(1, "7"))
        await scheduler.until(scheduler.results)
        signs = [item for m in scheduler.messages for item in m.progress.items]
        assert len(signs) >= 2, "of four seconds none may pass two without a sign"

    with_role(tmp_path, job, body)


def test_a_cancelled_task_is_dropped_and_a_draining_worker_hands_back_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roll_workers.reward.loop.DRAIN_SECONDS", 0.2)
    (tmp_path / "rewards.py").write_text(
        "def score(response):\n    while response != '7': pass\n    return 1.0\n"
    )
    mine = {"name": "mine", "scorer": {"python": "rewards.py:score", "timeoutSeconds": 50.0}}

    async def body(scheduler: Scheduler) -> None:
        hung, kept = score_task(1, "1"), score_task(2, "2")
        scheduler.assign(hung, kept)
        scheduler.say(cancel=Cancel(leases=[hung.lease]))
        scheduler.assign(score_task(3, "7"))
        await scheduler.until(scheduler.results)
        scheduler.say(drain=Drain(reason="going"))
        await scheduler.until(scheduler.failures)
        [returned] = scheduler.failures()
        assert (returned.lease.number, returned.kind) == (2, Failure.RETURNED)

    with_role(tmp_path, job_with(mine), body)


def test_a_function_that_does_not_import_ends_the_role_before_it_says_hello(
    tmp_path: Path,
) -> None:
    (tmp_path / "rewards.py").write_text("import no_such_module\n")
    mine = {"name": "mine", "scorer": {"python": "rewards.py:score"}}

    async def main() -> None:
        with pytest.raises(UserError, match=r"rewards\.py, line 1: ModuleNotFoundError"):
            await reward_role(config_for(free_port(), tmp_path), job_with(mine))

    run(main, 60.0)


def test_the_process_exits_2_and_its_last_line_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text("def score(:\n")
    mine = {"name": "mine", "scorer": {"python": "rewards.py:score"}}
    ended = worker_process(tmp_path, job_with(mine), "reward")
    assert ended.returncode == 2, ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("error: rewards.py:score: can't import it: rewards.py, line 1: Syntax")


def test_the_role_starts_without_torch_and_transformers() -> None:
    program = (
        "import sys; from pathlib import Path; import roll_workers.reward.loop\n"
        "from roll_workers.text import Codec\n"
        "Codec.of_model('builtin:tiny-qwen2', Path(), Path())\n"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'transformers', 'math_verify')))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def worker_process(folder: Path, job: RLJob, role: str) -> subprocess.CompletedProcess[str]:
    (folder / "job.json").write_text(job.to_json())
    environment = {
        "ROLL_JOB": "j",
        "ROLL_JOB_UID": "uid",
        "ROLL_ROLE": role,
        "ROLL_INDEX": "0",
        "ROLL_POD": f"j-{role}-0",
        "ROLL_POD_UID": "pod-uid",
        "ROLL_SCHEDULER": "127.0.0.1:1",
        "ROLL_SPEC": str(folder / "job.json"),
        "ROLL_STORAGE": str(folder),
        "ROLL_SOURCE": str(folder),
    }
    return subprocess.run(
        [sys.executable, "-m", "roll_workers"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
