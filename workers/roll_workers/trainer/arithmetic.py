"""What the weights after a step depend on, beside the weights before it and the recorded batch.

Invariant: under equal entries, and on one type of CPU, the same step ends with the same bits. Some of them may change
while a job is at rest, so a checkpoint carries the entries under which the steps after it are trained.
"""

from __future__ import annotations

import os
from typing import Any

from roll_api import JobSpec

from roll_workers.trainer.objective import Objective

Entries = dict[str, Any]


def threads(spec: JobSpec) -> int:
    """Sums of floats depend on how many threads share them."""
    return int(os.environ.get("OMP_NUM_THREADS", spec.roles.trainer.threads))


def arithmetic(spec: JobSpec, world: int) -> Entries:
    """As it is read again from JSON."""
    sampling, objective = spec.rollout.sampling, Objective(spec)
    return {
        "model": spec.model.model_dump(mode="json"),
        "algorithm": spec.algorithm.model_dump(mode="json"),
        "decoupled": objective.decoupled,
        "horizon": objective.horizon,
        "sampling": sampling.model_dump(mode="json", include={"temperature", "top_p", "top_k"}),
        "strategy": spec.roles.trainer.strategy.model_dump(mode="json"),
        "threads": threads(spec),
        "world": world,
    }


def differences(before: Entries, after: Entries) -> list[str]:
    """The paths of the entries that differ."""
    found: list[str] = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += [f"{key}.{path}" for path in differences(old, new)]
        elif old != new:
            found.append(key)
    return found
