"""The scheduler as a process, and peers that speak to it over real gRPC streams."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from roll_wire import PROTOCOL, control_pb2_grpc, session_pb2_grpc, trainer_pb2, trainer_pb2_grpc
from roll_wire.columns import pack_results, unpack_tasks
from roll_wire.ports import free_port
from roll_wire.session_pb2 import (
    DataSet,
    FromWorker,
    Hello,
    Holding,
    PolicyVersion,
    Result,
    Task,
    ToWorker,
)

SECONDS = 100.0  # stops a hang; a busy machine is slow
JOB_UID = "job-uid"


def job_document(**rollout: Any) -> dict[str, Any]:
    return {
        "apiVersion": "roll.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "sums"},
        "spec": {
            "pipeline": "RLVR",
            "steps": 4,
            "model": {"path": "builtin:tiny-qwen2"},
            "data": {"train": {"path": "builtin:largest-of-three"}},
            "rewards": [{"name": "exact", "scorer": {"kind": "exactMatch"}}],
            "rollout": {
                "groupsPerStep": 2,
                "groupSize": 2,
                "maxStaleness": 1,
                "runAhead": 0.0,
                "retry": {"reconnectGraceSeconds": 3.0},
            }
            | rollout,
            "roles": {
                "trainer": {"replicas": 2},
                "inference": {"replicas": 1},
                "reward": {"replicas": 1},
                "environment": {"replicas": 1},
            },
        },
    }


@dataclass
class Scheduler:
    """`python -m roll_operator.scheduler` (or another `command`), restarted on the same port as often as a test likes."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[str] | None = None
    channels: list[grpc.Channel] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)  # over what every scheduler is told
    command: tuple[str, ...] = ("-m", "roll_operator.scheduler")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def launch(self, **rollout: Any) -> subprocess.Popen[str]:
        (self.folder / "job.json").write_text(json.dumps(job_document(**rollout)))
        env = (
            os.environ
            | {
                "ROLL_JOB": "sums",
                "ROLL_JOB_UID": JOB_UID,
                "ROLL_SPEC": str(self.folder / "job.json"),
                "ROLL_STORAGE": str(self.folder),
                "ROLL_LISTEN": self.address,
            }
            | self.env
        )
        self.process = subprocess.Popen(
            [sys.executable, *self.command],
            env=env, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self.process

    def start(self, **rollout: Any) -> Scheduler:
        self.launch(**rollout)
        grpc.channel_ready_future(self.channel()).result(timeout=SECONDS)
        return self

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nothing is said."""
        assert self.process
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait(SECONDS) == -signal.SIGKILL

    def channel(self) -> grpc.Channel:
        channel = grpc.insecure_channel(
            self.address,
            options=[("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0),
                     ("grpc.initial_reconnect_backoff_ms", 50),
                     ("grpc.max_reconnect_backoff_ms", 200),
                     ("grpc.max_receive_message_length", 64 << 20)],
        )  # fmt: skip
        self.channels.append(channel)
        return channel

    @property
    def trainer(self) -> Any:
        return trainer_pb2_grpc.TrainerStub(self.channel())

    @property
    def control(self) -> Any:
        return control_pb2_grpc.ControlStub(self.channel())

    def close(self) -> None:
        for channel in self.channels:
            channel.close()
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait(SECONDS)
        if self.process and self.process.stderr:
            self.process.stderr.close()


class Peer:
    """One worker process on its stream. `expect` waits for a kind of message; others keep."""

    def __init__(self, scheduler: Scheduler, role: str, pool: str = "", **said: Any) -> None:
        self.scheduler, self.role, self.pool = scheduler, role, pool or role
        self.said = {"pod": f"{role}-0", "pod_uid": f"uid-{role}", "incarnation": 1} | said
        self.kept: list[ToWorker] = []
        self.tasks: dict[tuple[int, int], Task] = {}
        self.connect()

    def connect(self, **said: Any) -> None:
        hello = {"job_uid": JOB_UID, "role": self.role, "pool": self.pool, "credits": 64}
        self._out: queue.Queue[FromWorker | None] = queue.Queue()
        self._in: queue.Queue[ToWorker | None] = queue.Queue()
        stub = session_pb2_grpc.SessionStub(self.scheduler.channel())
        self._stream = stub.Open(iter(self._out.get, None), wait_for_ready=True)
        threading.Thread(target=self._read, args=(self._stream, self._in), daemon=True).start()
        self.send(hello=Hello(**({"protocol": PROTOCOL} | hello | self.said | said)))

    @staticmethod
    def _read(stream: Any, into: queue.Queue[ToWorker | None]) -> None:
        try:
            for message in stream:
                into.put(message)
        except grpc.RpcError:
            pass
        into.put(None)

    def break_stream(self) -> None:
        self._stream.cancel()
        self._out.put(None)

    def send(self, **message: Any) -> None:
        self._out.put(FromWorker(**message))

    def expect(self, kind: str, seconds: float = SECONDS) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            for position, message in enumerate(self.kept):
                if message.WhichOneof("message") == kind:
                    del self.kept[position]
                    return getattr(message, kind)
            try:
                message = self._in.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {kind} for {self.role} in {seconds} s") from None
            assert message is not None, f"the stream of {self.role} ended before {kind} came"
            self.kept.append(message)

    def gets_nothing(self, kind: str, seconds: float) -> bool:
        try:
            self.expect(kind, seconds)
        except AssertionError:
            return True
        return False

    def assigned(self, count: int = 1) -> list[Task]:
        got: list[Task] = []
        while len(got) < count:
            got += unpack_tasks(self.expect("assign"))
        return got

    def result(self, task: Task, payload: bytes = b"", **said: Any) -> Result:
        if task.stage == "generate":
            version = PolicyVersion(lineage=1, number=said.pop("version", 0))
            said = {"tokens": 2, "oldest": version, "newest": version} | said
        if task.stage == "score":
            said = {"has_reward": True, "reward": 0.5} | said
        return Result(
            unit=task.unit, lease=task.lease, stage=task.stage, turn=task.turn,
            payload=payload or f"{task.stage}-{task.unit.group}.{task.unit.index};".encode(), **said,
        )  # fmt: skip

    def finish(self, *tasks: Task, **said: Any) -> list[int]:
        """Send results and wait for their verdicts."""
        self.send(results=pack_results([self.result(task, **said) for task in tasks]))
        return self.verdicts(len(tasks))

    def verdicts(self, count: int) -> list[int]:
        got: list[int] = []
        while len(got) < count:
            got += self.expect("ack").verdicts
        return got


@dataclass
class Job:
    """Peers of every role, at version 0, with the first groups' resets assigned."""

    scheduler: Scheduler
    environment: Peer
    engine: Peer
    reward: Peer
    ranks: list[Peer]
    term: int

    @classmethod
    def begin(cls, scheduler: Scheduler, world: int = 1) -> Job:
        ranks = [
            Peer(scheduler, "trainer", pod=f"trainer-{r}", pod_uid=f"uid-t{r}", rank=r, world=world)
            for r in range(world)
        ]
        (term,) = {rank.expect("welcome").trainer_term for rank in ranks}
        data = [DataSet(split="train", rows=100, content_hash="hash")]
        job = cls(
            scheduler,
            Peer(scheduler, "environment", data=data),
            Peer(scheduler, "inference", "policy"),
            Peer(scheduler, "reward"),
            ranks,
            term,
        )
        for peer in (job.environment, job.engine, job.reward):
            peer.expect("welcome")
        calls = scheduler.trainer
        calls.Rewind(trainer_pb2.RewindRequest(trainer=job.who(), step=0))
        job.commit(0)
        job.publish(0)
        return job

    def who(self, rank: int = 0, term: int | None = None) -> trainer_pb2.TrainerId:
        return trainer_pb2.TrainerId(
            job_uid=JOB_UID, term=self.term if term is None else term, rank=rank
        )

    def commit(self, step: int) -> Any:
        row = trainer_pb2.Checkpoint(step=step, lineage=1, path=f"step-{step}", digest="d")
        request = trainer_pb2.CheckpointCommit(trainer=self.who(), checkpoint=row)
        return self.scheduler.trainer.CommitCheckpoint(request)

    def publish(self, number: int) -> None:
        version = PolicyVersion(lineage=1, number=number)
        self.scheduler.trainer.PublishVersion(
            trainer_pb2.Publication(
                trainer=self.who(), version=version, manifest_digest="d", locations=["/weights"]
            )
        )
        assert self.engine.expect("policy").version == version
        self.engine.send(holding=Holding(version=version))

    def generate_and_score(self, version: int = 0) -> None:
        """Two groups of two come through."""
        assert self.environment.finish(*self.environment.assigned(2)) == [1, 1]
        assert self.engine.finish(*self.engine.assigned(4), version=version) == [1] * 4
        assert self.reward.finish(*self.reward.assigned(4)) == [1] * 4

    def acquire(self, step: int, seconds: float = SECONDS) -> Any:
        request = trainer_pb2.BatchRequest(trainer=self.who(), step=step)
        return self.scheduler.trainer.AcquireBatch(request, timeout=seconds)

    def fetch(self, step: int, rank: int = 0, world: int = 1) -> list[Any]:
        """The chunks of a rank's share."""
        request = trainer_pb2.ShardRequest(trainer=self.who(rank), step=step, world=world)
        return list(self.scheduler.trainer.FetchShard(request))
