"""A whole job around the real decision code and the real ledger: the steps of which tests tell their stories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from roll_operator.scheduler import presence, training
from roll_operator.scheduler.lifecycle import Stage
from roll_operator.scheduler.state import JobState, Publication

from support.scheduler_machine import POOLS, Machine
from support.scheduler_roles import Held, SimWorker

__all__ = ["POOLS", "Held", "MakeWorld", "SimWorker", "World"]


class World(Machine):
    def begin(self) -> None:
        """The trainer is welcomed and publishes version 0; engines hold it, and groups are admitted."""
        while self.state.published is None:
            self.trainer_turn()
            self.flush()
        self.fetch_all()

    def fetch_all(self) -> None:
        for worker in self.workers.values():
            self.fetch(worker)
        self.flush()

    def tasks(self, stage: str = "", group: int = 0) -> list[tuple[SimWorker, Held]]:
        """What workers hold: of one stage, of one group, or all."""
        return [
            (worker, task)
            for worker in self.workers.values()
            for task in worker.held.values()
            if (not stage or task.stage == stage) and (not group or task.group == group)
        ]

    def finish_all(self, stage: str = "", group: int = 0, **outcome: Any) -> int:
        """Everybody finishes what it now holds of this kind; returns how many tasks that was."""
        chosen = self.tasks(stage, group)
        for worker, task in chosen:
            self.finish(worker, task, **outcome)
        self.flush()
        return len(chosen)

    def complete(self, group: int, *, rewards: Sequence[float] = (0.5,)) -> None:
        """Bring one group to its end, its samples rewarded in turn."""
        while chosen := self.tasks(group=group):
            for worker, task in chosen:
                self.finish(worker, task, reward=rewards[task.index % len(rewards)])
            self.flush()

    def train(self, steps: int = 1) -> None:
        """All goes well until so many more steps are reported and published."""
        target = self.state.reported + steps
        for _ in range(200 * steps):
            if self.state.reported >= target and self.state.published == self.state.reported:
                return
            self.fair_turn()
        raise AssertionError(f"step {target} is not reached: {self.describe()}")

    def take_version(self, engine: SimWorker, number: int) -> None:
        """The engine holds a version that the trainer, which is not there yet, publishes for that."""
        assert self.trainer
        state, reported = self.state, self.state.reported
        state.reported = number
        publication = Publication(number, state.lineage, "digest", ("/weights",))
        training.publish(state, self.trainer.term, publication)
        state.reported = reported
        self.weights[state.lineage, number] = "digest"
        engine.version = (state.lineage, number)
        presence.holding(state, state.workers[engine.id], *engine.version)

    def seat(self) -> tuple[JobState, int]:
        """The state and the term of the current trainer, as calls of the trainer want them."""
        assert self.trainer
        return self.state, self.trainer.term

    # A fair continuation.

    def run_to_the_end(self, *, turns: int = 3000) -> None:
        """Everybody who does not hang behaves from now on: the job must finish."""
        for _ in range(turns):
            if self.state.finished or self.state.error:
                return
            self.fair_turn()
        raise AssertionError(f"no end after {turns} fair turns: {self.describe()}")

    def fair_turn(self, *, reward: float = 0.5, skip: int = 0) -> None:
        self.now += 1.0
        for role in POOLS:
            here = [w for w in self.workers.values() if w.role == role and not w.refused]
            if all(w.hung for w in here):
                self.add_worker(role)
        if self.trainer is None or not self.trainer.alive:
            self.start_trainer()
        for worker in list(self.workers.values()):
            if worker.refused:
                self.workers.pop(worker.uid)
                continue
            if not worker.connected and not worker.hung:
                self.connect(worker)
            self.ping(worker)
            self.fetch(worker)
            for task in [t for t in worker.held.values() if t.group != skip]:
                last = task.stage == Stage.STEP and task.turn >= 1
                self.finish(worker, task, reward=reward, done=last)
        try:
            self.trainer_turn()
        except training.Fenced:
            self.start_trainer()
        self.flush()

    def describe(self) -> str:
        s = self.state
        return (
            f"lineage {s.lineage} formed {s.formed} reported {s.reported} published {s.published} "
            f"asked {s.asked} groups {[(g.id, g.step, g.slot, g.state.name, [(u.stage, u.state.name) for u in g.units]) for g in s.groups.values()]} "
            f"pre {s.pre_policy} queued {[(p.name, p.queued, p.free()) for p in s.pools.values()]} "
            f"validations {s.validations} checkpoints {s.checkpoints} trainer {self.trainer}"
        )


MakeWorld = Callable[..., World]


def engines(job: World) -> list[SimWorker]:
    return [w for w in job.workers.values() if w.role == "inference"]


def environments(job: World) -> list[SimWorker]:
    return [w for w in job.workers.values() if w.role == "environment"]


def start(job: World, **credits: list[int]) -> World:
    for role in ("environment", "reward", "inference"):
        for each in credits.get(role, [64]):
            job.add_worker(role, credits=each)
    job.start_trainer()
    job.begin()
    return job


def kill(job: World, worker: SimWorker) -> None:
    job.kill_worker(worker)
    job.flush()
