"""The trainer, top to bottom: come back to the newest checkpoint, then batch by batch to the last step.

Invariant: step N turns version N-1 into N. What happens to the weights is a function of the checkpoint and the
recorded batches alone, so a trainer that died and came back, and `roll replay`, end with the same bits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from roll_api import RLJob
from roll_wire import session_pb2, trainer_pb2
from roll_wire.columns import unpack_samples

from roll_workers.builtin.models import resolve_model
from roll_workers.errors import Drained, UserError
from roll_workers.runtime.config import WorkerConfig
from roll_workers.runtime.trainer_session import TrainerSession
from roll_workers.trainer import metrics
from roll_workers.trainer.arithmetic import arithmetic
from roll_workers.trainer.batch import build_shard
from roll_workers.trainer.checkpoint import CheckpointStore, Place, place_of
from roll_workers.trainer.objective import Objective
from roll_workers.trainer.strategies import NonFinite, make_strategy
from roll_workers.weights import locations, publish, serve_weights

log = logging.getLogger(__name__)


def main(config: WorkerConfig, job: RLJob) -> None:
    weights = serve_weights(config.storage / "weights", closed=config.tls is not None)
    with TrainerSession(config, weights) as session:
        trainer = Trainer(config, job, session, output=config.storage)
        try:
            trainer.run()
            # Held-out prompts are still answered with the last version, which is fetched from here.
            session.stay()
        finally:
            trainer.close()


def place_of_job(config: WorkerConfig, job: RLJob) -> Place:
    """Below a URI every job has a folder of its own, and one that comes again under its name another."""
    owner = f"{config.job}/{config.job_uid}"
    return place_of(config.storage, job.spec.storage.uri, owner, config.rank)


class Trainer:
    """One rank. `output` is where weights, metrics and checkpoints go; replay writes elsewhere.

    `starts`: the checkpoints from which a replay may start, the best first; it keeps none of its own.
    """

    def __init__(
        self,
        config: WorkerConfig,
        job: RLJob,
        session: TrainerSession,
        *,
        output: Path,
        starts: Sequence[trainer_pb2.Checkpoint] | None = None,
    ) -> None:
        self.config, self.job, self.spec = config, job, job.spec
        self.session, self.calls = session, session.calls
        self.output, self.starts, self.keeps = output, starts, starts is None
        self.rank, self.world = config.rank, config.world
        self.objective = Objective(job.spec)
        self.arithmetic = arithmetic(job.spec, config.world)
        self.strategy = make_strategy(
            job.spec.roles.trainer.strategy, self.rank, self.world, config.local_rank
        )
        place = place_of_job(config, job)
        self.checkpoints = CheckpointStore(place, self.strategy, self.rank)
        self.recorder: metrics.Recorder | None = None
        self.saved = -1  # step of the newest checkpoint
        self.digest = ""  # of the weights after the newest step

    def run(self) -> None:
        source = self.spec.model
        model = resolve_model(source.path, self.config.storage, self.config.source)
        reference = model
        if source.reference is not None:
            reference = resolve_model(
                source.reference.path, self.config.storage, self.config.source
            )
        self.strategy.load(model, self.spec, reference)
        self.term, _ = self.session.welcome()  # when all ranks of this attempt have said Hello
        self.strategy.join()
        step = self.come_back()
        while step < self.steps:
            if not self.acquire(step + 1):
                break
            step += 1
            self.train(step)
            if step % self.spec.checkpoint.every_steps == 0 or step == self.steps:
                self.checkpoint(step)
        if step > self.saved:  # drained, or out of batches: the work of the last steps is kept
            self.checkpoint(step)

    def come_back(self) -> int:
        """Restores the newest intact checkpoint M and makes version M fetchable; without any, M is 0."""
        position = self.calls.GetPosition(trainer_pb2.PositionRequest())
        vouched = list(position.checkpoints if self.starts is None else self.starts)
        lost = self.keeps and not vouched  # a new job, or a ledger that was lost
        if lost:
            vouched = self.checkpoints.found(self.config.job_uid)
        newest, manifest = self.checkpoints.restore_first(vouched)
        self.steps = position.steps or self.spec.steps  # a replay ends where its record does
        step = 0
        if newest is not None:
            step = self.saved = newest.step
        elif vouched and not self.keeps:
            damaged = " and ".join(checkpoint.path for checkpoint in vouched)
            raise UserError(f"nothing to replay: {damaged} would be where to start, and is damaged")
        elif vouched:
            log.warning(
                "no checkpoint is intact: starting again from the model at step 0; what is left of them "
                "stays until the trainer's next start"
            )
        request = trainer_pb2.RewindRequest(step=step)
        if lost and vouched:
            request.bookmark = manifest.bookmark if manifest is not None else ""
            request.lineage = max(checkpoint.lineage for checkpoint in vouched)
        reply = self.calls.Rewind(request) if self.rank == 0 else None
        term, self.lineage = self.strategy.all_gather(reply and (reply.term, reply.lineage))[0]
        self.term = self.session.take_term(term)
        log.info("starting at step %d of %d, lineage %d", step, self.steps, self.lineage)
        if lost and newest is not None:
            log.warning("the ledger knew no checkpoint: going on from the one at %s", newest.path)
        position = self.calls.GetPosition(trainer_pb2.PositionRequest())  # which the rewind changed
        self.bookmark = position.bookmark
        self.write_weights(step)
        if lost or manifest is None or manifest.lineage != self.lineage:
            # Before anybody hears of the lineage, so that none is counted twice, even if the ledger is lost.
            # And before the first admission, which waits for version 0.
            self.checkpoint(step)
        elif self.strategy.all_gather(manifest.arithmetic != self.arithmetic)[0]:
            self.checkpoint(step)  # it names the settings of the steps after it, which were changed
        # Where none is intact, somebody may still mend what is left of them.
        if self.keeps and (newest is not None or not vouched):
            self.checkpoints.remove_leftovers(position.checkpoints, self.term)
        if self.rank == 0:
            self.recorder = metrics.Recorder(self.output, step)
            self.calls.PublishVersion(self.publication(step))
        return step

    def acquire(self, step: int) -> bool:
        """Waits until batch `step` is recorded. False: there is none, or this trainer is to stop."""
        self.began = time.perf_counter()
        go_on = False
        if self.rank == 0 and not self.session.draining.is_set():
            try:
                batch = self.calls.AcquireBatch(trainer_pb2.BatchRequest(step=step))
                go_on = not batch.finished
                self.bookmark = batch.bookmark or self.bookmark
            except Drained:
                log.info("asked to stop before step %d", step)
        return bool(self.strategy.all_gather(go_on)[0])

    def train(self, step: int) -> None:
        waited = time.perf_counter()
        request = trainer_pb2.ShardRequest(step=step, world=self.world)
        samples = [s for chunk in self.calls.FetchShard(request) for s in unpack_samples(chunk)]
        shard = build_shard(samples, self.strategy.vocabulary, self.strategy.context)
        fetched = time.perf_counter()

        shard.batch = batch = self.objective.prepare(shard, self.strategy)
        figures: dict[str, float] = {}
        sums, updates = None, 0
        rate = self.objective.learning_rate(step)
        prepared = time.perf_counter()
        for part in self.objective.minibatches(shard, batch, self.strategy):
            try:
                figures, share = self.strategy.train_step(part, self.objective.loss, rate)
            except NonFinite as error:
                units = [shard.units[shard.sample[s]] for s in error.sequences]
                raise FloatingPointError(
                    f"step {step}: {error}; nothing was updated; samples: {units or 'unknown'}"
                ) from error
            sums = share if sums is None else sums + share
            updates += 1
        trained = time.perf_counter()

        self.write_weights(step)
        assert sums is not None
        described = metrics.describe_shard(shard, step - 1)
        figures |= self.objective.figures(sums, updates)
        figures |= metrics.over_ranks(described, self.strategy)
        written = time.perf_counter()
        total = written - self.began
        figures |= {
            "actor/lr": rate,
            "system/tps": figures["system/tokens"] / total,
            "time/step_rollout": waited - self.began,
            "time/step_fetch": fetched - waited,
            "time/step_adv": prepared - fetched,
            "time/step_train": trained - prepared,
            "time/step_model_update": written - trained,
            "time/step_total": total,
        }
        if self.rank == 0:
            self.calls.ReportStep(
                trainer_pb2.StepReport(
                    step=step, metrics=figures, publication=self.publication(step)
                )
            )
            assert self.recorder is not None
            facts = {"lineage": self.lineage, "weights_digest": self.digest}
            self.recorder.record(step, figures, facts)

    def write_weights(self, version: int) -> None:
        """Every rank gathers, rank 0 writes."""
        tensors = self.strategy.weights()
        if self.rank == 0:
            folder, keep = self.output / "weights", self.spec.weights.keep
            written = publish(folder, (self.lineage, version), tensors, self.term, keep=keep)
            self.digest = written.digest

    def publication(self, version: int) -> trainer_pb2.Publication:
        number = session_pb2.PolicyVersion(lineage=self.lineage, number=version)
        places = locations(
            self.output / "weights",
            (self.lineage, version),
            self.session.address,
            self.spec.weights.transfer,
        )
        return trainer_pb2.Publication(
            version=number, manifest_digest=self.digest, locations=places
        )

    def checkpoint(self, step: int) -> None:
        """Shards, manifest, ledger, in this order; then what the ledger let go of is removed."""
        if not self.keeps:
            return
        facts = {
            "job": self.config.job,
            "job_uid": self.config.job_uid,
            "lineage": self.lineage,
            "world": self.world,
            "seed": self.spec.seed,
            "weights_digest": self.digest,
            "controllers": {},
            "bookmark": self.bookmark,
            "arithmetic": self.arithmetic,
        }
        saved = self.checkpoints.save(facts, step=step, term=self.term)
        self.commit(step, saved.path, saved.digest)
        self.saved = step
        log.info("checkpoint of step %d committed", step)

    def commit(self, step: int, path: str, digest: str) -> None:
        if self.rank != 0:
            return
        checkpoint = trainer_pb2.Checkpoint(
            step=step, lineage=self.lineage, path=path, digest=digest
        )
        reply = self.calls.CommitCheckpoint(trainer_pb2.CheckpointCommit(checkpoint=checkpoint))
        self.checkpoints.remove(reply.remove)

    def close(self) -> None:
        if self.recorder is not None:
            self.recorder.close()
        self.strategy.close()
