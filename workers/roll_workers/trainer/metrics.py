"""What a step looked like: figures over all ranks, one line of `metrics.jsonl` and one TensorBoard event.

Names are ROLL's where it has one. After a resume at step M the record goes on as if nothing after M had ever
been written.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roll_workers.trainer.batch import Shard
from roll_workers.trainer.strategies import Strategy

_Summary = tuple[float, float, float, float]  # sum, count, smallest, largest


def describe_shard(shard: Shard, newest: int) -> dict[str, _Summary]:
    """This rank's samples, in a form that ranks can add up. `newest`: the version it is trained on."""
    batch = shard.batch
    lengths = np.diff(batch.offsets)
    response = np.bincount(batch.sequence.numpy(), minlength=len(batch))
    ages = newest - shard.versions
    mixed = shard.peers != shard.rewards[shard.peer_of]
    mixed_of = np.bincount(shard.peer_of, mixed, minlength=len(shard.units)) > 0
    described = {
        "critic/rewards": _summary(shard.rewards),
        "critic/advantages": _summary(batch.advantage.numpy()),
        "tokens/prompt_length": _summary(shard.prompt_lengths),
        "tokens/response_length": _summary(response),
        "tokens/total_length": _summary(lengths),
        "scheduler/staleness": _summary(ages),
        "group/mixed_groups_ratio": _summary(mixed_of),
        "rollout/finished_ratio": _summary(shard.finished),
    }
    for name, value in sorted(shard.parts.items()):
        described[f"critic/rewards/{name}"] = (value, float(len(shard.units)), 0.0, 0.0)
    return described


def over_ranks(described: dict[str, _Summary], strategy: Strategy) -> dict[str, float]:
    """Means and extremes over all ranks. Collective."""
    ranks: list[dict[str, _Summary]] = strategy.all_gather(described)
    figures: dict[str, float] = {}
    for name in sorted({name for each in ranks for name in each}):
        shares = [each[name] for each in ranks if name in each]
        total, count = sum(s[0] for s in shares), sum(s[1] for s in shares)
        mean = total / count if count else 0.0
        if name.endswith("_ratio") or name.startswith("critic/rewards/"):
            figures[name] = mean
            continue
        figures[f"{name}/mean"] = mean
        figures[f"{name}/min"] = min(s[2] for s in shares)
        figures[f"{name}/max"] = max(s[3] for s in shares)
        if name == "critic/rewards":
            figures["system/samples"] = count
        if name == "tokens/total_length":
            figures["system/tokens"] = total
    return figures


def _summary(values: npt.NDArray[Any]) -> _Summary:
    if not values.size:
        return 0.0, 0.0, 0.0, 0.0
    return float(values.sum()), float(values.size), float(values.min()), float(values.max())


class Recorder:
    """Rank 0 writes. A step is recorded before its checkpoint, so no committed step lacks its line."""

    def __init__(self, folder: Path, step: int) -> None:
        """Cuts the record back to `step`."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "metrics.jsonl"
        cut_back(self._path, step)
        self._lines = self._path.open("a")
        self._events = EventFileWriter(str(folder / "tensorboard"))
        # TensorBoard drops what it knows of later steps when it meets a new start.
        self._events.add_event(
            Event(
                wall_time=time.time(),
                step=step + 1,
                session_log=SessionLog(status=SessionLog.START),
            )
        )

    def record(self, step: int, figures: dict[str, float], facts: dict[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        now = time.time()
        self._lines.write(json.dumps({"step": step, "time": now, **facts, **figures}) + "\n")
        self._lines.flush()
        values = [Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        self._events.add_event(Event(wall_time=now, step=step, summary=Summary(value=values)))

    def close(self) -> None:
        self._lines.close()
        self._events.close()


def cut_back(path: Path, step: int) -> None:
    """Keeps the lines up to `step`; a line that a killed process left half written goes too."""
    if not path.exists():
        return
    kept: list[str] = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    scratch = path.with_name(f".{path.name}")
    scratch.write_text("".join(line + "\n" for line in kept))
    os.replace(scratch, path)
