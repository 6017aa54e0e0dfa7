"""What a scheduler tells about itself: progress for status, samples in flight, one sample's story."""

from __future__ import annotations

import json
from collections import Counter, deque

from roll_wire import control_pb2, session_pb2

from roll_operator.scheduler.assignment import Worker
from roll_operator.scheduler.batching import length_ratio
from roll_operator.scheduler.ledger import SqliteLedger
from roll_operator.scheduler.ledger.story import read_story, version_of
from roll_operator.scheduler.lifecycle import Cause, Group, Unit
from roll_operator.scheduler.state import JobState

WINDOW_SECONDS = 15.0


class Rate:
    """Trained samples per second over the last seconds."""

    def __init__(self) -> None:
        self._trained: deque[tuple[float, int]] = deque()

    def add(self, now: float, samples: int) -> None:
        self._trained.append((now, samples))

    def per_second(self, now: float) -> float:
        while self._trained and now - self._trained[0][0] > WINDOW_SECONDS:
            self._trained.popleft()
        if len(self._trained) < 2:
            return 0.0
        first = self._trained[0][0]
        return sum(n for at, n in self._trained if at > first) / max(now - first, 1e-3)


def dropped(counters: Counter[str]) -> dict[str, int]:
    """Samples that ended without being trained or evaluated, by reason.

    Those of a batch that ended with its lineage have no end of their own: they are counted with it.
    """
    found = Counter(
        {
            name: n
            for name, n in counters.items()
            if n and name.split(".")[0] in ("failed", "cancelled", "filtered")
        }
    )
    if counters["abandoned"]:
        found[f"cancelled.{Cause.LINEAGE}"] += counters["abandoned"]
    return dict(found)


def progress(state: JobState, rate: Rate, now: float) -> control_pb2.JobProgress:
    newest = state.batches.get(state.reported)
    validated = [v for v in state.validations if v.finished and v.mean is not None]
    means = [v.mean or 0.0 for v in validated]
    counts = Counter(u.state.name.lower() for g in state.groups.values() for u in g.units)
    workers = [
        control_pb2.WorkerState(
            pod=w.pod,
            pod_uid=w.pod_uid,
            role=w.role,
            connected=w.connected,
            ready=_ready(state, w),
            leases=len(w.leases),
            credits=w.credits,
            version=session_pb2.PolicyVersion(lineage=state.lineage, number=w.version or 0),
        )
        for w in state.workers.values()
    ]
    silent = [w.pod for w in state.workers.values() if w.silent]
    notices = list(state.notices.values()) + [f"{pod} is connected but silent" for pod in silent]
    return control_pb2.JobProgress(
        step=state.reported,
        steps=state.settings.steps,
        published=-1 if state.published is None else state.published,
        checkpoint=state.checkpoints[-1].step if state.checkpoints else -1,
        reward=newest.reward if newest else 0.0,
        samples_per_second=rate.per_second(now),
        staleness_mean=newest.staleness if newest else 0.0,
        staleness_max=state.counters["staleness_max"],
        samples=dict(counts),
        dropped=dropped(state.counters),
        redone=state.counters["redone"],
        workers=workers,
        finished=bool(state.finished),
        error=state.error,
        validation_first=means[0] if means else 0.0,
        validation_last=means[-1] if means else 0.0,
        has_validation=bool(means),
        validation_step=validated[-1].version if validated else 0,
        notices=notices,
        lineage=state.lineage,
        last_progress_at=state.last_progress,
        idle_seconds=max(0.0, now - state.last_progress),
        tokens=state.counters["tokens"],
        ledger_lost=state.ledger_lost,
        metrics=_metrics(state),
        held=_held(state, now),
    )


def _ready(state: JobState, worker: Worker) -> bool:
    """Whether it can work. A trainer's pod is as good as the rank of it that is not there: each answers for all."""
    if not worker.connected or worker.silent:
        return False
    if worker.role != "trainer":
        return worker.pool != "policy" or worker.version is not None
    ranks = [id for id in state.trainer.members.values() if id.startswith(f"{worker.pod_uid}/")]
    there = {w.id for w in state.workers.values() if w.connected}
    return worker.id in ranks and there.issuperset(ranks)


def _metrics(state: JobState) -> dict[str, float]:
    """The trainer's of its last step, and what only the scheduler knows."""
    metrics: dict[str, float] = json.loads(state.metrics)
    if state.counters["late_samples"]:
        metrics["scheduler/length_ratio"] = length_ratio(state.counters)
    return metrics


def _held(state: JobState, now: float) -> control_pb2.SampleState | None:
    """The sample that a worker has had for the longest time: where a job that stands still is looked at first."""
    oldest = min(state.leases.values(), key=lambda lease: lease.granted, default=None)
    return None if oldest is None else sample_state(state, oldest.unit, now)


def sample_state(state: JobState, unit: Unit, now: float) -> control_pb2.SampleState:
    group = unit.group
    worker = state.workers.get(unit.lease.worker) if unit.lease else None
    return control_pb2.SampleState(
        unit=session_pb2.Unit(group=group.id, index=unit.index),
        state=unit.state.name.lower(),
        stage=unit.stage,
        turn=unit.turn,
        worker=worker.pod if worker else "",
        version=version_of(unit),
        age_seconds=now - group.admitted,
        stage_seconds=now - (unit.lease.granted if unit.lease else unit.since or group.admitted),
        attempt=unit.failures + 1,
        step=group.step,
        validation=group.validation is not None,
    )


def samples(state: JobState, limit: int, now: float) -> control_pb2.SampleList:
    live = [u for g in state.groups.values() for u in _visible(g)]
    live.sort(key=lambda u: (u.group.step, u.group.id, u.index))
    chosen = live[:limit] if limit else live
    return control_pb2.SampleList(
        samples=[sample_state(state, u, now) for u in chosen], total=len(live)
    )


def _visible(group: Group) -> list[Unit]:
    """The group itself while its reset is under way, its samples afterwards."""
    if group.lead is not None and not group.lead.places:
        return [group.lead]
    return group.kept


def story(
    state: JobState, ledger: SqliteLedger, group: int, index: int, now: float
) -> control_pb2.SampleStory | None:
    told = read_story(ledger.reader, state.settings.graph, group, index)
    held = state.groups.get(group)
    if told is not None and held is not None and 0 <= index < held.size:
        told.state.CopyFrom(sample_state(state, held.units[index], now))
    return told
