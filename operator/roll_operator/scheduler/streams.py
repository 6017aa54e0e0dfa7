"""Streams that carry payloads send what `packing` has serialised already."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message


class Streams(grpc.aio.ServerInterceptor):
    """Lets the methods that answer by a stream write bytes as well as messages."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(details)
        if handler is None or not handler.response_streaming:
            return handler
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                handler.stream_stream,
                request_deserializer=handler.request_deserializer,
                response_serializer=_serialised,
            )
        return grpc.unary_stream_rpc_method_handler(
            handler.unary_stream,
            request_deserializer=handler.request_deserializer,
            response_serializer=_serialised,
        )


def _serialised(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()
