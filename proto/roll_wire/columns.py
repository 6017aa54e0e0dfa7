"""Results, Assign and ShardChunk travel in columns; here they are read and written entry by entry.

Invariant: entry i of every column, and the i-th stretch of `payloads`, are about the same unit. A column that
is empty stands for zeros. The scheduler, which touches every sample, works on the columns themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, repeat
from typing import NamedTuple, TypeVar

from roll_wire.session_pb2 import (
    Assign,
    LeaseId,
    PolicyVersion,
    Result,
    Results,
    Task,
    Unit,
)
from roll_wire.trainer_pb2 import ShardChunk

T = TypeVar("T", int, float, bool)
_TERM = 40  # bits of a lease's number


def lease_number(lease: LeaseId) -> int:
    return lease.term << _TERM | lease.number


def lease_of(number: int) -> LeaseId:
    return LeaseId(term=number >> _TERM, number=number & ((1 << _TERM) - 1))


def unless_zero(values: Sequence[T]) -> Sequence[T]:
    """The column, left out when it says nothing."""
    return values if any(values) else ()


def column(values: Sequence[T], count: int, zero: T) -> Iterable[T]:
    """What a column says about each of `count` entries."""
    return filled(values, count, zero) if values else repeat(zero, count)


def filled(values: Sequence[T], count: int, zero: T) -> list[T]:
    """The column as a list."""
    if not values:
        return [zero] * count
    if len(values) != count:
        raise ValueError(f"a column of {len(values)} entries in a message of {count}")
    return list(values[:])


def check_sizes(sizes: Sequence[int], length: int) -> None:
    if sum(sizes) != length:
        raise ValueError(f"payloads of {sum(sizes)} bytes in a message of {length}")


def views(payloads: bytes, sizes: Sequence[int]) -> Iterator[memoryview]:
    """Each payload, without a copy."""
    check_sizes(sizes, len(payloads))
    whole, start = memoryview(payloads), 0
    for size in sizes:
        yield whole[start : start + size]
        start += size


def pack_results(results: Sequence[Result]) -> Results:
    """Results of one stage."""
    return Results(
        stage=results[0].stage,
        groups=[r.unit.group for r in results],
        indices=unless_zero([r.unit.index for r in results]),
        leases=[lease_number(r.lease) for r in results],
        turns=unless_zero([r.turn for r in results]),
        tokens=unless_zero([r.tokens for r in results]),
        lineages=unless_zero([r.oldest.lineage if r.HasField("newest") else 0 for r in results]),
        oldest=unless_zero([r.oldest.number for r in results]),
        newest=unless_zero([r.newest.number for r in results]),
        has_reward=unless_zero([r.has_reward for r in results]),
        rewards=unless_zero([r.reward for r in results]),
        done=unless_zero([r.done for r in results]),
        resident=unless_zero([r.resident for r in results]),
        base_tokens=unless_zero([r.base_tokens for r in results]),
        sizes=[len(r.payload) for r in results],
        payloads=b"".join([r.payload for r in results]),
    )


def unpack_results(packed: Results) -> list[Result]:
    count = len(packed.leases)
    return [
        Result(
            unit=Unit(group=group, index=index), lease=lease_of(lease), stage=packed.stage, turn=turn,
            payload=bytes(payload), tokens=tokens,
            oldest=PolicyVersion(lineage=lineage, number=oldest) if lineage else None,
            newest=PolicyVersion(lineage=lineage, number=newest) if lineage else None,
            has_reward=has_reward, reward=reward, done=done, resident=resident,
            base_tokens=base,
        )
        for (
            group, index, lease, turn, tokens, lineage, oldest, newest, has_reward, reward, done,
            resident, base, payload,
        ) in zip(
            packed.groups, column(packed.indices, count, 0), packed.leases,
            column(packed.turns, count, 0), column(packed.tokens, count, 0),
            column(packed.lineages, count, 0), column(packed.oldest, count, 0),
            column(packed.newest, count, 0), column(packed.has_reward, count, False),
            column(packed.rewards, count, 0.0), column(packed.done, count, False),
            column(packed.resident, count, False), column(packed.base_tokens, count, 0),
            views(packed.payloads, packed.sizes),
            strict=True,
        )
    ]  # fmt: skip


def pack_tasks(tasks: Sequence[Task]) -> Assign:
    """Tasks of one stage."""
    return Assign(
        stage=tasks[0].stage,
        groups=[t.unit.group for t in tasks],
        indices=unless_zero([t.unit.index for t in tasks]),
        leases=[lease_number(t.lease) for t in tasks],
        turns=unless_zero([t.turn for t in tasks]),
        attempts=[t.attempt for t in tasks],
        min_versions=unless_zero([t.min_version for t in tasks]),
        seeds=[t.seed for t in tasks],
        positions=unless_zero([t.position for t in tasks]),
        validation=unless_zero([t.validation for t in tasks]),
        kept_tokens=unless_zero([t.kept_tokens for t in tasks]),
        no_progress_ms=tasks[0].no_progress_ms,
        sizes=[len(t.payload) for t in tasks],
        payloads=b"".join([t.payload for t in tasks]),
    )


def unpack_tasks(packed: Assign) -> list[Task]:
    count = len(packed.leases)
    return [
        Task(
            unit=Unit(group=group, index=index), lease=lease_of(lease), stage=packed.stage, turn=turn,
            attempt=attempt, min_version=min_version, seed=seed, position=position,
            validation=validation, kept_tokens=kept, payload=bytes(payload),
            no_progress_ms=packed.no_progress_ms,
        )
        for (
            group, index, lease, turn, attempt, min_version, seed, position, validation, kept, payload,
        ) in zip(
            packed.groups, column(packed.indices, count, 0), packed.leases,
            column(packed.turns, count, 0), packed.attempts, column(packed.min_versions, count, 0),
            packed.seeds, column(packed.positions, count, 0), column(packed.validation, count, False),
            column(packed.kept_tokens, count, 0), views(packed.payloads, packed.sizes),
            strict=True,
        )
    ]  # fmt: skip


class ShardSample(NamedTuple):
    """One sample of a rank's share, with what its advantage needs."""

    unit: tuple[int, int]  # group, index
    position: int  # in the batch, the same for every world size
    reward: float
    group_rewards: tuple[float, ...]  # of its whole group, in order of index
    payload: bytes  # the whole trajectory


def pack_samples(samples: Sequence[ShardSample]) -> ShardChunk:
    groups = [s.unit[0] for s in samples]
    firsts = [s for i, s in enumerate(samples) if not i or groups[i - 1] != groups[i]]
    return ShardChunk(
        groups=groups,
        indices=[s.unit[1] for s in samples],
        positions=[s.position for s in samples],
        rewards=[s.reward for s in samples],
        group_sizes=[len(s.group_rewards) for s in firsts],
        group_rewards=[reward for s in firsts for reward in s.group_rewards],
        sizes=[len(s.payload) for s in samples],
        payloads=b"".join([s.payload for s in samples]),
    )


def unpack_samples(packed: ShardChunk) -> list[ShardSample]:
    runs, sizes = sum(1 for _ in groupby(packed.groups)), packed.group_sizes
    if runs != len(sizes) or sum(sizes) != len(packed.group_rewards):
        raise ValueError(
            f"{len(packed.group_rewards)} rewards of {runs} groups, where {list(sizes)} were announced"
        )
    samples: list[ShardSample] = []
    of_group: tuple[float, ...] = ()
    before, run, start = None, 0, 0
    for group, index, position, reward, payload in zip(
        packed.groups, packed.indices, packed.positions, packed.rewards,
        views(packed.payloads, packed.sizes), strict=True,
    ):  # fmt: skip
        if group != before:
            of_group = tuple(packed.group_rewards[start : start + sizes[run]])
            before, run, start = group, run + 1, start + len(of_group)
        samples.append(ShardSample((group, index), position, reward, of_group, bytes(payload)))
    return samples
