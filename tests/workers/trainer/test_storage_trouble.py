"""A disk that is full or read-only: one clear message, and the checkpoints before are untouched."""

import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from roll_workers.errors import UserError
from roll_workers.runtime.trainer_session import TrainerSession
from roll_workers.trainer.checkpoint import CheckpointStore, place_of, verify
from roll_workers.trainer.loop import Trainer
from roll_workers.trainer.strategies.torch import TorchStrategy
from trainer_world import FACTS, Scheduler, job


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """As if the disk were full after `size` bytes of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.fixture
def strategy(model_folder: Path) -> TorchStrategy:
    made = TorchStrategy(0, 1)
    made.load(model_folder, job(model_folder).spec)
    return made


# The weights have 1.3 MB: with the small limit they do not fit, with the other the optimizer's state does not.
@pytest.mark.parametrize("limit", [100_000, 1_500_000])
def test_a_full_disk_ends_the_job_with_the_checkpoint_before_intact(
    scheduler: Scheduler, model_folder: Path, limit: int
) -> None:
    def fill_up(trainer: Trainer) -> None:
        save = trainer.checkpoints.save

        def full(*a: object, step: int, term: int) -> object:
            if step < 2:
                return save(*a, step=step, term=term)  # type: ignore[arg-type]
            with largest_file(limit):
                return save(*a, step=step, term=term)  # type: ignore[arg-type]

        trainer.checkpoints.save = full  # type: ignore[method-assign,assignment]

    with TrainerSession(scheduler.config()) as session:
        trainer = Trainer(scheduler.config(), job(model_folder), session, output=scheduler.storage)
        fill_up(trainer)
        with pytest.raises(UserError, match=r"can't write the checkpoint of step 2 to .*: "):
            trainer.run()
        trainer.close()
    assert [c.step for c in scheduler.checkpoints] == [0]
    verify(scheduler.storage / scheduler.checkpoints[0].path, scheduler.checkpoints[0].digest)
    assert [path.name for path in (scheduler.storage / "checkpoints").iterdir()] == [
        "step-000000-t1"
    ]


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"may not mount: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [("size=3m", "No space left on device"), ("ro", "Read-only file system")],
)
def test_the_message_says_what_is_wrong_with_the_disk(
    tmp_path: Path, strategy: TorchStrategy, options: str, message: str
) -> None:
    with mounted(tmp_path / "disk", options):
        store = CheckpointStore(place_of(tmp_path / "disk", None, "", 0), strategy, 0)
        with pytest.raises(UserError) as raised:
            for step in range(5):
                strategy.optimizer.step()  # so that there is a state to save
                store.save(FACTS, step=step, term=1)
        assert message in str(raised.value)
        assert "make room" in str(raised.value)
