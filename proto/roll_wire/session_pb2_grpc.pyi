from collections.abc import AsyncIterator, Awaitable
from typing import Any

import grpc
import grpc.aio
from roll_wire import session_pb2

class SessionStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    Open: grpc.StreamStreamMultiCallable[session_pb2.FromWorker, session_pb2.ToWorker]

class SessionAsyncStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Open: grpc.aio.StreamStreamMultiCallable[session_pb2.FromWorker, session_pb2.ToWorker]

class SessionServicer:
    def Open(self, request_iterator: AsyncIterator[session_pb2.FromWorker], context: grpc.aio.ServicerContext[session_pb2.FromWorker, session_pb2.ToWorker]) -> Any: ...

def add_SessionServicer_to_server(servicer: SessionServicer, server: grpc.Server | grpc.aio.Server) -> None: ...
