from collections.abc import AsyncIterator, Awaitable
from typing import Any

import grpc
import grpc.aio
from roll_wire import weights_pb2

class WeightsStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    GetManifest: grpc.UnaryUnaryMultiCallable[weights_pb2.ManifestRequest, weights_pb2.Manifest]
    Fetch: grpc.UnaryStreamMultiCallable[weights_pb2.FetchRequest, weights_pb2.Chunk]

class WeightsAsyncStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    GetManifest: grpc.aio.UnaryUnaryMultiCallable[weights_pb2.ManifestRequest, weights_pb2.Manifest]
    Fetch: grpc.aio.UnaryStreamMultiCallable[weights_pb2.FetchRequest, weights_pb2.Chunk]

class WeightsServicer:
    def GetManifest(self, request: weights_pb2.ManifestRequest, context: grpc.aio.ServicerContext[weights_pb2.ManifestRequest, weights_pb2.Manifest]) -> Awaitable[weights_pb2.Manifest]: ...
    def Fetch(self, request: weights_pb2.FetchRequest, context: grpc.aio.ServicerContext[weights_pb2.FetchRequest, weights_pb2.Chunk]) -> Any: ...

def add_WeightsServicer_to_server(servicer: WeightsServicer, server: grpc.Server | grpc.aio.Server) -> None: ...
