"""Batch F with unfinished groups: exchanges worked by hand.

Two groups a step, S = 2, A = 2: at version 0 the steps 1, 2 and 3 are in the making. Groups are named by
their place at the start: a1, a2 hold step 1, b1, b2 step 2, c1, c2 step 3.
"""

from __future__ import annotations

import pytest
from roll_operator.scheduler import batching, flow, report, training
from roll_operator.scheduler.lifecycle import Group, GroupState, Stage
from support.scheduler_world import MakeWorld, World


class Exchange:
    """A job with all its generations under way by version 0."""

    def __init__(self, job: World) -> None:
        self.job = job
        job.finish_all(Stage.RESET)
        self.groups = {
            f"{'abcdef'[g.step - 1]}{g.slot}": g for g in job.state.groups.values() if g.step
        }

    def __getitem__(self, name: str) -> Group:
        return self.groups[name]

    def finish(self, *names: str) -> None:
        for name in names:
            self.job.complete(self[name].id)

    def ask(self, step: int) -> list[str] | None:
        """The trainer asks for a batch; the names of its groups, in order."""
        training.acquire(*self.job.seat(), step, self.job.now)
        self.job.flush()
        batch = self.job.state.batches.get(step)
        if batch is None:
            return None
        names = {g.id: name for name, g in self.groups.items()}
        return [names.get(i, "later") for i in batch.group_ids]

    def trained(self, step: int) -> None:
        training.report(*self.job.seat(), step, "{}", self.job.now)
        assert self.job.trainer
        self.job.trainer.step, self.job.trainer.published = step, False
        self.job.trainer_turn()
        self.job.flush()

    def places(self, *names: str) -> list[tuple[int, int]]:
        return [(self[n].step, self[n].slot) for n in names]


@pytest.fixture
def six(world: MakeWorld) -> Exchange:
    """Six groups in flight; nothing else is admitted before version 1."""
    return Exchange(world(max_staleness=2, run_ahead=2.0, steps=9))


def test_a_full_step_needs_no_exchange(six: Exchange) -> None:
    six.finish("a1", "a2", "b1")
    assert six.ask(1) == ["a1", "a2"]
    assert six.places("b1") == [(2, 1)]


def test_an_unfinished_group_changes_places_with_the_nearest_ready_one(six: Exchange) -> None:
    six.finish("a1", "c1", "b2")
    assert six.ask(1) == ["a1", "b2"]
    assert six.places("a2", "b2") == [(2, 2), (1, 2)]
    assert six["a2"].state is GroupState.OPEN


def test_nothing_changes_when_not_every_hole_can_be_filled(six: Exchange) -> None:
    six.finish("b1")
    before = six.places("a1", "a2", "b1", "b2", "c1", "c2")
    assert six.ask(1) is None, "one ready group does not complete a step of two"
    assert six.places("a1", "a2", "b1", "b2", "c1", "c2") == before
    six.finish("c2")
    assert six.job.state.batches[1].group_ids == (six["b1"].id, six["c2"].id)
    assert six.places("a1", "a2") == [(2, 1), (3, 2)]


def test_a_sample_that_began_at_version_0_reaches_step_3_and_no_further(six: Exchange) -> None:
    """S = 2: oldest token 0 allows steps up to 0 + 1 + 2."""
    six.finish("a1", "b1", "b2", "c1", "c2")
    assert six.ask(1) == ["a1", "b1"]
    six.trained(1)
    assert six.ask(2) == ["c1", "b2"]  # a2 held 2/1; now 3/1
    assert six.places("a2") == [(3, 1)]
    six.trained(2)
    six.job.fetch_all()
    assert six.ask(3) is None
    later = [g for g in six.job.state.groups.values() if g.step > 3]
    assert later
    for group in later:
        six.job.complete(group.id)
    assert [g.state for g in later] == [GroupState.READY] * len(later)
    assert six.ask(3) is None, "step 4 is more than its oldest token allows: step 3 waits"
    six.finish("a2")
    assert 3 in six.job.state.batches
    assert six.job.state.batches[3].oldest == 0
    assert six.job.audit().problems == []


def test_late_drop_cancels_what_no_step_can_take(world: MakeWorld) -> None:
    six = Exchange(world(max_staleness=2, run_ahead=2.0, steps=9, late_drop=True))
    six.finish("a1", "b1", "b2", "c1", "c2")
    assert six.ask(1) == ["a1", "b1"]
    six.trained(1)
    assert six.ask(2) == ["c1", "b2"], "what can still be exchanged is not dropped"
    assert six["a2"].state is GroupState.OPEN and six.places("a2") == [(3, 1)]
    six.trained(2)
    six.job.fetch_all()
    held = [task for _, task in six.job.tasks(group=six["a2"].id)]
    for group in [g for g in six.job.state.groups.values() if g.step > 3]:
        six.job.complete(group.id)
    assert six.ask(3) == ["later", "c2"]
    assert (six["a2"].state, six["a2"].cause) == (GroupState.CANCELLED, "stale")
    assert six.job.state.counters["cancelled.stale"] == 2
    assert held and not six.job.tasks(group=six["a2"].id), "its leases were taken back"
    assert six.job.audit().problems == []


def test_late_drop_cancels_as_few_as_can_be(world: MakeWorld) -> None:
    """Step 3 waits for a2, of version 0, and for a group of version 1, which step 4 can still take."""
    six = Exchange(world(max_staleness=2, run_ahead=2.0, steps=9, late_drop=True))
    six.finish("a1", "b1", "b2", "c1", "c2")
    job, slots = six.job, six.job.state.slots
    for step in (1, 2):
        six.ask(step)
        six.trained(step)
        job.fetch_all()
        job.finish_all(Stage.RESET)
    fourth, fifth = (slots.of(step)[1] for step in (4, 5))
    assert (six.places("a2", "c2"), fourth.oldest()) == ([(3, 1), (3, 2)], 1)
    for group in (six["c2"], fourth):
        slots.release(group)
    slots.place(fourth, 3, 2)
    slots.place(six["c2"], 4, 1)
    job.complete(fifth.id)
    assert six.ask(3) == ["later", "c2"], "c2 for the one that may go on, the fifth for a2"
    assert (fourth.state, fourth.step) == (GroupState.OPEN, 4)
    assert (six["a2"].state, six["a2"].cause) == (GroupState.CANCELLED, "stale")
    assert job.state.counters["cancelled.stale"] == 2


def test_late_drop_tells_how_much_shorter_the_answers_become(world: MakeWorld) -> None:
    """The two samples of a2 had 30 and 10 tokens when they were cut."""
    six = Exchange(world(max_staleness=2, run_ahead=2.0, steps=9, late_drop=True))
    job = six.job
    six.finish("a1", "b1", "b2", "c1", "c2")
    for step in (1, 2):
        six.ask(step)
        six.trained(step)
    job.fetch_all()
    for (worker, task), tokens in zip(job.tasks(group=six["a2"].id), (30, 10), strict=True):
        known = job.state.workers[worker.id]
        flow.progress(job.state, known, lease=task.lease, tokens=tokens, now=job.now)
    assert (
        "scheduler/length_ratio" not in report.progress(job.state, report.Rate(), job.now).metrics
    )
    for group in [g for g in job.state.groups.values() if g.step > 3]:
        job.complete(group.id)
    six.ask(3)
    assert "cancelled 2 slow samples, 20 tokens long on average" in job.state.notices["late"]
    counters = job.state.counters
    trained, samples = counters["batched_tokens"], counters["batched_samples"]
    expected = (trained / samples) / ((trained + 40) / (samples + 2))
    told = report.progress(job.state, report.Rate(), job.now).metrics["scheduler/length_ratio"]
    assert told == pytest.approx(expected) and told < 1
    job.crash_scheduler()
    assert job.state.counters["late_tokens"] == 40, "it is on record"


def test_the_tightest_group_goes_to_the_nearest_step(six: Exchange) -> None:
    """a1 has tokens of version 0, a2 none yet: a1 may go to step 3 at most, a2 anywhere."""
    six.finish("b1", "c1")
    for worker, task in six.job.tasks(Stage.GENERATE, six["a2"].id):
        six.job.finish(worker, task, cause="returned")
    assert six["a2"].oldest() is None and six["a1"].oldest() == 0
    # Slot order alone would send a1 first; make a2 the one in slot 1 to tell the two orders apart.
    slots = six.job.state.slots
    for name in ("a1", "a2"):
        slots.release(six[name])
    slots.place(six["a2"], 1, 1)
    slots.place(six["a1"], 1, 2)
    training.acquire(*six.job.seat(), 1, six.job.now)
    batching.try_form(six.job.state, six.job.now)
    assert six.places("a1", "a2") == [(2, 1), (3, 1)]


def test_a_lease_counts_as_old_as_the_version_its_worker_had(six: Exchange) -> None:
    """No token of a1 is known, but one is being sampled by version 0 or newer."""
    assert all(u.oldest is None for u in six["a1"].units)
    assert six["a1"].oldest() == 0
    assert {lease.floor for lease in six.job.state.leases.values()} == {0}


def test_a_free_slot_is_filled_with_a_ready_group(world: MakeWorld) -> None:
    job = world(max_staleness=2, run_ahead=1.0, max_attempts=1, max_replacements=0)
    six = Exchange(job)
    six.finish("a1", "b2")
    engine = next(w for w in job.workers.values() if w.role == "inference")
    job.disconnect(engine)  # nothing new can be admitted
    worker, task = job.tasks(Stage.GENERATE, six["a2"].id)[0]
    engine.connected = True
    job.finish(worker, task, cause="input")
    job.flush()
    assert six["a2"].state is GroupState.FAILED
    assert 2 not in job.state.slots.of(1)
    assert six.ask(1) == ["a1", "b2"]


def test_no_exchange_before_workers_of_an_earlier_scheduler_had_time_to_return(
    world: MakeWorld,
) -> None:
    """Their leases, and how old their tokens are, are known again only when they are back."""
    job = world(max_staleness=1, run_ahead=1.0, reconnect_grace=5.0)
    six = Exchange(job)
    six.finish("a1", "b1", "b2")
    job.crash_scheduler()
    assert job.trainer
    job.join_trainer()
    state, term = job.seat()
    training.acquire(state, term, 1, job.now)
    job.flush()
    assert state.formed == 0 and state.groups[six["a2"].id].step == 1
    job.now += 6.0
    job.flush()
    assert state.formed == 1


def test_a_ready_step_does_not_wait_for_them(world: MakeWorld) -> None:
    job = world(max_staleness=1, run_ahead=1.0, reconnect_grace=5.0)
    six = Exchange(job)
    six.finish("a1", "a2")
    job.crash_scheduler()
    job.join_trainer()
    training.acquire(*job.seat(), 1, job.now)
    job.flush()
    assert job.state.formed == 1


@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
def test_every_token_lies_within_the_bound_whatever_lags(world: MakeWorld, staleness: int) -> None:
    """The proof in admission's docstring, on a run where the oldest group always comes last."""
    job = world(steps=8, max_staleness=staleness, run_ahead=float(staleness))
    for _ in range(400):
        if job.state.finished:
            break
        live = [g.id for g in job.state.groups.values() if g.state is GroupState.OPEN]
        others = len(live) > 1 and job.now % 7 != 0
        job.fair_turn(skip=min(live) if live and others else 0)
    found = job.audit()
    assert job.state.finished == "complete" and found.problems == []
    assert found.staleness_max <= staleness
    ages = [b.step - 1 - b.oldest for b in job.ledger.batches() if b.oldest is not None]
    assert len(ages) == 8 and min(ages) >= 0
    if staleness:
        assert max(ages) >= 1, "nothing lagged: the test shows nothing"
