"""Serves versions from folders to whoever asks, by the trainer and by every worker that holds them.

No torch here, and no lock: a version that is removed while it is streamed stays readable to the end.
Between pods a version is given to who knows its digest: the scheduler announces it to the job's own pods only.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from roll_wire.weights_pb2 import Chunk, FetchRequest, Manifest, ManifestRequest
from roll_wire.weights_pb2_grpc import WeightsServicer as Base
from roll_wire.weights_pb2_grpc import add_WeightsServicer_to_server

from roll_workers.weights.manifest import CorruptWeights, read, version_name

CHUNK = 1 << 20


class WeightsServicer(Base):
    """Looks a version up in each folder in turn."""

    def __init__(self, *folders: Path, closed: bool = False) -> None:
        """`closed`: only to who knows the digest."""
        self._folders, self._closed = folders, closed

    async def GetManifest(
        self, request: ManifestRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Manifest:
        _, manifest = await self._find(request, context)
        return manifest

    async def Fetch(
        self, request: FetchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Chunk]:
        folder, manifest = await self._find(request, context)
        # Only names in the manifest: a request can't reach any other file.
        if request.file not in [file.name for file in manifest.files]:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no file {request.file}")
        try:
            file = (folder / request.file).open("rb")
        except FileNotFoundError:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"{folder.name} was removed")
        with file:
            file.seek(request.offset)
            # In a thread: a slow disk must not stop the loop that decodes tokens.
            while data := await asyncio.to_thread(file.read, CHUNK):
                yield Chunk(data=data)

    async def _find(
        self,
        request: ManifestRequest | FetchRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> tuple[Path, Manifest]:
        name = version_name((request.version.lineage, request.version.number))
        for folder in self._folders:
            try:
                manifest = await asyncio.to_thread(read, folder / name)
            except (FileNotFoundError, CorruptWeights):
                continue
            if self._closed and not _same(request.digest, manifest.digest):
                await context.abort(
                    grpc.StatusCode.PERMISSION_DENIED, f"weights {name} have another digest"
                )
            return folder / name, manifest
        await context.abort(grpc.StatusCode.NOT_FOUND, f"weights {name} are not here")
        raise AssertionError("abort raises")


def _same(told: str, digest: str) -> bool:
    return hmac.compare_digest(told.encode(), digest.encode())


def serve_weights(*folders: Path, closed: bool = False) -> Callable[[grpc.aio.Server], None]:
    """For `Services` and `TrainerSession`: adds the service to the server of this process."""

    def add(server: grpc.aio.Server) -> None:
        add_WeightsServicer_to_server(WeightsServicer(*folders, closed=closed), server)

    return add
