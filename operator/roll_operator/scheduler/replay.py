"""A recorded job, served to a trainer that trains it again: batches come from the ledger, nothing is written.

The trainer brings the checkpoint that it starts from and is handed the recorded batches after it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from roll_wire import PROTOCOL, session_pb2, session_pb2_grpc, trainer_pb2, trainer_pb2_grpc
from roll_wire.session_pb2 import FromWorker, ToWorker

from roll_operator.scheduler.ledger import LedgerError, SqliteLedger
from roll_operator.scheduler.ledger.sqlite import check_format, read_meta
from roll_operator.scheduler.lifecycle import BatchState
from roll_operator.scheduler.service import shard
from roll_operator.scheduler.settings import Settings
from roll_operator.scheduler.state import Batch
from roll_operator.scheduler.training import OutOfOrder

TERM = 1


class ReplaySession(session_pb2_grpc.SessionServicer):
    """Welcomes whoever comes."""

    async def Open(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[ToWorker]:
        async for message in requests:
            if FromWorker.FromString(message).HasField("hello"):
                welcome = session_pb2.Welcome(
                    term=1, trainer_term=TERM, lineage=1, protocol=PROTOCOL
                )
                yield ToWorker(welcome=welcome)


class ReplayHub(trainer_pb2_grpc.TrainerServicer):
    """The trainer's calls, answered from the record."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        if not (folder / "ledger.sqlite").exists():
            raise LedgerError(f"{folder}: there is no ledger to replay")
        self._ledger = SqliteLedger(folder, settings, read_only=True)
        check_format(read_meta(self._ledger.reader), folder / "ledger.sqlite")
        self._batches: dict[int, Batch] = {
            b.step: b
            for b in self._ledger.batches()
            if b.state in (BatchState.TRAINED, BatchState.COMMITTED)
        }
        self._last = max(self._batches, default=0)
        self.session = ReplaySession()

    async def GetPosition(
        self, request: trainer_pb2.PositionRequest, context: Any
    ) -> trainer_pb2.Position:
        return trainer_pb2.Position(
            lineage=1, batched=self._last, published=self._last, steps=self._last
        )

    async def Rewind(
        self, request: trainer_pb2.RewindRequest, context: Any
    ) -> trainer_pb2.RewindReply:
        return trainer_pb2.RewindReply(lineage=1)

    async def AcquireBatch(
        self, request: trainer_pb2.BatchRequest, context: Any
    ) -> trainer_pb2.Batch:
        batch = self._batch(request.step)
        return trainer_pb2.Batch(
            step=batch.step,
            groups=len(batch.group_ids),
            samples=batch.samples,
            digest=batch.digest.hex(),
        )

    async def FetchShard(
        self, request: trainer_pb2.ShardRequest, context: Any
    ) -> AsyncIterator[bytes]:
        batch = self._batch(request.step)
        for chunk in shard(self._ledger, batch, request.trainer.rank, request.world or 1):
            yield chunk

    async def ReportStep(self, request: trainer_pb2.StepReport, context: Any) -> trainer_pb2.Done:
        return trainer_pb2.Done()

    async def PublishVersion(
        self, request: trainer_pb2.Publication, context: Any
    ) -> trainer_pb2.Done:
        return trainer_pb2.Done()

    async def CommitCheckpoint(
        self, request: trainer_pb2.CheckpointCommit, context: Any
    ) -> trainer_pb2.CheckpointReply:
        return trainer_pb2.CheckpointReply()

    def _batch(self, step: int) -> Batch:
        batch = self._batches.get(step)
        if batch is None:
            raise OutOfOrder(f"batch {step} is not on record")
        return batch
