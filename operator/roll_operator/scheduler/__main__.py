"""The scheduler's process: `python -m roll_operator.scheduler`, configured by its environment.

Ends with 0 when it is told to stop, with 2 and one line `error: ...` when a user has to act (a port in
use, a disk that is full or read-only), with 1 and such a line when a newer scheduler of the job has taken over or
this one stands still, and with a traceback only for a defect.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import logging
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from roll_api import RLJob
from roll_wire import control_pb2_grpc, session_pb2_grpc, trainer_pb2_grpc
from roll_wire.channel import SERVER_OPTIONS

from roll_operator.scheduler import watchdog
from roll_operator.scheduler.guard import Guard
from roll_operator.scheduler.ledger import LedgerBusy, LedgerError, LedgerTaken, SqliteLedger
from roll_operator.scheduler.place import BadPlace, Place
from roll_operator.scheduler.refusals import Refusals
from roll_operator.scheduler.replay import ReplayHub
from roll_operator.scheduler.service import ControlService, Hub, SessionService, TrainerService
from roll_operator.scheduler.settings import Settings
from roll_operator.scheduler.streams import Streams

log = logging.getLogger("roll_operator.scheduler")


async def serve(job: RLJob, ledger: Path, place: Place) -> None:
    hub = Hub(SqliteLedger(ledger, Settings.from_job(job)))
    guard = Guard(hub.state.roster, place.verifier())
    server = grpc.aio.server(options=SERVER_OPTIONS, interceptors=[guard, Refusals(), Streams()])
    session = SessionService(hub, place.job_uid, guard)
    session_pb2_grpc.add_SessionServicer_to_server(session, server)
    trainer_pb2_grpc.add_TrainerServicer_to_server(TrainerService(hub), server)
    control = ControlService(hub, place.job_uid)
    control_pb2_grpc.add_ControlServicer_to_server(control, server)
    alive = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(alive, server)
    await alive.set("", health_pb2.HealthCheckResponse.SERVING)
    await _run(server, place, hub, local=control)


async def serve_replay(job: RLJob, ledger: Path, place: Place) -> None:
    hub = ReplayHub(ledger, Settings.from_job(job))
    server = grpc.aio.server(options=SERVER_OPTIONS, interceptors=[Refusals(), Streams()])
    session_pb2_grpc.add_SessionServicer_to_server(hub.session, server)
    trainer_pb2_grpc.add_TrainerServicer_to_server(hub, server)
    await _run(server, place, None)


async def _run(
    server: grpc.aio.Server, place: Place, hub: Hub | None, local: ControlService | None = None
) -> None:
    """Serve until SIGTERM, or until the ledger can't be written."""
    place.open_port(server)
    await server.start()
    beside = await place.serve_socket(local) if local else None
    log.info("listening on %s%s", place.listen, " with TLS" if place.tls else "")
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    waiting: list[asyncio.Task[Any]] = [asyncio.create_task(stop.wait())]
    if hub is not None:
        waiting.append(asyncio.create_task(hub.run(), name="pump"))
        watchdog.watch(lambda: hub.turns)
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await server.stop(grace=0.2)
    if beside is not None:
        await beside.stop(grace=None)
    for task in waiting:
        task.cancel()
    for task in done:
        task.result()


# glibc's names for what it keeps of freed memory, and what it takes from the system by itself.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def settle_memory() -> None:
    """Messages of 1 MB come and go: keep their memory, and look for cycles among many objects only.

    A group and its samples refer to each other, so the collector is needed; but each of its runs looks at
    everything that is in flight.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, 64 << 20)
        libc.mallopt(M_TRIM_THRESHOLD, 256 << 20)


def main() -> int:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    env = os.environ
    missing = [n for n in ("ROLL_SPEC", "ROLL_STORAGE", "ROLL_LISTEN") if not env.get(n)]
    if missing:
        print(f"error: set {', '.join(missing)}: the operator does so", file=sys.stderr)
        return 2
    settle_memory()
    ledger = Path(env["ROLL_STORAGE"]) / "ledger"
    try:
        job = RLJob.from_json(Path(env["ROLL_SPEC"]).read_text())
        place = Place.from_env(env)
        if "--replay" in sys.argv[1:]:
            uvloop.run(serve_replay(job, ledger, place))
        else:
            uvloop.run(serve(job, ledger, place))
    except BadPlace as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except LedgerTaken as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (LedgerError, OSError, sqlite3.Error) as error:
        if not _for_the_user(error):
            raise
        print(f"error: {_explain(error, ledger)}", file=sys.stderr)
        return 2
    return 0


def _for_the_user(error: Exception) -> bool:
    """Whether somebody has to act; anything else a restart may mend."""
    if isinstance(error, OSError):
        return error.errno in (
            errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.ENOENT,
        )  # fmt: skip
    locked = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
    return not (locked or isinstance(error, LedgerBusy))


def _explain(error: Exception, ledger: Path) -> str:
    if isinstance(error, LedgerError):
        return str(error)
    return (
        f"the ledger in {ledger} cannot be written: {error}. Nothing that was acknowledged is lost; "
        "make room or make it writable, then run the same command again"
    )


if __name__ == "__main__":
    sys.exit(main())
