"""Between protobuf and plain data: what a message says, and what is said in a message."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from roll_wire.session_pb2 import (
    Ack,
    Answer,
    Assign,
    Cancel,
    Drain,
    Failure,
    FromWorker,
    Hello,
    LeaseId,
    Policy,
    PolicyVersion,
    Refused,
    Task,
    ToWorker,
    Welcome,
)
from roll_wire.session_pb2 import Unit as WireUnit

from roll_operator.scheduler import flow, presence
from roll_operator.scheduler.assignment import Worker
from roll_operator.scheduler.lifecycle import Lease, Stage, Unit, lease_id, split_lease
from roll_operator.scheduler.presence import Greeting, HeldLease
from roll_operator.scheduler.state import JobState, Out, PayloadStore

log = logging.getLogger(__name__)

MAX_ITEMS = 64
MAX_BYTES = 1 << 20
VERDICTS = {flow.STORED: Ack.STORED, flow.DUPLICATE: Ack.DUPLICATE, flow.FENCED: Ack.FENCED}
CAUSES = {
    Failure.INFRASTRUCTURE: "infrastructure",
    Failure.TIMEOUT: "timeout",
    Failure.INPUT: "input",
    Failure.RETURNED: "returned",
    Failure.REPLAY: "replay",
}


def greeting_of(hello: Hello) -> Greeting:
    has_version = hello.HasField("version")
    return Greeting(
        worker=f"{hello.pod_uid}/{hello.incarnation}",
        pod=hello.pod,
        pod_uid=hello.pod_uid,
        role=hello.role,
        pool=hello.pool,
        credits=hello.credits,
        version=hello.version.number if has_version else None,
        lineage=hello.version.lineage if has_version else None,
        held=[
            HeldLease(
                h.unit.group,
                h.unit.index,
                lease_id(h.lease.term, h.lease.number),
                h.stage,
                h.turn,
                h.resident,
            )
            for h in hello.held
        ],
        rank=hello.rank,
        world=hello.world or 1,
        attempt=hello.attempt,
        data={d.split: (d.rows, d.content_hash) for d in hello.data},
        address=hello.address,
    )


def handle(state: JobState, worker: Worker, message: FromWorker, now: float) -> None:
    """One message of a welcomed worker."""
    presence.seen(state, worker, now)
    match message.WhichOneof("message"):
        case "results":
            for item in message.results.items:
                _result(state, worker, item, now)
        case "failures":
            for failure in message.failures.items:
                lease = failure.lease
                flow.failure(
                    state,
                    worker,
                    group=failure.unit.group,
                    index=failure.unit.index,
                    lease=lease_id(lease.term, lease.number),
                    cause=CAUSES.get(failure.kind, "infrastructure"),
                    message=failure.message,
                    now=now,
                )
        case "progress":
            for part in message.progress.items:
                flow.progress(
                    state,
                    worker,
                    lease=lease_id(part.lease.term, part.lease.number),
                    tokens=part.tokens,
                    now=now,
                    partial=part.partial,
                    partial_tokens=part.partial_tokens,
                    oldest=part.oldest.number if part.HasField("oldest") else None,
                    newest=part.newest.number if part.HasField("newest") else None,
                )
        case "credit":
            presence.credit(state, worker, message.credit.credits)
        case "holding":
            version = message.holding.version
            presence.holding(state, worker, version.lineage, version.number)
        case "call":
            # Stages called by a lease holder are on the wire, and served from a later version on.
            state.out.answers.append((worker.id, message.call.id))
        case "ping":
            pass
        case other:
            log.warning(
                "%s sent a message that this scheduler does not know: %s", worker.pod, other
            )


def _result(state: JobState, worker: Worker, item: Any, now: float) -> None:
    unit, lease, tokens = item.unit, item.lease, item.tokens
    flow.result(
        state,
        worker,
        group=unit.group,
        index=unit.index,
        lease=lease_id(lease.term, lease.number),
        stage=item.stage,
        turn=item.turn,
        payload=item.payload,
        now=now,
        tokens=tokens,
        oldest=item.oldest.number if tokens and item.HasField("oldest") else None,
        newest=item.newest.number if tokens and item.HasField("newest") else None,
        lineage=item.oldest.lineage if tokens else None,
        reward=item.reward if item.has_reward else None,
        done=item.done,
        resident=item.resident,
        base=item.base_tokens,
    )


def payload_of(store: PayloadStore, unit: Unit) -> bytes:
    """The trajectory so far: what the group shares, then the unit's own parts."""
    parts = unit.parts
    lead = unit.group.lead
    if lead is not None and lead is not unit:
        parts = lead.parts + parts
    if len(parts) == 1:
        return store.read(parts[0].ref)
    return b"".join([store.read(part.ref) for part in parts])


def outgoing(state: JobState, out: Out) -> Iterator[tuple[str, ToWorker]]:
    """Messages in the order in which a worker should read them."""
    for worker, (reason, message) in out.refused.items():
        yield worker, ToWorker(refused=Refused(reason=reason, message=message))
    for worker, (fenced, evicted) in out.welcomes.items():
        yield (
            worker,
            ToWorker(
                welcome=Welcome(
                    term=state.term,
                    trainer_term=state.trainer.term,
                    lineage=state.lineage,
                    fenced=[_lease(x) for x in fenced],
                    evicted=[WireUnit(group=g, index=i) for g, i in evicted],
                )
            ),
        )
    for worker, acks in out.acks.items():
        for first in range(0, len(acks), 1000):
            chunk = acks[first : first + 1000]
            yield (
                worker,
                ToWorker(
                    ack=Ack(
                        leases=[_lease(x) for x, _ in chunk],
                        verdicts=[VERDICTS[v] for _, v in chunk],
                    )
                ),
            )
    for worker, publication in out.policies.items():
        version = PolicyVersion(lineage=publication.lineage, number=publication.number)
        yield (
            worker,
            ToWorker(
                policy=Policy(
                    version=version,
                    manifest_digest=publication.digest,
                    locations=publication.locations,
                )
            ),
        )
    for worker in out.cancels.keys() | out.evict.keys():
        yield (
            worker,
            ToWorker(
                cancel=Cancel(
                    leases=[_lease(x) for x in out.cancels.get(worker, ())],
                    episodes=[WireUnit(group=g, index=i) for g, i in out.evict.get(worker, ())],
                )
            ),
        )
    for worker, leases in out.assign.items():
        for assign in _assignments(state, leases):
            yield worker, ToWorker(assign=assign)
    for worker, call in out.answers:
        yield worker, ToWorker(answer=Answer(id=call, error="calls are not served yet"))
    for worker, reason in out.drains.items():
        yield worker, ToWorker(drain=Drain(reason=reason))


def _assignments(state: JobState, leases: Iterable[Lease]) -> Iterator[Assign]:
    assign, size = Assign(), 0
    no_progress = int(state.settings.no_progress * 1000)
    for lease in leases:
        unit = lease.unit
        if unit.lease is not lease:
            continue  # revoked before it was sent
        group = unit.group
        term, number = split_lease(lease.id)
        payload = b"" if lease.stage == Stage.RESET else payload_of(state.store, unit)
        generates = lease.stage == Stage.GENERATE
        assign.items.append(
            Task(
                unit=WireUnit(group=group.id, index=unit.index),
                lease=LeaseId(term=term, number=number),
                stage=lease.stage,
                turn=lease.turn,
                attempt=unit.failures + 1,
                min_version=state.min_version(group) if generates else 0,
                seed=state.sampling_seed(unit) if generates else state.env_seed(group),
                position=group.position,
                validation=group.validation is not None,
                kept_tokens=unit.kept,
                payload=payload,
                no_progress_ms=no_progress,
            )
        )
        size += len(payload)
        if len(assign.items) >= MAX_ITEMS or size >= MAX_BYTES:
            yield assign
            assign, size = Assign(), 0
    if assign.items:
        yield assign


def _lease(lease: int) -> LeaseId:
    term, number = split_lease(lease)
    return LeaseId(term=term, number=number)
