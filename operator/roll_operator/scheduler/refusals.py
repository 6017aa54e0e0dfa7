"""Refusals as gRPC statuses: a fenced trainer gets FAILED_PRECONDITION, a confused one OUT_OF_RANGE."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from roll_operator.scheduler.training import Fenced, OutOfOrder

STATUS = {
    Fenced: grpc.StatusCode.FAILED_PRECONDITION,
    OutOfOrder: grpc.StatusCode.OUT_OF_RANGE,
}


class Refusals(grpc.aio.ServerInterceptor):
    """Turns the core's exceptions into the status that the trainer's session expects."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(details)
        if handler is None or not details.method.startswith("/roll.v1.Trainer/"):
            return handler
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(
                _unary(handler.unary_unary),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        return grpc.unary_stream_rpc_method_handler(
            _stream(handler.unary_stream),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _unary(method: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    async def call(request: Any, context: Any) -> Any:
        try:
            return await method(request, context)
        except (Fenced, OutOfOrder) as error:
            await context.abort(STATUS[type(error)], str(error))

    return call


def _stream(
    method: Callable[[Any, Any], AsyncIterator[Any]],
) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def call(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for item in method(request, context):
                yield item
        except (Fenced, OutOfOrder) as error:
            await context.abort(STATUS[type(error)], str(error))

    return call
