"""A trainer whose scheduler knows no checkpoint looks for this job's own, and hands over its bookmark."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from roll_wire import trainer_pb2
from roll_workers.runtime.trainer_session import TrainerSession
from roll_workers.trainer.checkpoint.manifest import NAME, verify
from roll_workers.trainer.loop import Trainer
from trainer_world import Scheduler, job


class Forgetful(Scheduler):
    """Gives every batch a bookmark, and loses its ledger when it is told to."""

    rewound: trainer_pb2.RewindRequest | None = None
    lost = False

    def AcquireBatch(self, request: Any, context: Any) -> Any:
        batch = super().AcquireBatch(request, context)
        batch.bookmark = f"batch {request.step}"
        return batch

    def GetPosition(self, request: Any, context: Any) -> Any:
        position = super().GetPosition(request, context)
        position.bookmark = "after the loss" if self.lost and self.term > 1_000 else "nothing"
        return position

    def Rewind(self, request: Any, context: Any) -> Any:
        reply = super().Rewind(request, context)
        self.rewound = request
        if self.lost:
            self.term = reply.term = self.term + 1_000
            reply.lineage = 2
        return reply

    def lose(self) -> None:
        self.checkpoints, self.term, self.lost = [], 0, True
        self._attempts, self.log = {}, []


@pytest.fixture
def scheduler(tmp_path: Path) -> Any:
    made = Forgetful(tmp_path / "storage")
    yield made
    made.stop()


def train(scheduler: Scheduler, of: Any, attempt: int) -> Trainer:
    with TrainerSession(scheduler.config(attempt)) as session:
        trainer = Trainer(scheduler.config(attempt), of, session, output=scheduler.storage)
        try:
            trainer.run()
        finally:
            trainer.close()
    return trainer


def test_it_goes_on_from_the_newest_and_takes_the_term_it_is_given(
    scheduler: Forgetful, model_folder: Path
) -> None:
    train(scheduler, job(model_folder, steps=4), attempt=0)
    assert [c.step for c in scheduler.checkpoints] == [4, 2]
    scheduler.lose()

    trainer = train(scheduler, job(model_folder, steps=6), attempt=1)
    assert scheduler.rewound is not None
    assert (scheduler.rewound.step, scheduler.rewound.bookmark) == (4, "batch 4")
    assert scheduler.rewound.lineage == 1
    assert scheduler.log[:5] == ["position", "rewind 4", "position", "commit 4", "publish 4"]
    assert trainer.term == 1_001, "and so did every call after it, or it would be fenced"
    [newest, kept] = scheduler.checkpoints
    assert (newest.step, newest.path) == (6, "checkpoints/step-000006-t1001")
    assert (kept.step, kept.path, kept.lineage) == (4, "checkpoints/step-000004-t1001", 2)
    saved = verify(scheduler.storage / kept.path, kept.digest)
    assert (saved.lineage, saved.bookmark) == (2, "after the loss"), (
        "so a second loss opens a third"
    )
    left = sorted(path.name for path in (scheduler.storage / "checkpoints").iterdir())
    assert left == ["step-000004-t1001", "step-000006-t1001"], "what nobody vouches for is removed"


def test_the_checkpoint_of_step_0_tells_of_a_ledger_before(
    scheduler: Forgetful, model_folder: Path
) -> None:
    train(scheduler, job(model_folder, steps=1), attempt=0)
    [newest, first] = scheduler.checkpoints
    assert (newest.step, first.step) == (1, 0)
    shutil.rmtree(scheduler.storage / newest.path)
    scheduler.lose()

    trainer = train(scheduler, job(model_folder, steps=1), attempt=1)
    assert scheduler.rewound is not None
    assert (scheduler.rewound.step, scheduler.rewound.bookmark) == (0, "nothing")
    assert scheduler.log[:5] == ["position", "rewind 0", "position", "commit 0", "publish 0"]
    assert trainer.lineage == 2


def test_checkpoints_of_which_none_is_intact_tell_of_a_ledger_before(
    scheduler: Forgetful, model_folder: Path
) -> None:
    train(scheduler, job(model_folder, steps=2), attempt=0)
    for checkpoint in scheduler.checkpoints:
        shutil.rmtree(scheduler.storage / checkpoint.path / "model")
    scheduler.lose()

    trainer = train(scheduler, job(model_folder, steps=1), attempt=1)
    assert scheduler.rewound is not None
    assert (scheduler.rewound.step, scheduler.rewound.bookmark) == (0, "")
    assert (scheduler.rewound.lineage, trainer.lineage) == (1, 2)
    first = scheduler.checkpoints[-1]
    saved = verify(scheduler.storage / first.path, first.digest)
    assert (saved.step, saved.lineage, saved.bookmark) == (0, 2, "after the loss")


def test_another_jobs_checkpoint_is_not_taken(scheduler: Forgetful, model_folder: Path) -> None:
    train(scheduler, job(model_folder, steps=2), attempt=0)
    path = scheduler.storage / scheduler.checkpoints[0].path / NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {"job_uid": "another"}))
    scheduler.lose()
    train(scheduler, job(model_folder, steps=1), attempt=1)
    assert scheduler.rewinds == [0, 0]
