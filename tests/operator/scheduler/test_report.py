"""What the operator is told: the sample that is held for the longest time, and the figures of the newest step."""

from roll_operator.controller.link import read_progress
from roll_operator.scheduler import training
from roll_operator.scheduler.report import Rate, progress
from support.scheduler_world import MakeWorld


def test_the_oldest_lease_is_named_with_its_pod_and_stage(world: MakeWorld) -> None:
    job = world()
    oldest = min(job.state.leases.values(), key=lambda lease: lease.granted)
    later = job.now + 30

    told = read_progress(progress(job.state, Rate(), later)).held

    assert told is not None
    assert told.pod == job.state.workers[oldest.worker].pod
    assert told.sample == f"{oldest.unit.group.id}/{oldest.unit.index}"
    assert told.stage == oldest.stage
    assert told.seconds == later - oldest.granted


def test_where_nothing_is_leased_no_sample_is_named(world: MakeWorld) -> None:
    job = world(workers=False)
    assert read_progress(progress(job.state, Rate(), job.now)).held is None


def test_figures_of_the_newest_step_reach_the_operator(world: MakeWorld) -> None:
    job = world(max_staleness=0)
    for group in list(job.state.groups):
        job.complete(group)
    training.acquire(*job.seat(), 1, job.now)
    job.flush()
    training.report(*job.seat(), 1, '{"actor/loss": 0.25}', job.now)
    assert read_progress(progress(job.state, Rate(), job.now)).metrics == {"actor/loss": 0.25}
