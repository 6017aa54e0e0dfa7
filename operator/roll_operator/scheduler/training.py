"""The trainer's side: terms, rewinding, batches, versions, checkpoints.

Invariant: only the newest complete set of ranks acts; a call with an older term is `Fenced` and
changes nothing. A sample is in at most one committed step of a lineage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from roll_operator.scheduler import groups, validation
from roll_operator.scheduler.assignment import Worker
from roll_operator.scheduler.lifecycle import (
    BATCH_TRANSITIONS,
    BatchState,
    Cause,
    GroupState,
    IllegalTransition,
    move,
)
from roll_operator.scheduler.state import (
    Batch,
    CheckpointRow,
    JobState,
    Publication,
)

# Versions whose locations are remembered; older ones are history.
REMEMBERED_VERSIONS = 16
STREAM = "grpc:"  # before the address of a process that serves weights
PEERS = 3  # of these, beside the trainer


class Fenced(RuntimeError):
    """The caller is not, or no longer, the trainer."""


class OutOfOrder(RuntimeError):
    """A call that does not fit where the trainer stands."""


def check_term(state: JobState, term: int) -> None:
    if term != state.trainer.term or term == 0:
        raise Fenced(f"trainer term {term} is not the current one ({state.trainer.term})")


def rewind(state: JobState, term: int, step: int, now: float, *, lost: bool = False) -> int:
    """The trainer starts from checkpoint `step`: later steps are batched again. Returns the lineage.

    `lost`: an earlier ledger gave out versions from `step` on, which this one does not know of.
    """
    check_term(state, term)
    if state.finished:
        raise Fenced(f"the job has ended ({state.finished}): nothing is trained again")
    if lost or step < state.folded or step > state.formed:
        _open_lineage(state, step, now)
    else:
        for batch in state.batches.values():
            if batch.step > step and batch.state is not BatchState.BATCHED:
                _move_batch(state, batch, BatchState.BATCHED)
        state.reported = step
        # What comes again is published again; until then it would only take the place of what is there.
        state.versions = {n: p for n, p in state.versions.items() if n <= step}
        _take_back(state, step + 1)
        passed_over = [c for c in state.checkpoints if c.step > step]
        for checkpoint in passed_over:
            _drop_checkpoint(state, checkpoint)
        if passed_over:
            state.notices["checkpoint"] = (
                f"the checkpoint of step {passed_over[-1].step} is not intact: "
                f"training goes on from the one of step {step}"
            )
    state.asked = 0
    state.rewound = term
    state.writes.meta["progress"] = {}  # to be written, whatever else is
    return state.lineage


def _open_lineage(state: JobState, step: int, now: float) -> None:
    """The recorded batches cannot serve a start from `step`: begin anew there."""
    cancel_live(state, now, Cause.LINEAGE)
    for batch in [b for b in state.batches.values() if b.step > step]:
        _move_batch(state, batch, BatchState.ABANDONED)
        del state.batches[batch.step]
    if step < state.folded:
        state.writes.abandoned.append((state.lineage, step))
        state.count("abandoned", state.archive.samples_between(step, state.folded))
    for checkpoint in [c for c in state.checkpoints if c.step > step]:
        _drop_checkpoint(state, checkpoint)
    state.lineage += 1
    if step > state.formed:  # a ledger that knows less than the trainer: these steps stay unknown
        state.writes.meta[f"skipped.{state.lineage}"] = [state.formed + 1, step]
        state.folded = step
    state.formed = state.reported = step
    state.folded = min(state.folded, step)
    state.published = None
    state.versions = {}
    state.filtered = {}
    state.ending = ""
    for worker in state.pool("policy").workers.values():
        worker.version = worker.announced = None
        state.pool("policy").offer(worker)
    state.notices["lineage"] = f"training starts again from step {step} as lineage {state.lineage}"


def abandon_after(state: JobState, step: int) -> None:
    """Batches beyond the last step of a job that was given fewer of them are not trained."""
    for batch in [b for b in state.batches.values() if b.step > step]:
        _move_batch(state, batch, BatchState.ABANDONED)
        del state.batches[batch.step]
        state.count(f"editions.{state.lineage}.{batch.step}")
    state.formed = min(state.formed, step)


def go_on(state: JobState, now: float) -> None:
    """A finished job was given more steps, or one that ends for want of groups another filter: no budget is spent.

    A trainer that came back at a checkpoint, and was to stop there, leaves a newer version without its batch. What is
    sampled with it would be newer than its step allows: a new lineage begins.
    """
    state.finished = state.ending = ""
    state.filtered = {}
    state.writes.meta["progress"] = {}  # to be written, whatever else is
    if state.published is not None and state.published > state.formed:
        _open_lineage(state, state.reported, now)
        _dismiss(state)


def cancel_live(state: JobState, now: float, cause: Cause) -> None:
    validation.abandon(state, now, cause)
    for group in list(state.groups.values()):
        groups.end(state, group, GroupState.CANCELLED, cause, now)


def _move_batch(state: JobState, batch: Batch, to: BatchState) -> None:
    if to not in BATCH_TRANSITIONS[batch.state]:
        raise IllegalTransition(f"batch {batch.step}: {batch.state.name} -> {to.name}")
    if to is BatchState.TRAINED:
        state.count("tokens", batch.tokens)
    elif (
        batch.state in (BatchState.TRAINED, BatchState.COMMITTED) and to is not BatchState.COMMITTED
    ):
        state.count("tokens", -batch.tokens)
    if to is BatchState.ABANDONED:
        state.count("abandoned", batch.samples)
    batch.state = to
    state.record_batch(batch)


def acquire(state: JobState, term: int, step: int, now: float) -> Batch | None:
    """The recorded batch, or None while it is not complete. Raises when there will be none."""
    check_term(state, term)
    if step > state.settings.steps or step > state.reported + 1:
        raise OutOfOrder(
            f"batch {step} was asked for, but step {state.reported} is the last trained"
        )
    batch = state.batches.get(step)
    if batch is None:
        state.form_due = state.form_due or state.asked != step
        state.asked = step
        return None
    if batch.acquired_term != term:
        if batch.attempts >= state.settings.max_batch_attempts:
            _poison(state, batch, now)
            return None
        batch.attempts += 1
        batch.acquired_term = term
        state.record_batch(batch)
    return batch


def no_longer_asked(state: JobState, term: int, step: int) -> None:
    """Whoever waited for the batch has gone: formed now it would count as an attempt, and nobody would be handed it."""
    if term == state.trainer.term and state.asked == step:
        state.asked = 0


def _poison(state: JobState, batch: Batch, now: float) -> None:
    """The batch ended its trainer time and again: it fails, and its step is formed anew."""
    step = batch.step
    state.notices["poison"] = (
        f"batch {step} ended the trainer {batch.attempts} times and is not trained"
    )
    if step != state.formed or (state.published is not None and state.published >= step):
        # Later versions exist: new samples would be newer than the step allows. A trainer has to
        # start again to publish its version in the new lineage.
        _open_lineage(state, state.reported, now)
        _dismiss(state)
        raise Fenced(f"batch {step} is poison: training goes on as lineage {state.lineage}")
    for group in batch.groups or state.archive.groups_of(batch):
        state.count(f"failed.{Cause.POISON}", len(group.kept))
        move(group, GroupState.FAILED)
        group.cause = Cause.POISON
        group.ended_step, group.ended = step, now
        group.seal = groups.seal(group)
        state.touch(group)
    _move_batch(state, batch, BatchState.POISON)
    del state.batches[step]
    state.count(f"editions.{state.lineage}.{step}")
    state.formed = step - 1
    state.asked = step
    state.form_due = True


def _dismiss(state: JobState) -> None:
    """End the trainer's term durably, so that it is fenced also if it never hears this answer."""
    seat = state.trainer
    seat.term, seat.members = seat.term + 1, {}
    state.asked = 0
    state.writes.meta["trainer"] = [seat.term, seat.attempt, seat.world, seat.members]


def report(state: JobState, term: int, step: int, metrics: str, now: float) -> None:
    check_term(state, term)
    if step <= state.reported:
        return
    batch = state.batches.get(step)
    if step != state.reported + 1 or batch is None:
        raise OutOfOrder(f"step {step} was reported after step {state.reported}")
    batch.attempts = 0
    _move_batch(state, batch, BatchState.TRAINED)
    state.trained += batch.groups or []
    batch.groups = None  # whoever asks again gets them from the ledger
    state.reported = step
    state.last_progress = now
    state.metrics = metrics
    state.writes.steps.append((state.lineage, step, term, metrics, now))


def publish(state: JobState, term: int, publication: Publication) -> None:
    """Make a version fetchable, or fetchable again. The highest one never goes back."""
    check_term(state, term)
    number = publication.number
    if publication.lineage != state.lineage:
        raise Fenced(f"version {number} of lineage {publication.lineage} is not current")
    if number > state.reported:
        raise OutOfOrder(f"version {number} was published before step {number} was reported")
    if state.versions.get(number) != publication:
        _take_back(state, number, number)
    state.versions[number] = publication
    for old in sorted(state.versions)[:-REMEMBERED_VERSIONS]:
        del state.versions[old]
    state.writes.versions.append(
        (state.lineage, number, term, publication.digest, "\n".join(publication.locations))
    )
    state.announce_due = True
    if term != state.vouched_term:
        state.vouched_term, state.vouched_from = term, number
    if state.published is None or number > state.published:
        state.published = number
        validation.schedule(state, number)


def _take_back(state: JobState, first: int, last: float = math.inf) -> None:
    """Whoever was told of one of these versions and does not hold it would look for weights that are gone."""
    state.announce_due = True
    for worker in state.pool("policy").workers.values():
        told, holds = worker.announced, worker.version
        if told is not None and first <= told <= last and (holds is None or holds < told):
            worker.announced = None


def announce(state: JobState) -> None:
    """Tell each policy worker of the newest version it should move to.

    Not of one that a trainer published before it died and was set back: its weights may be gone with it, and
    they come again, one by one, as steps are trained again.
    """
    if state.published is None or not state.announce_due:
        return
    state.announce_due = False
    newest, validated = min(state.published, state.reported), validation.generating(state)
    held = None if validated is None else validated.version
    workers = [w for w in state.pool("policy").workers.values() if w.connected]
    holders: dict[int, list[str]] = {}
    for place, worker in enumerate(workers):
        target = newest
        if held is not None and worker.version is not None and worker.version <= held:
            # A validated version that is no longer fetchable is left behind, and its validation moves on. So is one
            # that an earlier trainer published and this one, which came back beyond it, never will.
            kept = max(newest - state.settings.keep_versions + 1, state.vouched_from)
            fetchable = kept <= held <= newest
            target = held if worker.version == held or fetchable else target
        if target in state.versions and (worker.announced is None or target > worker.announced):
            worker.announced = target
            if target not in holders:
                holders[target] = _holders(workers, target)
            state.out.policies[worker.id] = _with_peers(
                state.versions[target], holders[target], worker.address, place
            )


def _holders(workers: Sequence[Worker], number: int) -> list[str]:
    """Addresses of those who hold a version; of all while nobody does: who is asked may hold it by then."""
    holding = [w.address for w in workers if w.version == number and w.address]
    return holding or [w.address for w in workers if w.address]


def _with_peers(
    publication: Publication, holders: Sequence[str], own: str, place: int
) -> Publication:
    """Where a worker finds a version: at the trainer first, then at a few of those who got it by a stream.

    Each begins at another place among them. They decode while they serve, so they are asked when the trainer
    is away.
    """
    if not any(location.startswith(STREAM) for location in publication.locations):
        return publication
    near = range(place, place + min(len(holders), PEERS + 1))
    peers = [holders[n % len(holders)] for n in near]
    named = [STREAM + address for address in peers if address != own][:PEERS]
    return replace(publication, locations=(*publication.locations, *named))


def commit(state: JobState, term: int, row: CheckpointRow, now: float) -> list[str]:
    """The ledger's word makes it a checkpoint. Returns the paths that no longer are."""
    check_term(state, term)
    if row.lineage != state.lineage:
        raise Fenced(f"a checkpoint of lineage {row.lineage} is not current")
    if row.step > state.reported:
        raise OutOfOrder(f"checkpoint {row.step} was committed after step {state.reported}")
    removed = [c for c in state.checkpoints if c.step == row.step and c.path != row.path]
    for old in removed:
        _drop_checkpoint(state, old)
    if not any(c.path == row.path for c in state.checkpoints):
        state.checkpoints.append(row)
        state.checkpoints.sort(key=lambda c: c.step)
    state.writes.checkpoints.append((row.lineage, row.step, row.path, row.digest, term, now))
    for batch in state.batches.values():
        if batch.step <= row.step and batch.state is BatchState.TRAINED:
            _move_batch(state, batch, BatchState.COMMITTED)
    while len(state.checkpoints) > state.settings.keep_checkpoints:
        removed.append(state.checkpoints[0])
        _drop_checkpoint(state, state.checkpoints[0])
    _fold(state)
    return [c.path for c in removed]


def _drop_checkpoint(state: JobState, checkpoint: CheckpointRow) -> None:
    state.checkpoints.remove(checkpoint)
    state.writes.dropped_checkpoints.append((checkpoint.path,))


def _fold(state: JobState) -> None:
    """Steps that no retained checkpoint needs are folded into their digests."""
    oldest = state.checkpoints[0].step
    if oldest <= state.folded:
        return
    state.folded = oldest
    state.writes.fold = (state.lineage, oldest)
    for step in [s for s in state.batches if s < oldest]:
        del state.batches[step]
