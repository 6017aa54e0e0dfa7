"""Small worlds in virtual time: `world(steps=…)` is a job with its workers and trainer, at version 0."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from roll_operator.scheduler.settings import Settings
from support.scheduler_world import MakeWorld, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[MakeWorld]:
    made: list[World] = []

    def make(*, workers: bool = True, **chosen: Any) -> World:
        settings = Settings(**{"steps": 6, "groups_per_step": 2, "group_size": 2} | chosen)
        new = World(tmp_path / f"world-{len(made)}", settings)
        made.append(new)
        if workers:
            for role in ("environment", "reward", "inference"):
                new.add_worker(role, credits=64)
            new.start_trainer()
            new.begin()
        return new

    yield make
    for each in made:
        each.ledger.close()
