"""A replay trains the recorded batches again and tells whether the weights are the same."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from roll_wire.trainer_pb2 import Checkpoint
from roll_workers.errors import UserError
from roll_workers.trainer import replay
from roll_workers.trainer.arithmetic import arithmetic, differences
from roll_workers.trainer.checkpoint.manifest import NAME, Manifest, digest
from roll_workers.trainer.loop import main
from trainer_world import FACTS, Scheduler, job, samples


def run(scheduler: Scheduler, model_folder: Path, *, attempt: int = 0, **spec: Any) -> None:
    """To its last step. Every checkpoint is kept."""
    of = job(model_folder, **spec)
    config = scheduler.config(attempt)
    config.spec.write_text(of.to_json())
    scheduler.steps, scheduler.keep_last = of.spec.steps, 9
    main(config, of)


def again(scheduler: Scheduler) -> int:
    """A replay, as `roll replay` starts it: told of the checkpoints that the ledger vouches for."""
    scheduler.steps = 10**9  # it is not told to stop because the job is over
    return replay.replay(scheduler.config(attempt=9), scheduler.checkpoints[::-1])


def verdict(capsys: pytest.CaptureFixture[str]) -> tuple[list[int], bool, int | None]:
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    return [each["step"] for each in said["steps"]], said["equal"], said["differentFrom"]


@pytest.fixture
def recorded(scheduler: Scheduler, model_folder: Path) -> Scheduler:
    """A finished run with checkpoints of the steps 0, 2, 4 and 6, and the scheduler that serves its record."""
    run(scheduler, model_folder, steps=6)
    return scheduler


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_replay_ends_with_the_same_weights_and_writes_nothing(
    recorded: Scheduler, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything_in(recorded.storage)
    assert again(recorded) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["equal"], said["differentFrom"]) == (True, None)
    assert [each["step"] for each in said["steps"]] == [1, 2, 3, 4, 5, 6]
    last = recorded.versions[-1][1]
    assert said["steps"][-1] == {"step": 6, "recorded": last, "replayed": last}
    assert everything_in(recorded.storage) == before
    assert "commit" not in " ".join(recorded.log[recorded.log.index("report 6") + 2 :])


def test_a_replay_notices_a_batch_that_was_changed(
    recorded: Scheduler, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.batches[6] = samples(7)
    assert again(recorded) == 1
    assert verdict(capsys) == ([1, 2, 3, 4, 5, 6], False, 6)


def test_a_replay_without_steps_says_so() -> None:
    with pytest.raises(UserError, match="nothing to compare"):
        replay.compare({0: "a"}, {})


def test_a_run_that_trained_nothing_is_not_replayed(
    scheduler: Scheduler, model_folder: Path
) -> None:
    config = scheduler.config()
    config.spec.write_text(job(model_folder, steps=6).to_json())
    (scheduler.storage / "metrics.jsonl").write_text('{"step": 1, "weig')
    with pytest.raises(UserError, match="no step was trained yet"):
        replay.replay(config, [])


@pytest.mark.parametrize("file", ["optimizer.pt", NAME])
def test_a_damaged_checkpoint_is_passed_over(
    recorded: Scheduler, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (recorded.storage / recorded.checkpoints[-1].path / file).write_bytes(b"{}")
    assert again(recorded) == 0
    assert verdict(capsys) == ([3, 4, 5, 6], True, None)


def test_checkpoints_of_which_none_is_intact_are_said_in_one_sentence(recorded: Scheduler) -> None:
    for checkpoint in recorded.checkpoints:
        (recorded.storage / checkpoint.path / "optimizer.pt").unlink()
    with pytest.raises(UserError, match=r"^nothing to replay: .*step-000000-t1 and .* is damaged$"):
        again(recorded)
    for checkpoint in recorded.checkpoints:
        shutil.rmtree(recorded.storage / checkpoint.path)
    with pytest.raises(UserError, match="no checkpoint to start from can be read"):
        again(recorded)


def test_what_the_ledger_does_not_vouch_for_is_not_compared_with(
    recorded: Scheduler, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checkpoints of a lineage that was given up: one of another digest, one that cannot be read."""
    abandoned = Manifest(**FACTS | {"weights_digest": "another"}, step=6, term=9, files=())
    for name, content in (("step-000006-t9", abandoned.to_bytes()), ("step-000005-t9", b"torn")):
        folder = recorded.storage / "checkpoints" / name
        folder.mkdir()
        (folder / NAME).write_bytes(content)
    assert again(recorded) == 0
    assert verdict(capsys) == ([1, 2, 3, 4, 5, 6], True, None)


def test_settings_that_changed_at_rest_are_no_difference(
    recorded: Scheduler,
    model_folder: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    changed = {"learningRate": 2e-3, "entropy": 0.01}
    run(recorded, model_folder, steps=9, algorithm=changed, attempt=1)
    assert again(recorded) == 0
    assert verdict(capsys) == ([7, 8, 9], True, None)
    told = "what followed the checkpoint of step 4 was trained under another algorithm.learningRate"
    assert f"{told}: replaying from step 6 on" in caplog.text


def test_a_replay_under_settings_that_nothing_was_trained_under_is_refused(
    recorded: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with pytest.raises(UserError, match=r"^nothing to replay: .* step 6 .* under another threads$"):
        again(recorded)


def test_settings_that_came_back_do_not_bridge_those_in_between(model_folder: Path) -> None:
    one, other = ({"strategy": {"microBatchTokens": n}} for n in (1, 2))
    kept = [kept_checkpoint(step, said) for step, said in enumerate((one, other, one, one))]
    assert [start.step for start in replay.starts(kept, one)] == [2, 3]


def test_checkpoints_of_an_earlier_release_name_no_settings_and_are_replayed() -> None:
    kept = [kept_checkpoint(step, said) for step, said in enumerate((None, None, {"threads": 1}))]
    assert [start.step for start in replay.starts(kept, {"threads": 1})] == [0, 1, 2]
    older = json.loads(kept[0][1].to_bytes())
    del older["arithmetic"]
    assert Manifest.from_bytes(json.dumps(older).encode()) == kept[0][1]


def kept_checkpoint(step: int, said: dict[str, Any] | None) -> replay.Kept:
    manifest = Manifest(**FACTS, step=step, term=1, files=(), arithmetic=said)
    path = f"checkpoints/step-{step:06d}-t1"
    return Checkpoint(step=step, path=path, digest=digest(manifest.to_bytes())), manifest


def test_only_what_changes_a_weight_counts_as_a_setting(model_folder: Path) -> None:
    def changed(**spec: Any) -> list[str]:
        was = job(model_folder, rollout={"maxStaleness": 1})
        now = job(model_folder, **{"rollout": {"maxStaleness": 1}} | spec)
        return differences(arithmetic(was.spec, 1), arithmetic(now.spec, 1))

    assert changed(steps=9, checkpoint={"everySteps": 7}) == []
    assert changed(rollout={"maxStaleness": 3}) == []
    assert changed(rollout={"maxStaleness": 0}) == ["decoupled"]
    sampling = {"temperature": 0.5, "maxNewTokens": 5}
    rollout = {"maxStaleness": 1, "sampling": sampling}
    assert changed(rollout=rollout) == ["horizon", "sampling.temperature"]
    assert changed(algorithm={"clip": 0.1}) == [
        "algorithm.clip",
        "algorithm.entropy",
        "algorithm.learningRate",
    ]
