"""Streams that carry payloads pass bytes: a message object would copy each payload twice on its way in or out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message


class Streams(grpc.aio.ServerInterceptor):
    """A worker's messages come as bytes; the methods that answer by a stream may write bytes."""

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
                request_deserializer=None,
                response_serializer=_serialised,
            )
        return grpc.unary_stream_rpc_method_handler(
            handler.unary_stream,
            request_deserializer=handler.request_deserializer,
            response_serializer=_serialised,
        )


def _serialised(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()
