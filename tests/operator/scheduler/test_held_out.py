"""The curve of a finished run: every validation at its version, also where two have the same mean."""

from __future__ import annotations

from roll_operator.scheduler import offline
from support.scheduler_world import MakeWorld


def test_each_validated_version_has_its_point(world: MakeWorld) -> None:
    job = world(validation_every=2, steps=5)
    job.run_to_the_end()
    assert {v.mean for v in job.state.validations} == {0.5}
    points = offline.held_out(job.folder)
    assert points == [(0, 0.5), (2, 0.5), (4, 0.5), (5, 0.5)]
