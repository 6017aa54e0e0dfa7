"""All durable facts of a JobState in plain data, to compare a scheduler with the one that opens its ledger next.

Leases, residents and queues are not durable: a leased unit waits again in the next term.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from roll_operator.scheduler import record
from roll_operator.scheduler.lifecycle import Group, SampleState, Unit
from roll_operator.scheduler.state import COUNTED, JobState

# Counted when a lease is granted, which writes nothing.
NOT_DURABLE = {"redone"}


def dump(state: JobState) -> dict[str, Any]:
    return {
        **{name: getattr(state, name) for name in COUNTED},
        "ending": state.ending,
        "finished": state.finished,
        "counters": {n: c for n, c in state.counters.items() if c and n not in NOT_DURABLE},
        "groups": {g.id: _group(g) for g in state.groups.values()},
        "slots": {
            step: {slot: g.id for slot, g in sorted(state.slots.of(step).items())}
            for step in state.slots.steps()
            if state.slots.of(step)
        },
        "ready": {step: n for step, n in state.slots.ready.items() if n},
        "batches": {b.step: {**_plain(b), "groups": None} for b in state.batches.values()},
        "versions": {v.number: astuple(v) for v in state.versions.values()},
        "checkpoints": [astuple(c) for c in state.checkpoints],
        "validations": sorted(astuple(v) for v in state.validations),
        "trainer": (
            state.trainer.term,
            state.trainer.attempt,
            state.trainer.world,
            state.trainer.members,
        ),
        "data": state.data,
        "pre_policy": state.pre_policy,
        "fenced_pods": sorted(state.roster.gone),
    }


def _group(group: Group) -> dict[str, Any]:
    units = group.units if group.lead is None else [group.lead, *group.units]
    return {
        "lineage": group.lineage,
        "position": group.position,
        "place": (group.step, group.slot),
        "validation": group.validation,
        "state": group.state,
        "cause": group.cause,
        "unfinished": group.unfinished,
        "seal": group.seal,
        "units": {u.index: _unit(u) for u in units},
    }


def _unit(unit: Unit) -> dict[str, Any]:
    scored = unit.state is SampleState.SCORED
    state = SampleState.WAITING if unit.state is SampleState.LEASED else unit.state
    return {
        "stage": None if scored else unit.stage,
        "turn": unit.turn,
        "state": state,
        "cause": unit.cause,
        "failures": (unit.failures, unit.hurdle, unit.company),
        "life": unit.life,
        "tokens": unit.tokens,
        "kept": unit.kept,
        "versions": (unit.oldest, unit.newest),
        "reward": unit.reward if scored else None,
        "parts": [tuple(p) for p in record.parts_of(unit)],
    }


def _plain(batch: Any) -> dict[str, Any]:
    """All but where it is: in memory, in which transaction."""
    kept = set(batch.__slots__) - {"groups", "recorded"}
    return {name: getattr(batch, name) for name in kept}
