"""What the operator is told: who is ready, what is held for the longest time, and the figures of the newest step."""

from roll_operator.controller.link import read_progress
from roll_operator.scheduler import presence, training
from roll_operator.scheduler.presence import Greeting
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


def test_a_trainers_pod_of_several_ranks_is_ready_when_all_of_them_are_there(
    world: MakeWorld,
) -> None:
    job = world(workers=False)

    def joins(rank: int, pod: str) -> None:
        presence.hello(
            job.state,
            Greeting(
                worker=f"{pod}/1/{rank}", pod=f"trainer-{pod}", pod_uid=pod, role="trainer",
                pool="trainer", rank=rank, world=4, attempt=7,
            ),
            job.now,
        )  # fmt: skip

    def ready() -> set[str]:
        told = read_progress(progress(job.state, Rate(), job.now)).ready
        return {uid for uid in told if uid in ("a", "ab")}

    for rank, pod in enumerate(("a", "a", "ab")):
        joins(rank, pod)
        assert ready() == set(), "no rank begins before the last one"
    joins(3, "ab")
    assert ready() == {"a", "ab"}
    presence.disconnected(job.state, job.state.workers["ab/1/3"], job.now)
    assert ready() == {"a"}
    presence.lost(job.state, job.state.workers["ab/1/3"], job.now)
    assert ready() == {"a"}


def test_the_time_of_the_last_progress_is_by_the_readers_clock(world: MakeWorld) -> None:
    job = world()
    reply = progress(job.state, Rate(), job.state.last_progress + 30)
    here = reply.last_progress_at + 86_400  # the scheduler's clock is a day behind
    assert read_progress(reply, here).last_progress_at == here - 30
    reply.ClearField("idle_seconds")
    assert read_progress(reply, here).last_progress_at == reply.last_progress_at, "an older one"
