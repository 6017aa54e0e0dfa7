"""The operator's line to a job's scheduler: reads progress, says which pods are there and which are gone."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio
from roll_wire import control_pb2, control_pb2_grpc, credentials
from roll_wire.channel import CLIENT_OPTIONS

from roll_operator.plan import Held, Pod, Progress

CALL_SECONDS = 5.0
RECONNECT = {  # a restarted scheduler is wanted at once
    "grpc.initial_reconnect_backoff_ms": 50,
    "grpc.min_reconnect_backoff_ms": 50,
    "grpc.max_reconnect_backoff_ms": 500,
}
Token = Callable[[], Awaitable[str]]
"""What is shown with a call; empty: it can't be had, and nobody is called."""

CHANNEL_OPTIONS = tuple((dict(CLIENT_OPTIONS) | RECONNECT).items())


class SchedulerLink:
    """Never raises for a scheduler that is away: that is a fact to plan with, not an error."""

    def __init__(
        self, address: str, roots: bytes | None = None, name: str = "", token: Token | None = None
    ) -> None:
        """With `roots`, TLS with whom they vouch for: `name` is the one in the scheduler's certificate, and `token`
        is asked for with every call (gRPC's own way of doing that starts a thread each time)."""
        self._token = token if roots is not None else None
        if roots is None:
            self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        else:
            options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", name))
            trusting = credentials.client(roots)
            self._channel = grpc.aio.secure_channel(address, trusting, options=options)
        self._control = control_pb2_grpc.ControlAsyncStub(self._channel)
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        await self._channel.close()

    async def progress(self) -> Progress | None:
        reply = await self._answer(self._control.GetProgress, control_pb2.ProgressRequest())
        return None if reply is None else read_progress(reply)

    async def sync(
        self, job_uid: str, current: Iterable[Pod], gone: Iterable[str], leader: int | None = None
    ) -> bool:
        """With a `leader`, the term of the operator that leads, `current` is the whole truth."""
        message = control_pb2.Pods(
            job_uid=job_uid,
            current=[
                control_pb2.Pod(name=p.name, uid=p.uid, role=p.role, attempt=p.attempt)
                for p in current
            ],
            gone=list(gone),
            authoritative=leader is not None,
            leader=leader or 0,
        )
        return await self._answer(self._control.SyncPods, message) is not None

    async def _answer(self, method: Any, message: Any) -> Any:
        """None: there was none."""
        token = await self._token() if self._token else None
        if self._closed or token == "":
            return None
        try:
            shown = () if token is None else credentials.bearer(token)
            return await method(message, timeout=CALL_SECONDS, metadata=shown)
        except grpc.aio.AioRpcError:
            return None
        except asyncio.CancelledError:
            # A channel that is closed cancels the calls on their way; who waits for them was not cancelled.
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                return None
            raise


def read_progress(reply: control_pb2.JobProgress, now: float | None = None) -> Progress:
    """`now` is the wall clock's time here."""
    return Progress(
        finished=reply.finished,
        error=reply.error,
        ready=frozenset(w.pod_uid for w in reply.workers if w.connected and w.ready),
        step=reply.step,
        checkpoint=reply.checkpoint if reply.checkpoint >= 0 else None,
        lineage=reply.lineage,
        reward=reply.reward if reply.step > 0 else None,
        validation=(reply.validation_first, reply.validation_last)
        if reply.has_validation
        else None,
        validation_step=reply.validation_step,
        samples_per_second=reply.samples_per_second,
        staleness_mean=reply.staleness_mean,
        staleness_max=reply.staleness_max,
        samples=dict(reply.samples),
        dropped=dict(reply.dropped),
        redone=reply.redone,
        tokens=reply.tokens,
        notices=tuple(reply.notices),
        last_progress_at=_last_progress(reply, now),
        ledger_lost=reply.ledger_lost,
        held=_held(reply.held) if reply.HasField("held") else None,
        metrics=dict(reply.metrics),
    )


def _last_progress(reply: control_pb2.JobProgress, now: float | None) -> float:
    """By the clock here: with the scheduler's, a job whose node's clock is behind would seem to stand still."""
    if not reply.HasField("idle_seconds"):  # a scheduler of the last release
        return reply.last_progress_at
    return (time.time() if now is None else now) - reply.idle_seconds


def _held(sample: control_pb2.SampleState) -> Held:
    unit = sample.unit
    return Held(sample.worker, f"{unit.group}/{unit.index}", sample.stage, sample.stage_seconds)
