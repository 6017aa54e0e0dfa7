"""One process that answers the operator as the scheduler of every job, as KWOK answers as every kubelet.

The line is the real one: TLS with the job's own certificate (read from its Secret, chosen by the name that the
operator asks for), a token with every call. A connection's job has the workers that the operator told it about;
all of them are ready, and its step rises, so that there is always something to show in the status.

    python schedulers.py ADDRESS URL CA CERTIFICATE KEY     # prints "ready"
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import tempfile
import time
from base64 import b64decode
from typing import Any

import grpc
import grpc.aio
import uvloop
from roll_wire import control_pb2, control_pb2_grpc
from watching import Access, watch

PORT = 7070
STEP_SECONDS = 5.0


class Jobs(control_pb2_grpc.ControlServicer):
    """By connection: each is one job's."""

    def __init__(self) -> None:
        self._workers: dict[str, list[control_pb2.WorkerState]] = {}
        self._began = time.monotonic()

    async def SyncPods(self, request: control_pb2.Pods, context: Any) -> control_pb2.PodsReply:
        self._workers[context.peer()] = [
            control_pb2.WorkerState(pod=p.name, pod_uid=p.uid, connected=True, ready=True)
            for p in request.current
        ]
        return control_pb2.PodsReply()

    async def GetProgress(self, request: Any, context: Any) -> control_pb2.JobProgress:
        workers = self._workers.get(context.peer())
        if workers is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "nobody told me of any pods")
        now = time.monotonic()
        return control_pb2.JobProgress(
            step=int((now - self._began) / STEP_SECONDS),
            steps=1_000_000,
            checkpoint=-1,
            workers=workers,
            samples_per_second=100.0,
            last_progress_at=time.time(),
        )


class Certificates:
    """What each job's scheduler would find in its Secret, by the name that it is asked for."""

    def __init__(self) -> None:
        self._jobs: dict[str, ssl.SSLContext] = {}
        self.front = _context()
        self.front.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        chosen = self._jobs.get((name or "").partition(".")[2])
        if chosen is None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        connection.context = chosen
        return None

    async def follow(self, access: Access) -> None:
        selector = "app.kubernetes.io/managed-by=roll-operator"
        async for secret in watch(access, "/api/v1/secrets", labelSelector=selector):
            self._add(secret)

    def _add(self, secret: dict[str, Any]) -> None:
        metadata, data = secret["metadata"], secret["data"]
        job = f"{metadata['labels']['roll.dev/job']}.{metadata['namespace']}.svc"
        with tempfile.NamedTemporaryFile() as file:
            file.write(b64decode(data["tls.crt"]) + b64decode(data["tls.key"]))
            file.flush()
            context = self._jobs[job] = _context()
            context.load_cert_chain(file.name)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    return context


async def _pump(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(2**16):
            to.write(data)
            await to.drain()
    except OSError:
        pass  # one side is gone: so is the connection
    finally:
        to.close()


async def serve(address: str, *access: str) -> None:
    server = grpc.aio.server()
    control_pb2_grpc.add_ControlServicer_to_server(Jobs(), server)
    inner = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    certificates = Certificates()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", inner)
        await asyncio.gather(_pump(reader, back), _pump(there, writer))

    await asyncio.start_server(connected, address, PORT, ssl=certificates.front, backlog=1024)
    print("ready", flush=True)
    url, authority, certificate, key = access
    await certificates.follow((url, authority, certificate, key))


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]))
