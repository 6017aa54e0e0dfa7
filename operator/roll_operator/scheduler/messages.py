"""Between protobuf and plain data: what a message says, and what is said in a message."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from roll_wire import PROTOCOL, payloads
from roll_wire.columns import (
    check_sizes,
    filled,
    lease_number,
    lease_of,
    unless_zero,
)
from roll_wire.session_pb2 import (
    Ack,
    Answer,
    Assign,
    Cancel,
    Drain,
    Failure,
    Hello,
    Policy,
    PolicyVersion,
    Refused,
    Results,
    ToWorker,
    Welcome,
)
from roll_wire.session_pb2 import Unit as WireUnit

from roll_operator.scheduler import arrivals, failures, flow, packing, presence
from roll_operator.scheduler.assignment import Worker
from roll_operator.scheduler.lifecycle import GENERATE, RESET, Lease, Place, Stage, Unit
from roll_operator.scheduler.presence import Greeting, HeldLease
from roll_operator.scheduler.state import JobState, Out, Payload, PayloadStore

log = logging.getLogger(__name__)

STAGES: dict[str, str] = {stage: stage for stage in Stage}
CAUSES = {
    Failure.INFRASTRUCTURE: "infrastructure",
    Failure.TIMEOUT: "timeout",
    Failure.INPUT: "input",
    Failure.RETURNED: "returned",
    Failure.REPLAY: "replay",
}


Pieces = tuple[
    Sequence[Place], Sequence[Place]
]  # of a trajectory: what its group shares, and its own


def greeting_of(hello: Hello) -> Greeting:
    has_version = hello.HasField("version")
    return Greeting(
        worker=f"{hello.pod_uid}/{hello.incarnation}/{hello.rank}",
        pod=hello.pod,
        pod_uid=hello.pod_uid,
        role=hello.role,
        pool=hello.pool,
        credits=hello.credits,
        address=hello.address,
        version=hello.version.number if has_version else None,
        lineage=hello.version.lineage if has_version else None,
        held=[
            HeldLease(
                h.unit.group,
                h.unit.index,
                lease_number(h.lease),
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
        protocol=hello.protocol,
    )


def handle(state: JobState, worker: Worker, data: bytes, now: float) -> None:
    """One message of a welcomed worker, as it came."""
    presence.seen(state, worker, now)
    message, view = payloads.read(data)
    if isinstance(message, Results):
        _results(state, worker, message, view, now)
        return
    match message.WhichOneof("message"):
        case "failures":
            for failure in message.failures.items:
                failures.failure(
                    state,
                    worker,
                    group=failure.unit.group,
                    index=failure.unit.index,
                    lease=lease_number(failure.lease),
                    cause=CAUSES.get(failure.kind, "infrastructure"),
                    message=failure.message,
                    now=now,
                )
        case "progress":
            for part in message.progress.items:
                flow.progress(
                    state,
                    worker,
                    lease=lease_number(part.lease),
                    tokens=part.tokens,
                    now=now,
                    partial=part.partial,
                    partial_tokens=part.partial_tokens,
                    oldest=part.oldest.number if part.HasField("oldest") else None,
                    newest=part.newest.number if part.HasField("newest") else None,
                    waiting=part.waiting,
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


def _results(
    state: JobState, worker: Worker, results: Results, view: memoryview, now: float
) -> None:
    try:
        arrived = _arrived(results, view)
    except ValueError as error:
        # Nothing of it can be believed; sent again after a reconnect it would be no better.
        why = f"the results of {worker.pod} do not fit together: {error}"
        log.warning("refused: %s", why)
        state.out.refused[worker.id] = "protocol", why
        return
    arrivals.results(state, worker, arrived, now)


def _arrived(results: Results, view: memoryview) -> arrivals.Arrived:
    """ValueError where columns do not fit together."""
    count, sizes = len(results.leases), list(results.sizes)
    check_sizes(sizes, len(view))
    return arrivals.Arrived(
        stage=STAGES.get(results.stage, results.stage),
        groups=filled(results.groups, count, 0),
        indices=filled(results.indices, count, 0),
        leases=list(results.leases),
        turns=filled(results.turns, count, 0),
        sizes=filled(sizes, count, 0),
        payloads=view,
        tokens=filled(results.tokens, count, 0),
        lineages=filled(results.lineages, count, 0),
        oldest=filled(results.oldest, count, 0),
        newest=filled(results.newest, count, 0),
        has_reward=filled(results.has_reward, count, False),
        rewards=filled(results.rewards, count, 0.0),
        done=filled(results.done, count, False),
        resident=filled(results.resident, count, False),
        base=filled(results.base_tokens, count, 0),
    )


def outline(units: Iterable[Unit]) -> tuple[list[int], list[Pieces]]:
    """The size of each unit's trajectory, and where its pieces lie."""
    sizes: list[int] = []
    pieces: list[Pieces] = []
    for unit in units:
        lead = unit.group.lead
        if lead is None or lead is unit:
            sizes.append(unit.size)
            pieces.append(((), unit.places))
        else:
            sizes.append(lead.size + unit.size)
            pieces.append((lead.places, unit.places))
    return sizes, pieces


def read_pieces(store: PayloadStore, pieces: Iterable[Pieces]) -> list[Payload]:
    """What a group shares is read once for all its samples that follow each other."""
    found: list[Payload] = []
    of: Sequence[Place] = ()
    prompt: list[Payload] = []
    for shared, own in pieces:
        if shared is not of:
            of, prompt = shared, [store.read(*place) for place in shared]
        found += prompt
        for block, first, length in own:
            data = block.data
            if data is None:
                data, first = store.read(block, first, length), 0
            found.append(data[first : first + length])
    return found


def outgoing(state: JobState, out: Out) -> Iterator[tuple[str, bytes]]:
    """Serialised messages in the order in which a worker should read them."""
    for worker, message in _before_tasks(state, out):
        yield worker, message.SerializeToString()
    for worker, leases in out.assign.items():
        for assign in _tasks(state, leases):
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
                    protocol=PROTOCOL,
                    lineage=state.lineage,
                    fenced=[lease_of(x) for x in fenced],
                    evicted=[WireUnit(group=g, index=i) for g, i in evicted],
                )
            ),
        )
    for worker, acks in out.acks.items():
        for first in range(0, len(acks.leases), 1000):
            leases, verdicts = (
                acks.leases[first : first + 1000],
                acks.verdicts[first : first + 1000],
            )
            yield worker, ToWorker(ack=Ack(leases=leases, verdicts=verdicts))
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
                    leases=[lease_of(x) for x in out.cancels.get(worker, ())],
                    episodes=[WireUnit(group=g, index=i) for g, i in out.evict.get(worker, ())],
                )
            ),
        )


def _tasks(state: JobState, leases: Iterable[Lease]) -> Iterator[bytes]:
    """Assigns, in the order of the leases that were not revoked meanwhile."""
    held = [lease for lease in leases if lease.unit.lease is lease]
    for stage, together in groupby(held, key=attrgetter("stage")):
        of_stage = list(together)
        sizes, pieces = outline([lease.unit for lease in of_stage])
        if stage == RESET:  # of an episode that begins again, too
            sizes, pieces = [0] * len(of_stage), []
        for first, last in packing.chunks(sizes):
            columns = _assign(state, stage, of_stage[first:last])
            columns.sizes.extend(sizes[first:last])
            of_chunk = read_pieces(state.store, pieces[first:last])
            yield payloads.write(columns, of_chunk, within=payloads.ASSIGN)


def _assign(state: JobState, stage: str, leases: list[Lease]) -> Assign:
    """All but the payloads."""
    units = [lease.unit for lease in leases]
    groups = [unit.group for unit in units]
    assign = Assign(
        stage=stage,
        groups=[group.id for group in groups],
        indices=[unit.index for unit in units],
        leases=[lease.id for lease in leases],
        turns=unless_zero([lease.turn for lease in leases]),
        attempts=[unit.failures + 1 for unit in units],
        positions=[group.position for group in groups],
        validation=unless_zero([group.validation is not None for group in groups]),
        kept_tokens=unless_zero([unit.kept for unit in units]),
        no_progress_ms=int(state.settings.no_progress * 1000),
    )
    if stage == GENERATE:
        floors = {group: state.min_version(group) for group in set(groups)}
        assign.min_versions.extend([floors[group] for group in groups])
        sampling = {group: state.sampling_seeds(group) for group in floors}
        assign.seeds.extend([sampling[unit.group][unit.index] for unit in units])
    else:
        seeds = {group: state.env_seed(group) for group in set(groups)}
        assign.seeds.extend([seeds[group] for group in groups])
    return assign
