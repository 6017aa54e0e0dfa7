"""The environment role against a real gRPC scheduler."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from roll_api import RLJob
from roll_wire.ports import free_port
from roll_wire.sample_pb2 import Trajectory
from roll_wire.session_pb2 import Cancel, Drain, Failure, LeaseId, Result, Task, Unit
from roll_workers.environment.loop import main as environment_role
from roll_workers.environment.setup import Setup, validation_seed
from roll_workers.errors import UserError
from roll_workers.runtime.trajectory import action_piece
from roll_workers.text import Codec
from scheduler import Scheduler, config_for, run

LAKE_CODEC = Codec.of_model("builtin:tiny-qwen2-frozenlake", Path(), Path())
EXACT = {"name": "exact", "scorer": {"kind": "exactMatch"}}


def job(spec: dict[str, Any]) -> RLJob:
    roles = {"inference": {"replicas": 1}, "environment": {"replicas": 1}}
    if "data" in spec:
        roles["reward"] = {"replicas": 1}
    return RLJob.parse(
        {
            "apiVersion": "roll.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "j"},
            "spec": {"roles": roles, **spec},
        }
    )


def rlvr(train: str, validation: str | None = None, *, new_tokens: int = 4, **more: Any) -> RLJob:
    data: dict[str, Any] = {"train": {"path": train}}
    if validation:
        data["validation"] = {"path": validation}
    return job(
        {
            "model": {"path": "builtin:tiny-qwen2"},
            "data": data,
            "rewards": [EXACT],
            "rollout": {"sampling": {"maxNewTokens": new_tokens}},
            **more,
        }
    )


def agentic(**environment: Any) -> RLJob:
    if "python" not in environment:
        environment = {"kind": "frozenLake", "options": {"size": 3}} | environment
    return job(
        {
            "pipeline": "Agentic",
            "model": {"path": "builtin:tiny-qwen2-frozenlake"},
            "environment": {"maxTurns": 6, **environment},
            "rollout": {"sampling": {"maxNewTokens": 1}},
        }
    )


class Worker:
    """The role, running in this process, and what the scheduler sees of it."""

    def __init__(self, scheduler: Scheduler, role: asyncio.Task[None]) -> None:
        self.scheduler, self.role = scheduler, role
        self.number = 0

    @classmethod
    async def start(cls, folder: Path, of: RLJob) -> "Worker":
        scheduler = Scheduler(free_port())
        await scheduler.start()
        config = config_for(scheduler.port, folder, role="environment")
        return cls(scheduler, asyncio.create_task(environment_role(config, of)))

    async def ask(self, stage: str, **fields: Any) -> Result | Failure:
        self.number += 1
        lease = LeaseId(term=1, number=self.number)
        self.scheduler.assign(Task(lease=lease, stage=stage, attempt=1, **fields))
        ended: list[Any] = []

        def find() -> bool:
            everything = (*self.scheduler.results(), *self.scheduler.failures())
            ended[:] = [item for item in everything if item.lease == lease]
            return bool(ended)

        await self.scheduler.until(find)
        return ended[0]

    async def stop(self) -> None:
        self.scheduler.say(drain=Drain(reason="test over"))
        await self.role
        await self.scheduler.kill()


def with_worker(folder: Path, of: RLJob, body: Callable[[Worker], Awaitable[None]]) -> None:
    async def main() -> None:
        worker = await Worker.start(folder, of)
        await body(worker)
        await worker.stop()

    run(main, 60.0)


def move(letter: str, turn: int) -> bytes:
    tokens = LAKE_CODEC.encode(letter)
    piece = action_piece(tokens, [-0.5] * len(tokens), 1, turn, "length")
    return Trajectory(pieces=[piece]).SerializeToString()


def test_the_data_set_is_declared_and_served_by_position(tmp_path: Path) -> None:
    of = rlvr("builtin:largest-of-three", "builtin:largest-of-three/held-out")
    data = Setup.of_job(of, tmp_path, tmp_path).data

    async def body(worker: Worker) -> None:
        for position in (0, 799, 800):
            result = await worker.ask("reset", unit=Unit(group=1, index=-1), position=position)
            assert isinstance(result, Result)
            train = data["train"]
            assert result.payload == train.payload(train.row(position))
            assert not (result.done or result.resident)
        result = await worker.ask(
            "reset", unit=Unit(group=2, index=-1), position=3, validation=True
        )
        assert isinstance(result, Result)
        assert result.payload == data["validation"].payload(3)
        [hello] = worker.scheduler.hellos
        declared = [(of.split, of.rows, of.content_hash) for of in hello.data]
        assert declared == [
            ("train", 800, data["train"].content_hash),
            ("validation", 200, data["validation"].content_hash),
        ]

    with_worker(tmp_path, of, body)


def test_a_thousand_resets_take_no_time(tmp_path: Path) -> None:
    async def body(worker: Worker) -> None:
        loop = asyncio.get_running_loop()
        await worker.ask("reset", unit=Unit(group=9999, index=-1))
        began = loop.time()
        for start in range(0, 1000, 50):
            worker.scheduler.assign(
                *(
                    Task(
                        unit=Unit(group=n, index=-1),
                        lease=LeaseId(term=2, number=n),
                        stage="reset",
                        position=n,
                    )
                    for n in range(start, start + 50)
                )
            )
        await worker.scheduler.until(lambda: len(worker.scheduler.results()) >= 1001)
        assert loop.time() - began < 5.0  # 0.1 s on a quiet machine

    with_worker(tmp_path, rlvr("builtin:largest-of-three"), body)


def test_an_episode_lives_here_between_its_turns_until_it_is_done(tmp_path: Path) -> None:
    async def body(worker: Worker) -> None:
        unit = Unit(group=1, index=0)
        result = await worker.ask("reset", unit=unit, seed=5)
        assert isinstance(result, Result)
        assert result.resident and not result.done
        payload = result.payload
        for turn in range(6):
            payload += move("L", turn)
            result = await worker.ask("step", unit=unit, turn=turn, payload=payload)
            assert isinstance(result, Result)
            payload += result.payload
        assert result.done and not result.resident  # the turn limit
        assert (result.has_reward, result.reward) == (True, 0.0)
        assert list(Trajectory.FromString(payload).reward.turns) == [0.0] * 6

    with_worker(tmp_path, agentic(), body)


def test_samples_of_a_group_get_equal_lakes_and_validation_its_own(tmp_path: Path) -> None:
    async def body(worker: Worker) -> None:
        async def prompt(index: int, **fields: Any) -> Trajectory:
            result = await worker.ask("reset", unit=Unit(group=1, index=index), **fields)
            assert isinstance(result, Result)
            return Trajectory.FromString(result.payload)

        assert await prompt(0, seed=5) == await prompt(1, seed=5)
        held_out = await prompt(2, seed=5, position=3, validation=True)
        assert json.loads(held_out.facts["seed"]) == validation_seed(42, 3) != 5
        [hello] = worker.scheduler.hellos
        assert [(of.split, of.rows) for of in hello.data] == [("train", -1), ("validation", 20)]

    with_worker(tmp_path, agentic(validation={"samples": 20}), body)


def test_another_worker_replays_the_episode_of_a_dead_one(tmp_path: Path) -> None:
    unit = Unit(group=1, index=0)

    async def main() -> None:
        first = await Worker.start(tmp_path, agentic())
        result = await first.ask("reset", unit=unit, seed=5)
        assert isinstance(result, Result)
        payload = result.payload + move("L", 0)
        result = await first.ask("step", unit=unit, turn=0, payload=payload)
        assert isinstance(result, Result)
        payload += result.payload + move("U", 1)
        expected = await first.ask("step", unit=unit, turn=1, payload=payload)
        assert isinstance(expected, Result)
        first.role.cancel()  # as if its pod were gone
        await asyncio.gather(first.role, return_exceptions=True)
        await first.scheduler.kill()

        second = await Worker.start(tmp_path, agentic())
        again = await second.ask("step", unit=unit, turn=1, payload=payload)
        assert isinstance(again, Result)
        assert again.payload == expected.payload
        assert again.resident

        forged = Trajectory.FromString(payload)
        forged.observations[1].hash = b"0" * 16
        failure = await second.ask(
            "step", unit=Unit(group=1, index=1), turn=1, payload=forged.SerializeToString()
        )
        assert isinstance(failure, Failure)
        assert failure.kind == Failure.REPLAY
        await second.stop()

    run(main, 60.0)


def test_an_episode_of_an_older_attempt_is_not_continued(tmp_path: Path) -> None:
    async def body(worker: Worker) -> None:
        unit = Unit(group=1, index=0)
        reset = await worker.ask("reset", unit=unit, seed=5)
        assert isinstance(reset, Result)
        step = await worker.ask("step", unit=unit, payload=reset.payload + move("L", 0))
        assert isinstance(step, Result)
        # The scheduler lost that step and asks again: the episode here is one turn ahead.
        again = await worker.ask("step", unit=unit, payload=reset.payload + move("L", 0))
        assert isinstance(again, Result)
        assert again.payload == step.payload

    with_worker(tmp_path, agentic(), body)


USER_ENV = """
import pathlib, time
class Walk:
    replay = "Exact"
    action_pattern = "[LDRU]"
    def __init__(self, length=2):
        self.length = length
    def reset(self, seed):
        self.at = 0
        return "P=", {"length": self.length}
    def step(self, action):
        if action == "U":
            raise RuntimeError('no up here')
        while action == "L":
            time.sleep(0.01)
        self.at += 1
        return "F" * self.at + "P=", 0.5, self.at == self.length, False, {}
"""


def test_a_users_environment_may_raise_or_hang_without_disturbing_others(tmp_path: Path) -> None:
    (tmp_path / "walk.py").write_text(USER_ENV)

    async def body(worker: Worker) -> None:
        async def begin(index: int) -> tuple[Unit, bytes]:
            unit = Unit(group=1, index=index)
            result = await worker.ask("reset", unit=unit, seed=5)
            assert isinstance(result, Result)
            return unit, result.payload

        unit, payload = await begin(0)
        hanging = asyncio.create_task(
            worker.ask("step", unit=unit, payload=payload + move("L", 0), no_progress_ms=4000)
        )
        unit, payload = await begin(1)
        failure = await worker.ask("step", unit=unit, payload=payload + move("U", 0))
        assert isinstance(failure, Failure)
        assert failure.kind == Failure.INPUT, "a bug of the user's, not of the machines"
        assert "walk.py, line 13: RuntimeError: no up here" in failure.message

        unit, payload = await begin(2)
        for turn in range(2):
            payload += move("R", turn)
            result = await worker.ask("step", unit=unit, turn=turn, payload=payload)
            assert isinstance(result, Result)
            payload += result.payload
        assert (result.done, result.reward) == (True, 1.0)
        assert json.loads(Trajectory.FromString(payload).facts["length"]) == 2
        assert not hanging.done()
        hung = await hanging
        assert isinstance(hung, Failure)
        assert hung.kind == Failure.TIMEOUT
        assert hung.message == "the environment's step did not end within 2 s"

    with_worker(tmp_path, agentic(python="walk.py:Walk"), body)


@pytest.mark.parametrize("raised", ["TimeoutError('slow')", "SystemExit(3)", "StopIteration"])
def test_whatever_a_users_environment_raises_is_its_own_failure(
    tmp_path: Path, raised: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "walk.py").write_text(USER_ENV.replace("RuntimeError('no up here')", raised))

    async def body(worker: Worker) -> None:
        unit = Unit(group=1, index=3)
        begun = await worker.ask("reset", unit=unit, seed=5)
        failure = await worker.ask("step", unit=unit, payload=begun.payload + move("U", 0))
        assert isinstance(failure, Failure)
        assert failure.kind == Failure.INPUT
        assert f"walk.py, line 13: {raised.split('(')[0]}" in failure.message

    with_worker(tmp_path, agentic(python="walk.py:Walk"), body)
    [told] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert told.startswith("sample 1.3: the environment's step raised: walk.py, line 13: ")


def test_a_users_environment_is_told_what_validates_if_it_asks(tmp_path: Path) -> None:
    asks = USER_ENV.replace("reset(self, seed)", "reset(self, seed, validation)")
    (tmp_path / "walk.py").write_text(asks.replace('"P="', '"G=" if validation else "P="'))

    async def body(worker: Worker) -> None:
        for validation, text in ((False, "P="), (True, "G=")):
            unit = Unit(group=1, index=int(validation))
            reset = await worker.ask("reset", unit=unit, seed=5, validation=validation)
            assert isinstance(reset, Result)
            assert Trajectory.FromString(reset.payload).observations[0].text == text

    with_worker(tmp_path, agentic(python="walk.py:Walk"), body)


def test_a_cancelled_episode_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "walk.py").write_text(USER_ENV.replace('"Exact"', "None"))

    async def body(worker: Worker) -> None:
        unit = Unit(group=1, index=0)
        result = await worker.ask("reset", unit=unit, seed=5)
        assert isinstance(result, Result)
        worker.scheduler.say(cancel=Cancel(episodes=[unit]))
        failure = await worker.ask("step", unit=unit, payload=result.payload + move("R", 0))
        assert isinstance(failure, Failure), "it was still there, for it can't be replayed"
        assert failure.kind == Failure.REPLAY

    with_worker(tmp_path, agentic(python="walk.py:Walk"), body)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import nothing_like_it\n", "walk.py, line 1: ModuleNotFoundError"),
        ("Walk = 1\n", "is not a class"),
        ("class Walk:\n    def reset(self, seed): ...\n", "has no method step()"),
        (USER_ENV.replace('"Exact"', '"Maybe"'), "replay is 'Maybe'"),
        (USER_ENV.replace('"Exact"', '"Snapshot"'), "has no method snapshot()"),
        (USER_ENV.replace("length=2", "width"), "can't be made with environment.options"),
    ],
)
def test_an_environment_that_can_not_work_is_the_users_error(
    tmp_path: Path, code: str, expected: str
) -> None:
    (tmp_path / "walk.py").write_text(code)
    with pytest.raises(UserError) as caught:
        Setup.of_job(agentic(python="walk.py:Walk"), tmp_path, tmp_path)
    assert expected in str(caught.value)


def test_environment_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="frozenLake knows no depth"):
        Setup.of_job(agentic(options={"depth": 3}), tmp_path, tmp_path)
    with pytest.raises(UserError, match="can't encode"):  # no letters for words
        Setup.of_job(agentic(options={"render": "words"}), tmp_path, tmp_path)
    with pytest.raises(UserError, match=r"environment\.actionPattern"):
        Setup.of_job(agentic(actionPattern="("), tmp_path, tmp_path)


def test_a_model_too_small_for_max_new_tokens_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"context of 1024 tokens, too small for .*maxNewTokens"):
        Setup.of_job(rlvr("builtin:largest-of-three", new_tokens=1024), tmp_path, tmp_path)
    with pytest.raises(UserError, match=r"row 1: the prompt has 6 tokens, but the model's context"):
        Setup.of_job(rlvr("builtin:largest-of-three", new_tokens=1020), tmp_path, tmp_path)


def test_the_process_exits_2_and_its_last_line_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"prompt": "1=", "answer": "1"}\n{"prompt"\n')
    (tmp_path / "job.json").write_text(rlvr("data.jsonl").to_json())
    environment = {
        "ROLL_JOB": "j",
        "ROLL_JOB_UID": "uid",
        "ROLL_ROLE": "environment",
        "ROLL_INDEX": "0",
        "ROLL_POD": "j-environment-0",
        "ROLL_POD_UID": "pod-uid",
        "ROLL_SCHEDULER": "127.0.0.1:1",
        "ROLL_SPEC": str(tmp_path / "job.json"),
        "ROLL_STORAGE": str(tmp_path),
        "ROLL_SOURCE": str(tmp_path),
    }
    ended = subprocess.run(
        [sys.executable, "-m", "roll_workers"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2, ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith(f"error: {tmp_path}/data.jsonl, line 2: not JSON")
