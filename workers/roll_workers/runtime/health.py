"""The gRPC server of a worker process: health, and whatever services its role adds (weights).

Invariant: health says SERVING only after the role said so; for inference that is when it holds a
published version, so that a pod that just restarted is not taken for a ready one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from roll_wire.channel import SERVER_OPTIONS

from roll_workers.runtime.config import WorkerConfig
from roll_workers.runtime.connection import listen

log = logging.getLogger(__name__)

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Services:
    """`address` is for Hello, once started."""

    def __init__(self, config: WorkerConfig, *add: Callable[[grpc.aio.Server], None]) -> None:
        self._config, self._add = config, add
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._shown = False
        self._showing: asyncio.Task[None] | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"{self._config.host}:{self.port}"

    async def start(self) -> None:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        for add in self._add:
            add(server)
        self.port = listen(server, self._config)
        await self._health.set("", _NOT_SERVING)
        self._server = server
        await server.start()
        log.info("health on port %d", self.port)

    def show(self, serving: bool) -> None:
        """Whether this worker can be of use; for the thread of the event loop."""
        if serving != self._shown:
            self._shown = serving
            setting = self._health.set("", _SERVING if serving else _NOT_SERVING)
            self._showing = asyncio.get_running_loop().create_task(setting)

    async def stop(self) -> None:
        """Is waited for also when its caller is cancelled: a cancelled `Server.stop` has crashed the interpreter."""
        if self._server is not None:
            stopping = asyncio.ensure_future(self._server.stop(grace=None))
            self._server = None
            try:
                await asyncio.shield(stopping)
            finally:
                await asyncio.wait({stopping})
