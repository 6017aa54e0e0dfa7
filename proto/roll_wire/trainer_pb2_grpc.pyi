from collections.abc import AsyncIterator, Awaitable
from typing import Any

import grpc
import grpc.aio
from roll_wire import trainer_pb2

class TrainerStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    GetPosition: grpc.UnaryUnaryMultiCallable[trainer_pb2.PositionRequest, trainer_pb2.Position]
    Rewind: grpc.UnaryUnaryMultiCallable[trainer_pb2.RewindRequest, trainer_pb2.RewindReply]
    AcquireBatch: grpc.UnaryUnaryMultiCallable[trainer_pb2.BatchRequest, trainer_pb2.Batch]
    FetchShard: grpc.UnaryStreamMultiCallable[trainer_pb2.ShardRequest, trainer_pb2.ShardChunk]
    ReportStep: grpc.UnaryUnaryMultiCallable[trainer_pb2.StepReport, trainer_pb2.Done]
    PublishVersion: grpc.UnaryUnaryMultiCallable[trainer_pb2.Publication, trainer_pb2.Done]
    CommitCheckpoint: grpc.UnaryUnaryMultiCallable[trainer_pb2.CheckpointCommit, trainer_pb2.CheckpointReply]

class TrainerAsyncStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    GetPosition: grpc.aio.UnaryUnaryMultiCallable[trainer_pb2.PositionRequest, trainer_pb2.Position]
    Rewind: grpc.aio.UnaryUnaryMultiCallable[trainer_pb2.RewindRequest, trainer_pb2.RewindReply]
    AcquireBatch: grpc.aio.UnaryUnaryMultiCallable[trainer_pb2.BatchRequest, trainer_pb2.Batch]
    FetchShard: grpc.aio.UnaryStreamMultiCallable[trainer_pb2.ShardRequest, trainer_pb2.ShardChunk]
    ReportStep: grpc.aio.UnaryUnaryMultiCallable[trainer_pb2.StepReport, trainer_pb2.Done]
    PublishVersion: grpc.aio.UnaryUnaryMultiCallable[trainer_pb2.Publication, trainer_pb2.Done]
    CommitCheckpoint: grpc.aio.UnaryUnaryMultiCallable[trainer_pb2.CheckpointCommit, trainer_pb2.CheckpointReply]

class TrainerServicer:
    def GetPosition(self, request: trainer_pb2.PositionRequest, context: grpc.aio.ServicerContext[trainer_pb2.PositionRequest, trainer_pb2.Position]) -> Awaitable[trainer_pb2.Position]: ...
    def Rewind(self, request: trainer_pb2.RewindRequest, context: grpc.aio.ServicerContext[trainer_pb2.RewindRequest, trainer_pb2.RewindReply]) -> Awaitable[trainer_pb2.RewindReply]: ...
    def AcquireBatch(self, request: trainer_pb2.BatchRequest, context: grpc.aio.ServicerContext[trainer_pb2.BatchRequest, trainer_pb2.Batch]) -> Awaitable[trainer_pb2.Batch]: ...
    def FetchShard(self, request: trainer_pb2.ShardRequest, context: grpc.aio.ServicerContext[trainer_pb2.ShardRequest, trainer_pb2.ShardChunk]) -> Any: ...
    def ReportStep(self, request: trainer_pb2.StepReport, context: grpc.aio.ServicerContext[trainer_pb2.StepReport, trainer_pb2.Done]) -> Awaitable[trainer_pb2.Done]: ...
    def PublishVersion(self, request: trainer_pb2.Publication, context: grpc.aio.ServicerContext[trainer_pb2.Publication, trainer_pb2.Done]) -> Awaitable[trainer_pb2.Done]: ...
    def CommitCheckpoint(self, request: trainer_pb2.CheckpointCommit, context: grpc.aio.ServicerContext[trainer_pb2.CheckpointCommit, trainer_pb2.CheckpointReply]) -> Awaitable[trainer_pb2.CheckpointReply]: ...

def add_TrainerServicer_to_server(servicer: TrainerServicer, server: grpc.Server | grpc.aio.Server) -> None: ...
