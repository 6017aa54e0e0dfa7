"""Between protobuf and plain data: what a message says, and what is said in a message."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from roll_wire.session_pb2 import (
    Ack,
    Answer,
    Cancel,
    Drain,
    Failure,
    FromWorker,
    Hello,
    LeaseId,
    Policy,
    PolicyVersion,
    Refused,
    Result,
    Task,
    ToWorker,
    Welcome,
)
from roll_wire.session_pb2 import Unit as WireUnit

from roll_operator.scheduler import flow, packing, presence
from roll_operator.scheduler.assignment import Worker
from roll_operator.scheduler.lifecycle import Lease, Ref, Stage, Unit, lease_id, split_lease
from roll_operator.scheduler.presence import Greeting, HeldLease
from roll_operator.scheduler.state import JobState, Out

log = logging.getLogger(__name__)

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


def _result(state: JobState, worker: Worker, item: Result, now: float) -> None:
    unit, lease, tokens = item.unit, item.lease, item.tokens
    oldest = newest = lineage = None
    if tokens and item.HasField("oldest") and item.HasField("newest"):
        sampled = item.oldest
        oldest, newest, lineage = sampled.number, item.newest.number, sampled.lineage
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
        oldest=oldest,
        newest=newest,
        lineage=lineage,
        reward=item.reward if item.has_reward else None,
        done=item.done,
        resident=item.resident,
        base=item.base_tokens,
    )


def refs_of(unit: Unit) -> list[Ref]:
    """Where the pieces of its trajectory lie: what the group shares, then the unit's own parts."""
    refs = [part.ref for part in unit.parts]
    lead = unit.group.lead
    if lead is not None and lead is not unit:
        refs[:0] = [part.ref for part in lead.parts]
    return refs


def outgoing(state: JobState, out: Out) -> Iterator[tuple[str, bytes]]:
    """Serialised messages in the order in which a worker should read them."""
    for worker, message in _before_tasks(state, out):
        yield worker, message.SerializeToString()
    for worker, leases in out.assign.items():
        for assign in packing.assigns(_tasks(state, leases)):
            yield worker, assign
    for worker, call in out.answers:
        answer = Answer(id=call, error="calls are not served yet")
        yield worker, ToWorker(answer=answer).SerializeToString()
    for worker, reason in out.drains.items():
        yield worker, ToWorker(drain=Drain(reason=reason)).SerializeToString()


def _before_tasks(state: JobState, out: Out) -> Iterator[tuple[str, ToWorker]]:
    for worker, (reason, message) in out.refused.items():
        yield worker, ToWorker(refused=Refused(reason=reason, message=message))
    for worker, (fenced, evicted) in out.welcomes.items():
        yield (
            worker,
            ToWorker(
                welcome=Welcome(
                    term=state.term,
                    trainer_term=state.trainer.term,
                    ledger=state.ledger,
                    lineage=state.lineage,
                    fenced=[_lease(x) for x in fenced],
                    evicted=[WireUnit(group=g, index=i) for g, i in evicted],
                )
            ),
        )
    for worker, acks in out.acks.items():
        for first in range(0, len(acks), 1000):
            yield worker, _ack(acks[first : first + 1000])
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


def _ack(acks: Iterable[tuple[int, int]]) -> ToWorker:
    message = ToWorker()
    leases, verdicts = message.ack.leases, message.ack.verdicts
    for lease, verdict in acks:
        term, number = split_lease(lease)
        leases.add(term=term, number=number)
        verdicts.append(VERDICTS[verdict])
    return message


def _tasks(state: JobState, leases: Iterable[Lease]) -> Iterator[packing.Item]:
    # One message object serves for all: every field but the last is set anew for each task.
    task = Task(no_progress_ms=int(state.settings.no_progress * 1000))
    wire_unit, wire_lease = task.unit, task.lease
    read = state.store.read
    for lease in leases:
        unit = lease.unit
        if unit.lease is not lease:
            continue  # revoked before it was sent
        group = unit.group
        stage = lease.stage
        wire_unit.group, wire_unit.index = group.id, unit.index
        wire_lease.term, wire_lease.number = split_lease(lease.id)
        task.stage = stage
        task.turn = lease.turn
        task.attempt = unit.failures + 1
        if stage == Stage.GENERATE:
            task.min_version = state.min_version(group)
            task.seed = state.sampling_seed(unit)
        else:
            task.min_version = 0
            task.seed = state.env_seed(group)
        task.position = group.position
        task.validation = group.validation is not None
        task.kept_tokens = unit.kept
        refs = [] if stage == Stage.RESET else refs_of(unit)
        yield task.SerializeToString(), [read(ref) for ref in refs]


def _lease(lease: int) -> LeaseId:
    term, number = split_lease(lease)
    return LeaseId(term=term, number=number)
