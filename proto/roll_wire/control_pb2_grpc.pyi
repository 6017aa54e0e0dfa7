from collections.abc import AsyncIterator, Awaitable
from typing import Any

import grpc
import grpc.aio
from roll_wire import control_pb2

class ControlStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    SyncPods: grpc.UnaryUnaryMultiCallable[control_pb2.Pods, control_pb2.PodsReply]
    GetProgress: grpc.UnaryUnaryMultiCallable[control_pb2.ProgressRequest, control_pb2.JobProgress]
    ListSamples: grpc.UnaryUnaryMultiCallable[control_pb2.SamplesRequest, control_pb2.SampleList]
    GetSample: grpc.UnaryUnaryMultiCallable[control_pb2.SampleRequest, control_pb2.SampleStory]

class ControlAsyncStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    SyncPods: grpc.aio.UnaryUnaryMultiCallable[control_pb2.Pods, control_pb2.PodsReply]
    GetProgress: grpc.aio.UnaryUnaryMultiCallable[control_pb2.ProgressRequest, control_pb2.JobProgress]
    ListSamples: grpc.aio.UnaryUnaryMultiCallable[control_pb2.SamplesRequest, control_pb2.SampleList]
    GetSample: grpc.aio.UnaryUnaryMultiCallable[control_pb2.SampleRequest, control_pb2.SampleStory]

class ControlServicer:
    def SyncPods(self, request: control_pb2.Pods, context: grpc.aio.ServicerContext[control_pb2.Pods, control_pb2.PodsReply]) -> Awaitable[control_pb2.PodsReply]: ...
    def GetProgress(self, request: control_pb2.ProgressRequest, context: grpc.aio.ServicerContext[control_pb2.ProgressRequest, control_pb2.JobProgress]) -> Awaitable[control_pb2.JobProgress]: ...
    def ListSamples(self, request: control_pb2.SamplesRequest, context: grpc.aio.ServicerContext[control_pb2.SamplesRequest, control_pb2.SampleList]) -> Awaitable[control_pb2.SampleList]: ...
    def GetSample(self, request: control_pb2.SampleRequest, context: grpc.aio.ServicerContext[control_pb2.SampleRequest, control_pb2.SampleStory]) -> Awaitable[control_pb2.SampleStory]: ...

def add_ControlServicer_to_server(servicer: ControlServicer, server: grpc.Server | grpc.aio.Server) -> None: ...
