"""The gRPC server of a worker process: health, and whatever services its role adds (weights).

Invariant: health says SERVING only after the role said so; for inference that is when it holds a
published version, so that a pod that just restarted is not taken for a ready one. Where a kubelet looks for a file, which
cannot ask a server that speaks TLS, the file is there exactly then.
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
        self._mark(False)  # what an earlier process of this pod left
        self._server = server
        await server.start()
        log.info("health on port %d", self.port)

    def show(self, serving: bool) -> None:
        """Whether this worker can be of use; for the thread of the event loop."""
        if serving != self._shown:
            self._shown = serving
            self._mark(serving)
            setting = self._health.set("", _SERVING if serving else _NOT_SERVING)
            self._showing = asyncio.get_running_loop().create_task(setting)

    def _mark(self, serving: bool) -> None:
        path = self._config.ready
        if path is None:
            return
        try:
            path.touch() if serving else path.unlink(missing_ok=True)
        except OSError as error:  # no reason to end: the scheduler knows better who serves
            log.warning("the kubelet is not told that serving is %s: %s", serving, error)

    async def stop(self) -> None:
        """Is waited for also when its caller is cancelled: a cancelled `Server.stop` has crashed the interpreter."""
        if self._server is not None:
            stopping = asyncio.ensure_future(self._server.stop(grace=None))
            self._server = None
            try:
                await asyncio.shield(stopping)
            finally:
                await asyncio.wait({stopping})
