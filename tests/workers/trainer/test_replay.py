"""A replay trains the recorded batches again and tells whether the weights are the same."""

from pathlib import Path

import pytest
from roll_workers.errors import UserError
from roll_workers.trainer import replay
from roll_workers.trainer.loop import main
from trainer_world import Scheduler, job, samples


@pytest.fixture
def recorded(scheduler: Scheduler, model_folder: Path) -> Scheduler:
    """A finished run, and the scheduler that serves its record: the oldest checkpoint, the batches after it."""
    of = job(model_folder, steps=6)
    config = scheduler.config()
    config.spec.write_text(of.to_json())
    scheduler.steps = of.spec.steps  # it says when the run is over
    main(config, of)
    scheduler.checkpoints = scheduler.checkpoints[-1:]
    return scheduler


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_replay_ends_with_the_same_weights_and_writes_nothing(
    recorded: Scheduler, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything_in(recorded.storage)
    assert replay.replay(recorded.config(attempt=1)) == 0
    said = capsys.readouterr().out
    assert "steps 5 to 6" in said and "equal, bit for bit" in said
    assert recorded.versions[-1][1] in said
    assert everything_in(recorded.storage) == before
    assert "commit" not in " ".join(recorded.log[recorded.log.index("rewind 4") :])


def test_a_replay_notices_a_batch_that_was_changed(
    recorded: Scheduler, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.batches[6] = samples(7)
    assert replay.replay(recorded.config(attempt=1)) == 1
    assert "DIFFERENT from step 6 on" in capsys.readouterr().out


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
        replay.replay(config)


def test_a_damaged_checkpoint_to_start_from_is_said_in_one_sentence(recorded: Scheduler) -> None:
    [oldest] = recorded.checkpoints
    (recorded.storage / oldest.path / "optimizer.pt").write_bytes(b"")
    with pytest.raises(UserError, match=rf"{oldest.path} is damaged, .*: nothing to replay$"):
        replay.replay(recorded.config(attempt=1))
