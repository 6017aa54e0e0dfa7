"""Random histories: whatever happens in whatever order, the guarantees hold after every event.

Checked after each rule, from the ledger alone: nothing lost (1), trained once (2), bounded staleness (3),
a failure is not a zero (5). At the end of each history everybody behaves, and the job must finish.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from roll_operator.scheduler import leases, report, training
from roll_operator.scheduler.assignment import Worker
from roll_operator.scheduler.lifecycle import SampleState, Stage
from roll_operator.scheduler.settings import Settings
from roll_operator.scheduler.stages import StageGraph
from support.scheduler_dump import dump
from support.scheduler_world import POOLS, Held, SimWorker, World

pick = st.integers(0, 10**6)
RLVR = StageGraph(interactive=False, scored=True)
AGENTIC = StageGraph(interactive=True, scored=True)
EPISODES = StageGraph(interactive=True, scored=False)  # their own return is the reward


@st.composite
def job_settings(draw: st.DrawFn, **fixed: Any) -> Settings:
    """Any small job; `fixed` names what a kind of history is about."""
    staleness = draw(st.integers(0, 3))
    chosen = Settings(
        steps=draw(st.integers(2, 5)),
        groups_per_step=draw(st.integers(1, 3)),
        group_size=draw(st.integers(1, 3)),
        max_staleness=staleness,
        run_ahead=min(staleness, draw(st.sampled_from([0.0, 0.5, 1.0, 1.5, 3.0]))),
        graph=draw(st.sampled_from([RLVR, AGENTIC, EPISODES])),
        late_drop=draw(st.booleans()),
        filter_by=draw(st.sampled_from(["none", "mean", "std"])),
        filter_above=draw(st.sampled_from([-1.0, 0.0, 0.2])),
        filter_budget=draw(st.sampled_from([0.0, 1.0, 3.0])),
        on_exhausted="Keep",
        max_attempts=draw(st.integers(1, 3)),
        max_replacements=draw(st.integers(0, 2)),
        max_batch_attempts=draw(st.integers(1, 3)),
        no_progress=draw(st.sampled_from([3.0, 60.0])),
        reconnect_grace=draw(st.sampled_from([0.0, 2.0])),
        validation_every=draw(st.sampled_from([0, 1, 2])),
        keep_checkpoints=draw(st.integers(1, 3)),
    )
    return replace(chosen, **{name: draw(values) for name, values in fixed.items()})


class Histories(RuleBasedStateMachine):
    """What can happen to every job. The subclasses below lead into one corner each."""

    kind: ClassVar[dict[str, Any]] = {}
    helpers: ClassVar[tuple[tuple[str, int], ...]] = ()  # workers beside one of each role

    @initialize(data=st.data(), turns=st.integers(0, 8))
    def begin(self, data: st.DataObject, turns: int) -> None:
        chosen = data.draw(job_settings(**self.kind))
        self.folder = tempfile.TemporaryDirectory()
        self.world = World(Path(self.folder.name), chosen)
        self.position = (1, 0, -1)
        for role in POOLS:
            self.world.add_worker(role)
        for role, credits in self.helpers:
            self.world.add_worker(role, credits)
        self.world.start_trainer()
        self.all_goes_well(turns)

    def all_goes_well(self, turns: int, *, reward: float = 0.5, skip: int = 0) -> None:
        for _ in range(turns):
            if not (self.world.state.finished or self.world.state.error):
                self.world.fair_turn(reward=reward, skip=skip)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.world.run_to_the_end()
            self.the_guarantees_hold()
            found = self.world.audit()
            assert found.lost == 0 and found.trained_twice == 0
            if self.world.state.finished == "complete":
                assert found.steps == max(self.world.settings.steps, self.world.state.reported)
                assert found.live == 0
        finally:
            self.world.ledger.close()
            self.folder.cleanup()

    def worker(self, n: int) -> SimWorker | None:
        alive = [w for w in self.world.workers.values() if not w.refused]
        return alive[n % len(alive)] if alive else None

    def task(self, n: int, *stages: Stage) -> tuple[SimWorker, Held] | None:
        """Some task that some worker holds."""
        held = [
            (worker, task)
            for worker in self.world.workers.values()
            for task in worker.held.values()
            if not worker.refused and (not stages or task.stage in stages)
        ]
        return held[n % len(held)] if held else None

    # What workers do.

    @rule(n=pick, reward=st.sampled_from([0.0, 0.5, 1.0]), done=st.booleans())
    def a_task_is_finished(self, n: int, reward: float, done: bool) -> None:
        if chosen := self.task(n):
            worker, task = chosen
            ends = done or task.turn >= 2
            self.world.finish(worker, task, reward=reward, done=ends and task.stage == Stage.STEP)

    @rule(reward=st.sampled_from([0.0, 0.5, 1.0]))
    def everybody_finishes_everything(self, reward: float) -> None:
        for worker in self.world.workers.values():
            self.world.ping(worker)
            self.world.fetch(worker)
            for index, task in enumerate(list(worker.held.values())):
                self.world.finish(
                    worker, task, reward=reward if index else 0.25, done=task.turn >= 1
                )
        self.world.flush()

    @rule(
        n=pick,
        cause=st.sampled_from(["infrastructure", "timeout", "input", "returned"]),
    )
    def a_task_fails(self, n: int, cause: str) -> None:
        if chosen := self.task(n):
            self.world.finish(*chosen, cause=cause)

    @rule(n=pick)
    def a_replay_differs(self, n: int) -> None:
        if chosen := self.task(n, Stage.STEP):
            self.world.finish(*chosen, cause="replay")

    @rule(n=pick, k=pick, reward=st.sampled_from([None, 0.125]))
    def an_old_result_comes_again(self, n: int, k: int, reward: float | None) -> None:
        worker = self.worker(n)
        if worker and worker.sent and not worker.hung:
            self.world.send_again(worker, worker.sent[k % len(worker.sent)], reward=reward)

    @rule(n=pick)
    def weights_are_fetched(self, n: int) -> None:
        if worker := self.worker(n):
            self.world.fetch(worker)

    @rule(n=pick, tokens=st.integers(1, 3), again=st.booleans())
    def a_partial_is_sent(self, n: int, tokens: int, again: bool) -> None:
        if chosen := self.task(n, Stage.GENERATE):
            self.world.send_partial(*chosen, tokens, again=again)

    @rule(turns=st.integers(1, 12), reward=st.sampled_from([0.0, 0.5, 1.0]))
    def all_goes_well_for_a_while(self, turns: int, reward: float) -> None:
        self.all_goes_well(turns, reward=reward)

    @rule(turns=st.integers(1, 20), n=pick)
    def one_group_lags_behind(self, turns: int, n: int) -> None:
        live = list(self.world.state.groups)
        self.all_goes_well(turns, skip=live[n % len(live)] if live else 0)

    @rule(
        cause=st.sampled_from(["infrastructure", "timeout", "input"]), stage=st.sampled_from(Stage)
    )
    def a_stage_fails_everywhere(self, cause: str, stage: Stage) -> None:
        for worker in self.world.workers.values():
            for task in [t for t in worker.held.values() if t.stage == stage]:
                self.world.finish(worker, task, cause=cause)
        self.world.flush()

    # What happens to workers.

    @rule(n=pick)
    def a_stream_breaks(self, n: int) -> None:
        if worker := self.worker(n):
            self.world.disconnect(worker)

    @rule(n=pick)
    def a_worker_reconnects(self, n: int) -> None:
        worker = self.worker(n)
        if worker and not worker.connected and not worker.hung:
            self.world.connect(worker)

    @rule(n=pick, seconds=st.sampled_from([0.0, 4.0, 30.0, 70.0]))
    def a_worker_hangs(self, n: int, seconds: float) -> None:
        """With all that it holds, and with what it is sent until its silence is noticed."""
        if worker := self.worker(n):
            worker.hung = True
            self.world.now += seconds
            self.world.flush()

    @rule(n=pick)
    def a_pod_is_gone(self, n: int) -> None:
        if worker := self.worker(n):
            self.world.kill_worker(worker)

    @rule(n=pick)
    def a_process_restarts_in_its_pod(self, n: int) -> None:
        if worker := self.worker(n):
            self.world.restart_in_place(worker)

    @rule(n=pick, gone=st.booleans())
    def an_episode_loses_its_worker(self, n: int, gone: bool) -> None:
        keepers = [w for w in self.world.workers.values() if w.residents]
        if keepers:
            worker = keepers[n % len(keepers)]
            if gone:
                self.world.kill_worker(worker)
            else:
                self.world.disconnect(worker)
            self.everybody_finishes_everything(0.5)

    @rule(role=st.sampled_from(list(POOLS)), credits=st.integers(1, 5))
    def a_worker_joins(self, role: str, credits: int) -> None:
        if len(self.world.workers) < 8:
            self.world.add_worker(role, credits)

    # Time and the scheduler.

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.5, 4.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.flush()

    @rule()
    def the_scheduler_turns(self) -> None:
        self.world.flush()

    @rule()
    def the_scheduler_crashes(self) -> None:
        self.world.flush()
        before = dump(self.world.state)
        self.world.crash_scheduler()
        assert dump(self.world.state) == before, "a reopened scheduler knows what the old one knew"

    @rule()
    def the_scheduler_crashes_before_a_commit(self) -> None:
        self.world.flush(commit=False)

    @rule()
    def the_scheduler_crashes_behind_a_commit(self) -> None:
        """What it had to say about it is lost."""
        self.world.flush(deliver=False)

    @rule(n=pick, cause=st.sampled_from(["infrastructure", "timeout", "input", "replay"]))
    def a_failure_is_not_acknowledged(self, n: int, cause: str) -> None:
        stages = [Stage.STEP] if cause == "replay" else []
        if chosen := self.task(n, *stages):
            worker, _ = chosen
            self.world.finish(*chosen, cause=cause)
            self.world.flush(deliver=False)
            if not worker.hung:
                self.world.connect(worker)

    @rule(
        staleness=st.integers(0, 3),
        ahead=st.sampled_from([0.0, 1.0, 1.5, 3.0]),
        more=st.integers(-1, 2),
        every=st.integers(0, 2),
    )
    def the_job_comes_back_changed(
        self, staleness: int, ahead: float, more: int, every: int
    ) -> None:
        """From a suspension, which stops its pods; it may be shortened too."""
        for worker in list(self.world.workers.values()):
            self.world.kill_worker(worker)
        self.world.flush()
        steps = max(1, self.world.state.reported + more)
        lineage, formed, published = self.position
        self.position = (lineage, min(formed, steps), published)
        self.world.reopen(
            max_staleness=staleness,
            run_ahead=min(staleness, ahead),
            steps=steps,
            validation_every=every,
        )

    # The trainer.

    @rule()
    def the_trainer_goes_on(self) -> None:
        try:
            self.world.trainer_turn()
        except training.Fenced:
            self.world.kill_trainer()
        self.world.flush()

    @rule()
    def the_trainer_saves(self) -> None:
        try:
            self.world.commit_checkpoint()
        except training.Fenced:
            self.world.kill_trainer()

    @rule()
    def the_trainer_is_replaced(self) -> None:
        self.world.start_trainer()

    @rule(times=st.integers(1, 4))
    def the_trainer_dies_with_its_batch(self, times: int) -> None:
        """As often as that: it starts, takes the next batch, and is gone."""
        for _ in range(times):
            self.world.start_trainer()
            for _ in range(2):  # rewound, published
                self.world.trainer_turn()
                self.world.flush()
            trainer = self.world.trainer
            try:
                if trainer and trainer.term and trainer.step >= 0:
                    state = self.world.state
                    training.acquire(state, trainer.term, trainer.step + 1, self.world.now)
            except (training.Fenced, training.OutOfOrder):
                pass  # whether it dies of the batch or of the answer
            self.world.flush()

    @rule(steps=st.integers(1, 3))
    def steps_are_trained_and_saved(self, steps: int) -> None:
        target = min(self.world.state.reported + steps, self.world.settings.steps)
        for _ in range(60):
            if self.world.state.reported < target:
                self.all_goes_well(1)
        self.the_trainer_saves()

    @rule()
    def the_newest_checkpoint_is_damaged(self) -> None:
        if self.world.state.checkpoints:
            self.world.broken_checkpoints.add(self.world.state.checkpoints[-1].path)

    @rule()
    def every_checkpoint_is_damaged(self) -> None:
        self.world.broken_checkpoints |= {c.path for c in self.world.state.checkpoints}
        self.world.start_trainer()

    @rule(n=pick)
    def an_old_trainer_speaks(self, n: int) -> None:
        past = [t for t in self.world.past_trainers if t.term]
        if not past or self.world.state.trainer.term == past[n % len(past)].term:
            return
        old = past[n % len(past)]
        for call in (
            lambda: training.report(self.world.state, old.term, old.step + 1, "{}", 0.0),
            lambda: training.acquire(self.world.state, old.term, old.step + 1, 0.0),
            lambda: training.rewind(self.world.state, old.term, 0, 0.0),
        ):
            with pytest.raises(training.Fenced):
                call()

    @rule()
    def a_version_is_published_twice(self) -> None:
        trainer = self.world.trainer
        if trainer and trainer.alive and trainer.published:
            try:
                self.world._publish(trainer)
            except training.Fenced:
                self.world.kill_trainer()

    @invariant()
    def the_guarantees_hold(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.flush()
        found = self.world.audit()
        assert found.problems == []
        assert found.lost == 0 and found.trained_twice == 0
        assert report.dropped(self.world.state.counters) == found.dropped
        assert self.world.impure() == [], "all tokens of a held-out sample are of its version"
        twice = "SELECT lease FROM failures GROUP BY lease HAVING count(*) > 1"
        counted_twice = self.world.ledger.reader.execute(twice).fetchall()
        assert counted_twice == [], "an attempt is counted once"
        state = self.world.state
        formed = min(state.formed, state.settings.steps)  # beyond it batches are abandoned
        now = (state.lineage, formed, -1 if state.published is None else state.published)
        if now[0] == self.position[0] and "poison" not in state.notices:
            assert now >= self.position, "F and the highest version never go back in a lineage"
        self.position = now
        for worker in state.workers.values():
            assert worker.load == len(worker.leases) + _between_turns(worker)
            for key in worker.residents:
                unit = leases.find(state, *key)
                assert unit is not None and unit.resident == worker.id, "an episode nobody misses"
        for pool in state.pools.values():
            assert pool.queued >= 0
            assert pool.free() == sum(w.free for w in pool.workers.values())
        assert state.pre_policy == sum(
            u.stage == Stage.RESET and u.state in (SampleState.WAITING, SampleState.LEASED)
            for g in state.groups.values()
            for u in g.units
        )


def _between_turns(worker: Worker) -> int:
    return len(worker.residents - {lease.unit.key for lease in worker.leases.values()})


class Episodes(Histories):
    """Environments that keep episodes between turns, and lose them."""

    kind: ClassVar[dict[str, Any]] = {"graph": st.sampled_from([AGENTIC, EPISODES])}
    helpers = (("environment", 4),)

    @rule(n=pick)
    def an_action_always_raises(self, n: int) -> None:
        """In an environment that cannot make an episode again."""
        if chosen := self.task(n, Stage.STEP):
            _, task = chosen
            self.world.replays = False
            self.world.raises.add((task.group, task.index, task.turn))
            self.world.finish(*chosen)


class Stragglers(Histories):
    """Groups that lag behind their step: exchanged, waited for, or dropped."""

    kind: ClassVar[dict[str, Any]] = {
        "steps": st.integers(4, 6),
        "groups_per_step": st.integers(2, 3),
        "max_staleness": st.integers(1, 2),
        "run_ahead": st.sampled_from([1.0]),
        "filter_by": st.just("none"),
        "no_progress": st.just(600.0),
    }
    helpers = (("inference", 16), ("environment", 16))


class Restarts(Histories):
    """Trainers that die, on one batch or on bad checkpoints; versions that are validated meanwhile."""

    kind: ClassVar[dict[str, Any]] = {
        "keep_checkpoints": st.integers(1, 2),
        "validation_every": st.just(1),
        "filter_by": st.just("none"),
        "max_attempts": st.just(3),
    }

    @rule()
    def a_version_is_lost_with_its_trainer(self) -> None:
        """Published, announced, and fetched by nobody."""
        before = self.world.state.published
        for _ in range(60):
            if self.world.state.published == before:
                self.all_goes_well(1)
        if self.world.state.published is not None:
            self.world.weights[self.world.state.lineage, self.world.state.published] = "gone"
            self.world.start_trainer()

    @rule(steps=st.integers(1, 2))
    def every_engine_starts_again(self, steps: int) -> None:
        """While a version is validated: the new ones begin with the newest, and so pass it."""
        self.steps_are_trained_and_saved(steps)
        for worker in [w for w in self.world.workers.values() if w.role == "inference"]:
            self.world.restart_in_place(worker)


@pytest.mark.parametrize("machine", [Histories, Episodes, Stragglers, Restarts])
def test_every_history_keeps_the_guarantees_and_can_be_finished(machine: type[Histories]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
