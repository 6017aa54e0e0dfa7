"""A job's scheduler with its ledger, workers and trainer, in one thread and virtual time, without sockets.

A test (or Hypothesis) can do anything to them in any order: lose messages, kill, restart, repeat, contradict.
Payloads say which lease made them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from roll_operator.scheduler import (
    arrivals,
    audit,
    core,
    failures,
    flow,
    leases,
    presence,
    training,
)
from roll_operator.scheduler.ledger import SqliteLedger
from roll_operator.scheduler.ledger.rows import read_groups
from roll_operator.scheduler.lifecycle import GroupState, Lease, Stage
from roll_operator.scheduler.presence import Greeting, HeldLease
from roll_operator.scheduler.settings import Settings
from roll_operator.scheduler.state import Acks, CheckpointRow, JobState, Out, Publication

from support.scheduler_roles import Held, Outcome, Said, SimTrainer, SimWorker, message

POOLS = {"inference": "policy", "environment": "environment", "reward": "reward"}


class Machine:
    def __init__(
        self, folder: Path, settings: Settings, *, data_rows: int = 7, segment_bytes: int = 1 << 16
    ) -> None:
        self.folder, self.settings, self.rows = folder, settings, data_rows
        self.segment_bytes = segment_bytes
        self.now = 1000.0
        self.workers: dict[str, SimWorker] = {}
        self.trainer: SimTrainer | None = None
        self.past_trainers: list[SimTrainer] = []
        self.broken_checkpoints: set[str] = set()
        self.weights: dict[tuple[int, int], str] = {}  # the digests of those that can be fetched
        self.held_out = "held-out"  # the digest of those prompts
        self.replays = True  # environments make an episode again that lived elsewhere
        self.raises: set[tuple[int, int, int]] = (
            set()
        )  # (group, index, turn) whose step does, always
        self.stored: dict[tuple[int, int, str, int], int] = {}
        self._pods = 0
        self.ledger: SqliteLedger
        self.state: JobState
        self.open()

    # The scheduler.

    def open(self) -> None:
        self.ledger = SqliteLedger(
            self.folder, self.settings, sync=False, segment_bytes=self.segment_bytes
        )
        self.state = self.ledger.open(self.now)

    def crash_scheduler(self) -> None:
        """Whatever was not committed is gone, and every stream is broken."""
        self.ledger.close()
        for worker in self.workers.values():
            worker.connected = False
        if self.trainer:
            self.trainer.welcomed = False
        self.open()

    def reopen(self, **changed: Any) -> None:
        """As after a suspension in which the job's spec was changed."""
        self.settings = replace(self.settings, **changed)
        self.crash_scheduler()

    def flush(self, *, commit: bool = True, deliver: bool = True) -> None:
        """A turn of the scheduler, which may crash before its commit, or right behind it."""
        core.tick(self.state, self.now)
        core.dispatch(self.state, self.now)
        writes, out = self.state.take()
        payloads = self.ledger.store.take()
        if not commit:
            self.crash_scheduler()
            return
        if writes:
            self.ledger.commit(writes, payloads)
        self.ledger.store.done()
        if deliver:
            self._deliver(out)
        else:
            self.crash_scheduler()

    def _deliver(self, out: Out) -> None:
        for worker in self.workers.values():
            if not worker.connected:
                continue
            name = worker.id
            if name in out.refused:
                worker.refused, worker.connected = out.refused[name][0], False
                continue
            fenced, evicted = out.welcomes.get(name, ([], []))
            for lease in [*fenced, *out.cancels.get(name, [])]:
                worker.held.pop(lease, None)
                worker.unacked.pop(lease, None)
            for unit in [*evicted, *out.evict.get(name, [])]:
                worker.residents.pop(unit, None)
            acks = out.acks.get(name, Acks())
            for lease, verdict in zip(acks.leases, acks.verdicts, strict=True):
                worker.unacked.pop(lease, None)
                if verdict == leases.FENCED:
                    worker.residents = {
                        k: t for k, t in worker.residents.items() if t.lease != lease
                    }
            if name in out.policies:
                policy = out.policies[name]
                worker.offered = policy.lineage, policy.number
                worker.digest = policy.digest
            for lease in out.assign.get(name, []):
                if lease.unit.lease is lease:
                    task = worker.held[lease.id] = self._task(lease)
                    if worker.version and worker.version[1] >= task.min_version:
                        task.began = worker.version
                    task.at_home = worker.residents.pop(lease.unit.key, None) is not None
        trainer = self.trainer
        if trainer and trainer.id in out.welcomes and not trainer.welcomed:
            trainer.welcomed = True
            if trainer.term not in (0, self.state.trainer.term):
                trainer.alive = False
            trainer.term = self.state.trainer.term
            trainer.lineage = self.state.lineage

    def _task(self, lease: Lease) -> Held:
        unit = lease.unit
        return Held(
            lease.id,
            unit.group.id,
            unit.index,
            lease.stage,
            lease.turn,
            self.state.min_version(unit.group) if lease.stage == Stage.GENERATE else 0,
            unit.group.validation is not None,
            unit.kept,
        )

    # Workers.

    def add_worker(self, role: str, credits: int = 4) -> SimWorker:
        self._pods += 1
        worker = SimWorker(role, f"{role}-{self._pods}", f"uid-{self._pods}", credits=credits)
        self.workers[worker.uid] = worker
        self.connect(worker)
        return worker

    def connect(self, worker: SimWorker) -> None:
        data = {"train": (self.rows, "hash")}
        if self.settings.validation_every:
            data["validation"] = (3, self.held_out)
        held = [HeldLease(t.group, t.index, t.lease, t.stage, t.turn) for t in worker.held.values()]
        for outcome in worker.unacked.values():
            t = outcome.task
            resident = (t.group, t.index) in worker.residents
            held.append(HeldLease(t.group, t.index, t.lease, t.stage, t.turn, resident))
        held += [
            HeldLease(t.group, t.index, t.lease, t.stage, t.turn, True)
            for t in worker.residents.values()
            if t.lease not in worker.unacked
        ]
        greeting = Greeting(
            worker=worker.id,
            pod=worker.name,
            pod_uid=worker.uid,
            role=worker.role,
            pool=POOLS[worker.role],
            credits=worker.credits,
            version=worker.version[1] if worker.version else None,
            lineage=worker.version[0] if worker.version else None,
            held=held,
            data=data if worker.role == "environment" else {},
        )
        worker.connected = True
        presence.hello(self.state, greeting, self.now)
        self.flush()
        for outcome in list(worker.unacked.values()):
            self._send(worker, outcome)
        self.flush()

    def ping(self, worker: SimWorker) -> None:
        known = self.state.workers.get(worker.id)
        if worker.connected and known and not worker.hung:
            presence.seen(self.state, known, self.now)

    def disconnect(self, worker: SimWorker) -> None:
        worker.connected = False
        known = self.state.workers.get(worker.id)
        if known:
            presence.disconnected(self.state, known, self.now)

    def kill_worker(self, worker: SimWorker) -> None:
        """The operator notices and says so."""
        self.workers.pop(worker.uid, None)
        presence.pods_gone(self.state, [worker.uid], self.now)

    def restart_in_place(self, worker: SimWorker) -> None:
        """The same pod, a new process: it knows nothing of what the old one held."""
        worker.incarnation += 1
        worker.held, worker.unacked, worker.residents, worker.version = {}, {}, {}, None
        worker.offered, worker.hung = None, False
        self.connect(worker)

    def fetch(self, worker: SimWorker) -> None:
        if worker.hung or worker.offered is None or self.weights[worker.offered] != worker.digest:
            return
        if worker.version is None or worker.offered > worker.version:
            worker.version = worker.offered
            known = self.state.workers.get(worker.id)
            if worker.connected and known:
                presence.holding(self.state, known, *worker.version)

    def finish(
        self,
        worker: SimWorker,
        task: Held,
        *,
        reward: float = 0.5,
        done: bool = False,
        cause: str = "",
    ) -> None:
        """The worker ends a task: by a result, or by a failure with a cause."""
        if task.lease not in worker.held or worker.hung:
            return
        if task.stage == Stage.GENERATE:
            if worker.version is None or worker.version[1] < task.min_version:
                self.fetch(worker)
            if worker.version is None or worker.version[1] < task.min_version:
                return  # not there yet: it waits for its weights
        version = worker.version[1] if worker.version else None
        cause = cause or self._goes_wrong(task)
        del worker.held[task.lease]
        if cause:
            outcome = Outcome(task, "failure", version, cause=cause)
        else:
            graph = self.settings.graph
            ends = graph.after(task.stage, done=done) is None
            outcome = Outcome(task, "result", version, version, reward if ends else None, done)
            outcome.lineage = worker.version[0] if worker.version else None
            mixed = task.began is not None and task.began[0] == outcome.lineage
            outcome.oldest = task.began[1] if task.began and mixed else version
            stays = task.stage in (Stage.RESET, Stage.STEP) and graph.interactive and not done
            if stays:
                worker.residents[task.group, task.index] = task
            else:
                worker.residents.pop((task.group, task.index), None)
        worker.unacked[task.lease] = outcome
        worker.sent.append(outcome)
        self._send(worker, outcome)

    def _goes_wrong(self, task: Held) -> str:
        """What comes of a step, whoever takes it: an episode that raised is gone, and another has to be made."""
        if task.stage != Stage.STEP:
            return ""
        if not (self.replays or task.at_home):
            return "replay"
        return "input" if (task.group, task.index, task.turn) in self.raises else ""

    def _send(self, worker: SimWorker, outcome: Outcome) -> None:
        known = self.state.workers.get(worker.id)
        if not worker.connected or known is None:
            return
        task = outcome.task
        if outcome.kind == "failure":
            failures.failure(
                self.state, known, group=task.group, index=task.index, lease=task.lease,
                cause=outcome.cause, message="provoked", now=self.now,
            )  # fmt: skip
            return
        generates = task.stage == Stage.GENERATE
        said = Said(
            task.group,
            task.index,
            task.lease,
            task.turn,
            self.payload(task),
            tokens=2 if generates else 0,
            oldest=outcome.oldest if generates else None,
            newest=outcome.version if generates else None,
            lineage=outcome.lineage if generates else None,
            reward=outcome.reward,
            done=outcome.done,
            resident=(task.group, task.index) in worker.residents,
            base=task.kept,
        )
        arrivals.results(self.state, known, message(task.stage, [said]), self.now)
        verdict = self.state.out.acks[known.id].verdicts[-1]
        if verdict == leases.STORED:
            key = (task.group, task.index, task.stage, task.turn)
            self.stored[key] = self.stored.get(key, 0) + 1

    def payload(self, task: Held) -> bytes:
        return f"{task.lease}".encode()

    def send_partial(self, worker: SimWorker, task: Held, tokens: int, *, again: bool) -> None:
        """What was generated so far, once or twice over."""
        known = self.state.workers.get(worker.id)
        ready = worker.version is not None and worker.version[1] >= task.min_version
        if not (ready and known and worker.connected) or task.partials or worker.hung:
            return
        assert worker.version
        began = task.began if task.began and task.began[0] == worker.version[0] else worker.version
        for _ in range(2 if again else 1):
            flow.progress(
                self.state, known, lease=task.lease, tokens=task.kept + tokens, now=self.now,
                partial=b"partial", partial_tokens=tokens, oldest=began[1],
                newest=worker.version[1],
            )  # fmt: skip
        task.partials = True
        task.kept += tokens
        task.began = worker.version

    def send_again(self, worker: SimWorker, outcome: Outcome, *, reward: float | None) -> None:
        """A duplicate, late or contradicting result."""
        again = replace(outcome)
        if reward is not None and again.reward is not None:
            again.reward = reward
        self._send(worker, again)

    # The trainer.

    def start_trainer(self) -> None:
        if self.trainer:
            self.kill_trainer()
        attempt = len(self.past_trainers)
        self._pods += 1
        self.trainer = SimTrainer(attempt, f"uid-{self._pods}")
        self.join_trainer()

    def join_trainer(self) -> None:
        trainer = self.trainer
        assert trainer
        presence.hello(
            self.state,
            Greeting(
                worker=trainer.id, pod="trainer-0", pod_uid=trainer.uid, role="trainer",
                pool="trainer", attempt=trainer.attempt,
            ),
            self.now,
        )  # fmt: skip
        self.flush()

    def kill_trainer(self) -> None:
        """The process dies; the old object can still try to speak (two trainers at once)."""
        if self.trainer:
            self.past_trainers.append(self.trainer)
            self.trainer = None

    def trainer_turn(self) -> None:
        """The next thing that the trainer's loop does."""
        trainer, state = self.trainer, self.state
        if trainer is None or not trainer.alive:
            return
        if not trainer.welcomed:
            self.join_trainer()
            return
        if trainer.step < 0:
            good = [c for c in state.checkpoints if c.path not in self.broken_checkpoints]
            start = good[-1].step if good else 0
            trainer.lineage = training.rewind(state, trainer.term, start, self.now)
            trainer.step = start
            if not good:
                self._commit_checkpoint(trainer)
        elif not trainer.published:
            self._publish(trainer)
            trainer.published = True
        elif trainer.step < state.settings.steps:
            batch = training.acquire(state, trainer.term, trainer.step + 1, self.now)
            if batch is None:
                return
            trainer.acquired = batch.step
            training.report(state, trainer.term, batch.step, "{}", self.now)
            trainer.step, trainer.published = batch.step, False
        elif not state.checkpoints or state.checkpoints[-1].step < trainer.step:
            self._commit_checkpoint(trainer)

    def commit_checkpoint(self) -> None:
        if self.trainer and self.trainer.alive and self.trainer.step > 0:
            self._commit_checkpoint(self.trainer)

    def _commit_checkpoint(self, trainer: SimTrainer) -> None:
        path = f"step-{trainer.step}-t{trainer.term}-l{trainer.lineage}"
        row = CheckpointRow(trainer.step, trainer.lineage, path, "digest")
        training.commit(self.state, trainer.term, row, self.now)

    def _publish(self, trainer: SimTrainer) -> None:
        """Every trainer comes to other weights, and its files replace those of the one before."""
        digest = f"of trainer {trainer.attempt}"
        publication = Publication(trainer.step, trainer.lineage, digest, ("/weights",))
        training.publish(self.state, trainer.term, publication)
        self.weights[trainer.lineage, trainer.step] = digest

    def impure(self) -> list[int]:
        """Held-out groups that count for one version and have tokens of another."""
        query = f"SELECT id FROM groups WHERE state = {int(GroupState.EVALUATED)}"
        ids = [group for (group,) in self.ledger.reader.execute(query)]
        return [
            group.id
            for group in read_groups(self.ledger.reader, self.settings.graph, ids)
            for unit in group.kept
            if unit.oldest is not None and {unit.oldest, unit.newest} != {group.validation}
        ]

    def audit(self) -> audit.Audit:
        return audit.audit(self.ledger.reader, self.settings, self.ledger.store)
