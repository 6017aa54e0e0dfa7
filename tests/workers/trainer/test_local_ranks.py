"""A trainer's pod of two ranks, as a pod with two GPUs is told: one process each, and one pod to the scheduler."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from roll_wire import control_pb2
from roll_wire.ports import free_port
from roll_wire.session_pb2 import DataSet, Holding, PolicyVersion
from roll_workers.runtime.trajectory import Trajectory, action_piece, prompt_piece
from support.scheduler_process import JOB_UID, Peer
from support.scheduler_process import Scheduler as RealScheduler
from trainer_world import Scheduler, job

pytestmark = pytest.mark.slow
SECONDS = 200  # a busy machine takes long to import torch


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealScheduler]:
    scheduler = RealScheduler(tmp_path).start()
    yield scheduler
    scheduler.close()


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.05)


def progress(scheduler: RealScheduler) -> control_pb2.JobProgress:
    found: control_pb2.JobProgress = scheduler.control.GetProgress(control_pb2.ProgressRequest())
    return found


def pod_of_two(scheduler: RealScheduler, ports: tuple[int, int]) -> subprocess.Popen[bytes]:
    folder = scheduler.folder
    told = {
        "ROLL_JOB": "sums",
        "ROLL_JOB_UID": JOB_UID,
        "ROLL_ROLE": "trainer",
        "ROLL_INDEX": "0",
        "ROLL_POD": "sums-trainer-0",
        "ROLL_POD_UID": "uid-trainer",
        "ROLL_SCHEDULER": scheduler.address,
        "ROLL_SPEC": str(folder / "job.json"),
        "ROLL_STORAGE": str(folder),
        "ROLL_PORT": str(ports[0]),
        "ROLL_METRICS_PORT": str(ports[1]),
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    with (folder / "pod.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "roll_workers"], env=os.environ | told, stderr=log
        )


class Others:
    """The other roles: every prompt is the same, every answer too, one in two is right."""

    def __init__(self, scheduler: RealScheduler) -> None:
        data = [DataSet(split="train", rows=100, content_hash="hash")]
        self.environment = Peer(scheduler, "environment", data=data)
        self.engine = Peer(scheduler, "inference", "policy")
        self.reward = Peer(scheduler, "reward")

    def holds(self, version: int) -> None:
        """The trainer has published it."""
        wanted = PolicyVersion(lineage=1, number=version)
        assert self.engine.expect("policy", SECONDS).version == wanted
        self.engine.send(holding=Holding(version=wanted))

    def samples_of(self, version: int) -> None:
        prompt = Trajectory.payload(prompt_piece([3, 4, 5]))
        answer = Trajectory.payload(action_piece([6, 7], [-1.0, -1.0], version, 0, "stop"))
        self.environment.finish(*self.environment.assigned(2), payload=prompt)
        self.engine.finish(*self.engine.assigned(4), payload=answer, version=version)
        for task in self.reward.assigned(4):
            scored = Trajectory.payload(facts={"judged": "yes"})
            self.reward.finish(task, payload=scored, reward=float(task.unit.index))


def test_two_ranks_of_a_pod_train_together_and_save_when_the_pod_is_to_end(
    real: RealScheduler,
) -> None:
    ports = free_port(), free_port()
    pod = pod_of_two(real, ports)
    try:
        until(lambda: progress(real).published == 0)
        others = Others(real)  # only now: a worker that says nothing for long gets nothing
        others.holds(0)
        others.samples_of(0)
        others.holds(1)
        others.samples_of(1)
        others.holds(2)
        with grpc.insecure_channel(f"127.0.0.1:{ports[0]}") as channel:
            check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert check.status == health_pb2.HealthCheckResponse.SERVING
        with urllib.request.urlopen(f"http://127.0.0.1:{ports[1]}/metrics", timeout=60) as answer:
            assert b"roll_worker_leases" in answer.read()
        pod.send_signal(signal.SIGTERM)
        assert pod.wait(SECONDS) == 0, (real.folder / "pod.log").read_text()
    finally:
        pod.kill()
        pod.wait()
    assert (progress(real).step, progress(real).checkpoint) == (2, 2)
    [folder] = (real.folder / "checkpoints").glob("step-000002*")
    assert len(list(folder.glob("rng-*.pt"))) == 2, "each rank saved its own"


def test_a_pod_ends_with_the_rank_that_was_killed(
    schedulers: Callable[..., Scheduler], model_folder: Path
) -> None:
    played = schedulers("killed", world=2)
    played.last_batch = 1
    pod = played.start_worker(job(model_folder), master_port=free_port(), LOCAL_WORLD_SIZE="2")
    played.wait_for(lambda: played.log.count("acquire 2") > 1, SECONDS)
    ranks = [int(r) for r in Path(f"/proc/{pod.pid}/task/{pod.pid}/children").read_text().split()]
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    assert pod.wait(SECONDS) == 128 + signal.SIGKILL, played.worker_log()
    assert "rank 1 was ended by SIGKILL" in played.worker_log()
    until(lambda: not Path(f"/proc/{ranks[0]}").exists())
