"""The operator's line to a job's scheduler: reads progress, says which pods are there and which are gone."""

from collections.abc import Iterable

import grpc
import grpc.aio
from roll_wire import control_pb2, control_pb2_grpc
from roll_wire.channel import CLIENT_OPTIONS

from roll_operator.plan import Held, Pod, Progress

CALL_SECONDS = 5.0
RECONNECT = {  # a restarted scheduler is wanted at once
    "grpc.initial_reconnect_backoff_ms": 50,
    "grpc.min_reconnect_backoff_ms": 50,
    "grpc.max_reconnect_backoff_ms": 500,
}
CHANNEL_OPTIONS = tuple((dict(CLIENT_OPTIONS) | RECONNECT).items())


class SchedulerLink:
    """Never raises for a scheduler that is away: that is a fact to plan with, not an error."""

    def __init__(
        self, address: str, credentials: grpc.ChannelCredentials | None = None, name: str = ""
    ) -> None:
        """`name` is the one in the scheduler's certificate, where the address is another."""
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        else:
            options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", name))
            self._channel = grpc.aio.secure_channel(address, credentials, options=options)
        self._control = control_pb2_grpc.ControlAsyncStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def progress(self) -> Progress | None:
        try:
            reply = await self._control.GetProgress(
                control_pb2.ProgressRequest(), timeout=CALL_SECONDS
            )
        except grpc.aio.AioRpcError:
            return None
        return read_progress(reply)

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
        try:
            await self._control.SyncPods(message, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError:
            return False
        return True


def read_progress(reply: control_pb2.JobProgress) -> Progress:
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
        samples_per_second=reply.samples_per_second,
        staleness_mean=reply.staleness_mean,
        staleness_max=reply.staleness_max,
        samples=dict(reply.samples),
        dropped=dict(reply.dropped),
        redone=reply.redone,
        tokens=reply.tokens,
        notices=tuple(reply.notices),
        last_progress_at=reply.last_progress_at,
        ledger_lost=reply.ledger_lost,
        held=_held(reply.held) if reply.HasField("held") else None,
        metrics=dict(reply.metrics),
    )


def _held(sample: control_pb2.SampleState) -> Held:
    unit = sample.unit
    return Held(sample.worker, f"{unit.group}/{unit.index}", sample.stage, sample.stage_seconds)
