"""What a trainer needs around it: a job, recorded samples, and a real gRPC server that plays the scheduler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from roll_api import RLJob
from roll_wire import PROTOCOL, session_pb2, session_pb2_grpc, trainer_pb2, trainer_pb2_grpc
from roll_wire.channel import SERVER_OPTIONS
from roll_wire.columns import ShardSample, pack_samples
from roll_workers.runtime.config import WorkerConfig
from roll_workers.runtime.trajectory import (
    Trajectory,
    action_piece,
    observation_piece,
    prompt_piece,
)

VOCABULARY = 15
FACTS: dict[str, Any] = {
    "job": "j",
    "job_uid": "uid",
    "lineage": 1,
    "world": 1,
    "seed": 1,
    "weights_digest": "",
    "controllers": {},
}
"""What a manifest says of the job whose checkpoint it is."""


def job(model: Path, **spec: Any) -> RLJob:
    """A job for the tiny model; `spec` replaces whole sections."""
    sections: dict[str, Any] = {
        "pipeline": "RLVR",
        "steps": 4,
        "model": {"path": str(model)},
        "data": {"train": {"path": "builtin:largest-of-three"}},
        "rewards": [{"name": "exact", "scorer": {"kind": "exactMatch"}}],
        "algorithm": {"learningRate": 1e-3, "entropy": 0.01},
        "rollout": {"groupsPerStep": 4, "groupSize": 4, "sampling": {"maxNewTokens": 8}},
        "roles": {
            "inference": {"replicas": 1},
            "reward": {"replicas": 1},
            "environment": {"replicas": 1},
        },
        "checkpoint": {"everySteps": 2, "keepLast": 2},
    }
    return RLJob.parse(
        {
            "apiVersion": "roll.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "j"},
            "spec": {**sections, **spec},
        }
    )


def samples(step: int, groups: int = 4, size: int = 4) -> list[ShardSample]:
    """The recorded batch of a step: the same whenever it is asked for."""
    random = np.random.default_rng(step)
    made = []
    for group in range(groups):
        prompt = random.integers(3, VOCABULARY, random.integers(3, 7))
        rewards = [float(r) for r in random.integers(0, 2, size)]
        for index in range(size):
            tokens = random.integers(0, VOCABULARY, random.integers(1, 6))
            payload = Trajectory.payload(
                prompt_piece(prompt),
                action_piece(tokens, -3 * random.random(len(tokens)), step - 1, 0, "stop"),
            )
            made.append(sample(group, index, payload, rewards, position=group * size + index))
    return made


def sample(
    group: int, index: int, payload: bytes, rewards: list[float], position: int
) -> ShardSample:
    return ShardSample((group, index), position, rewards[index], tuple(rewards), payload)


def dialogue(prompt: list[int], *turns: tuple[list[int], list[int]]) -> bytes:
    """A prompt, then (action, observation) in turn."""
    pieces = [prompt_piece(prompt)]
    for number, (action, observation) in enumerate(turns):
        pieces.append(action_piece(action, [-1.0] * len(action), 0, number, "stop"))
        if observation:
            pieces.append(observation_piece(observation, number))
    return Trajectory.payload(*pieces)


class Scheduler(session_pb2_grpc.SessionServicer, trainer_pb2_grpc.TrainerServicer):
    """Keeps in memory what the ledger would: checkpoints, reports, versions. Outlives its trainers."""

    def __init__(self, storage: Path, world: int = 1) -> None:
        self.storage, self.world = storage, world
        storage.mkdir(parents=True, exist_ok=True)
        self.batches: dict[int, list[ShardSample]] = {}
        self.last_batch = 10**9  # batches beyond it are not complete yet
        self.finished_at = 10**9
        self.steps = 10**9  # of the job that was started last
        self.keep_last = 2  # checkpoints, as in `job`
        self.validated = True  # otherwise the job is not over with its last step
        self.term = 0
        self.checkpoints: list[trainer_pb2.Checkpoint] = []  # newest first
        self.rewinds: list[int] = []
        self.reports: list[tuple[int, int, dict[str, float]]] = []  # term, step, metrics
        self.versions: list[tuple[int, str]] = []  # number, digest
        self.address = ""  # at which the trainer serves weights
        self.log: list[str] = []
        self.changed = threading.Condition()
        self._attempts: dict[int, int] = {}  # attempt -> term
        self._hellos: dict[int, set[int]] = {}
        self._workers: list[subprocess.Popen[str]] = []
        self._closed = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(32), options=SERVER_OPTIONS)
        session_pb2_grpc.add_SessionServicer_to_server(self, self._server)
        trainer_pb2_grpc.add_TrainerServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def stop(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()
        self._closed.set()
        self._server.stop(grace=None).wait()

    def wait_for(self, condition: Any, timeout: float = 60) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout), "nothing happened in time"

    def config(self, attempt: int = 0, rank: int = 0) -> WorkerConfig:
        return WorkerConfig(
            job="j",
            job_uid="uid",
            role="trainer",
            index=rank,
            pod=f"j-trainer-{rank}",
            pod_uid=f"pod-{attempt}-{rank}",
            attempt=attempt,
            scheduler=f"127.0.0.1:{self.port}",
            spec=self.storage / "job.json",
            storage=self.storage,
            source=self.storage,
            rank=rank,
            world=self.world,
        )

    def start_worker(
        self, job: RLJob, attempt: int = 0, rank: int = 0, master_port: int = 0, **env: str
    ) -> subprocess.Popen[str]:
        """A real worker process."""
        config = self.config(attempt, rank)
        config.spec.write_text(job.to_json())
        self.steps = job.spec.steps
        self.keep_last = job.spec.checkpoint.keep_last
        log = (self.storage / f"trainer-{rank}.{attempt}.log").open("w")
        variables = {
            "ROLL_JOB": config.job,
            "ROLL_JOB_UID": config.job_uid,
            "ROLL_ROLE": "trainer",
            "ROLL_INDEX": str(rank),
            "ROLL_POD": config.pod,
            "ROLL_POD_UID": config.pod_uid,
            "ROLL_ATTEMPT": str(attempt),
            "ROLL_SCHEDULER": config.scheduler,
            "ROLL_SPEC": str(config.spec),
            "ROLL_STORAGE": str(config.storage),
            "ROLL_SOURCE": str(config.source),
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(master_port),
            "OMP_NUM_THREADS": "1",
        }
        worker = subprocess.Popen(
            [sys.executable, "-m", "roll_workers"],
            env=os.environ | variables | env,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._workers.append(worker)
        return worker

    def worker_log(self, attempt: int = 0, rank: int = 0) -> str:
        return (self.storage / f"trainer-{rank}.{attempt}.log").read_text()

    def figures(self) -> list[dict[str, Any]]:
        lines = (self.storage / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    # Session.

    def Open(self, requests: Iterator[session_pb2.FromWorker], context: Any) -> Any:
        hello = next(requests).hello
        with self.changed:
            if hello.attempt not in self._attempts:
                self.term += 1
                self._attempts[hello.attempt] = self.term
            self._hellos.setdefault(hello.attempt, set()).add(hello.rank)
            self.changed.notify_all()
            self.changed.wait_for(lambda: len(self._hellos[hello.attempt]) == self.world, 60)
        term = self._attempts[hello.attempt]
        yield session_pb2.ToWorker(
            welcome=session_pb2.Welcome(protocol=PROTOCOL, term=1, trainer_term=term, lineage=1)
        )
        told = False
        while context.is_active() and not self._closed.wait(0.05):
            if not told and self.validated and self._last_step_is_committed():
                told = True
                yield session_pb2.ToWorker(drain=session_pb2.Drain(reason="complete"))

    def _last_step_is_committed(self) -> bool:
        return bool(self.checkpoints) and self.checkpoints[0].step >= self.steps

    # Trainer.

    def _note(self, what: str, request: Any, context: Any) -> None:
        if request.trainer.term < self.term:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "an older trainer")
        with self.changed:
            self.log.append(what)
            self.changed.notify_all()

    def GetPosition(self, request: Any, context: Any) -> Any:
        self._note("position", request, context)
        return trainer_pb2.Position(checkpoints=self.checkpoints, lineage=1)

    def Rewind(self, request: Any, context: Any) -> Any:
        self.rewinds.append(request.step)
        self._note(f"rewind {request.step}", request, context)
        self.checkpoints = [c for c in self.checkpoints if c.step <= request.step]
        return trainer_pb2.RewindReply(lineage=1)

    def AcquireBatch(self, request: Any, context: Any) -> Any:
        self._note(f"acquire {request.step}", request, context)
        if request.step > self.finished_at:
            return trainer_pb2.Batch(step=request.step, finished=True)
        if request.step > self.last_batch:
            self._closed.wait(0.05)
            return trainer_pb2.Batch(step=request.step, retry=True)
        return trainer_pb2.Batch(step=request.step, samples=len(self.batch(request.step)))

    def batch(self, step: int) -> list[ShardSample]:
        return self.batches.setdefault(step, samples(step))

    def FetchShard(self, request: Any, context: Any) -> Any:
        share = self.batch(request.step)[request.trainer.rank :: request.world]
        for start in range(0, len(share), 64):
            yield pack_samples(share[start : start + 64])

    def ReportStep(self, request: Any, context: Any) -> Any:
        self.reports.append((request.trainer.term, request.step, dict(request.metrics)))
        self._note(f"report {request.step}", request, context)
        self._published(request.publication)
        return trainer_pb2.Done()

    def PublishVersion(self, request: Any, context: Any) -> Any:
        self._published(request)
        self._note(f"publish {request.version.number}", request, context)
        return trainer_pb2.Done()

    def _published(self, said: trainer_pb2.Publication) -> None:
        self.versions.append((said.version.number, said.manifest_digest))
        streams = [place for place in said.locations if place.startswith("grpc:")]
        self.address = streams[0].removeprefix("grpc:") if streams else ""

    def CommitCheckpoint(self, request: Any, context: Any) -> Any:
        self._note(f"commit {request.checkpoint.step}", request, context)
        gone = [c for c in self.checkpoints if c.step == request.checkpoint.step]
        kept = [request.checkpoint, *(c for c in self.checkpoints if c not in gone)]
        self.checkpoints, surplus = kept[: self.keep_last], kept[self.keep_last :]
        gone += surplus
        return trainer_pb2.CheckpointReply(remove=[c.path for c in gone])
