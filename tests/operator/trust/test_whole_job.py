"""A whole job as pods run it: one process and one folder each, TLS and tokens between them, and a test that is
the operator. Only the trainer's folder holds published weights, so whoever samples has fetched them."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from roll_api import RLJob
from roll_operator.scheduler.audit import verify
from roll_operator.scheduler.settings import Settings
from roll_wire import credentials
from roll_wire.control_pb2 import JobProgress, Pod, Pods, ProgressRequest
from roll_wire.control_pb2_grpc import ControlStub
from roll_wire.ports import free_port
from support.minted import JOB_UID, OPERATOR, Pki

SECONDS = 240.0  # on two busy cores: four processes import torch
STEPS = 6
ROLES = ("trainer", "inference", "reward", "environment")
JOB = {
    "apiVersion": "roll.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "sums"},
    "spec": {
        "steps": STEPS,
        "model": {"path": "builtin:tiny-qwen2"},
        "data": {"train": {"path": "builtin:largest-of-three"}},
        "rollout": {
            "groupsPerStep": 4, "groupSize": 2, "maxStaleness": 1,
            "sampling": {"maxNewTokens": 3},
        },
        "rewards": [{"name": "mine", "scorer": {"python": "my_rewards.py:score"}}],
        "roles": {role: {"replicas": 1} for role in ROLES},
        "checkpoint": {"everySteps": 3},
        # Here a folder of another process could be read; another pod's could not.
        "weights": {"transfer": "Stream"},
    },
}  # fmt: skip
REWARDS = (
    "def score(response: str, answer: str) -> float:\n    return float(response[:1] == answer)\n"
)


@dataclass
class Processes:
    """The job's processes, and the operator's part in their life."""

    folder: Path
    port: int = field(default_factory=free_port)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)  # role -> of its pod; 0 at first

    def __post_init__(self) -> None:
        self.pki = Pki(self.folder / "pki")
        token = self.pki.token("operator", self.pki.issuer.operator())
        channel = grpc.secure_channel(
            f"localhost:{self.port}",
            credentials.client(self.pki.roots, token),
            [("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 500)],
        )
        self.control = ControlStub(channel)
        (self.folder / "job.json").write_text(json.dumps(JOB))
        with tarfile.open(self.folder / "source.tar.gz", "w:gz") as packed:
            member = tarfile.TarInfo("my_rewards.py")
            member.size = len(REWARDS)
            packed.addfile(member, io.BytesIO(REWARDS.encode()))

    def start(self, role: str) -> None:
        """Again: the container restarts in its pod, with the same uid and the same folder."""
        home = self.folder / role
        home.mkdir(exist_ok=True)
        env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("ROLL_")},
            "OMP_NUM_THREADS": "1",
            "ROLL_JOB": "sums",
            "ROLL_JOB_UID": JOB_UID,
            "ROLL_ROLE": role,
            "ROLL_INDEX": "0",
            "ROLL_POD": f"sums-{role}-0",
            "ROLL_POD_UID": self.uid(role),
            "ROLL_ATTEMPT": str(self.attempts.get(role, 0)),
            "ROLL_SPEC": str(self.folder / "job.json"),
            "ROLL_STORAGE": str(home),
            "ROLL_TRUST": str(self.pki.trust),
        }
        if role == "scheduler":
            module = "roll_operator.scheduler"
            env |= {
                "ROLL_LISTEN": f"[::]:{self.port}",
                "ROLL_TLS": str(self.pki.tls),
                "ROLL_OPERATOR": OPERATOR,
                "ROLL_SOCKET": str(home / "roll.sock"),
            }
        else:
            module = "roll_workers"
            pod = self.pki.issuer.pod(self.uid(role), f"sums-{role}-0")
            env |= {
                "ROLL_SCHEDULER": f"localhost:{self.port}",
                "ROLL_HOST": "localhost",
                "ROLL_TOKEN": str(self.pki.token(role, pod)),
                "ROLL_SOURCE": str(home / "source"),
                "ROLL_SOURCE_ARCHIVE": str(self.folder / "source.tar.gz"),
            }
        if role == "trainer":
            env |= {"ROLL_TLS": str(self.pki.tls), "RANK": "0", "WORLD_SIZE": "1"}
        with self.log_of(role).open("ab") as log:
            self.running[role] = subprocess.Popen(
                [sys.executable, "-m", module], env=env, stderr=log, cwd=home
            )

    def uid(self, role: str) -> str:
        return f"uid-{role}-{self.attempts.get(role, 0)}"

    def restart(self, role: str) -> None:
        """The container is killed and started again in its pod."""
        self.running[role].kill()
        self.running[role].wait()
        self.start(role)

    def replace(self, role: str) -> None:
        """Another pod, under the same name."""
        self.attempts[role] = self.attempts.get(role, 0) + 1
        self.start(role)

    def log_of(self, role: str) -> Path:
        return self.folder / f"{role}.log"

    def announce(self) -> None:
        current = [Pod(name=f"sums-{r}-0", uid=self.uid(r), role=r) for r in ROLES]
        self.control.SyncPods(
            Pods(job_uid=JOB_UID, current=current, authoritative=True, leader=1),
            timeout=SECONDS,
            wait_for_ready=True,
        )

    def until(self, reached: Callable[[JobProgress], bool]) -> JobProgress:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for role, process in self.running.items():
                assert process.poll() in (None, 0), f"{role}: {self.log_of(role).read_text()}"
            with suppress(grpc.RpcError):
                progress = self.control.GetProgress(ProgressRequest(), timeout=10)
                if reached(progress):
                    return progress
            time.sleep(0.05)
        logs = {role: self.log_of(role).read_text()[-2000:] for role in self.running}
        raise AssertionError(f"not within {SECONDS} s: {logs}")

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_of_separate_pods_trains_to_its_end(pods: Processes) -> None:
    for role in ("scheduler", *ROLES):
        pods.start(role)
    pods.announce()
    pods.until(lambda p: p.step >= 2)

    pods.restart("scheduler")
    pods.announce()

    ended = succeeded(pods)
    assert (ended.lineage, ended.ledger_lost) == (1, "")

    fetched = [path.name for path in pods.folder.glob("inference/weights-cache/*/l*-v*")]
    assert fetched, "whoever samples has streamed the weights into its own folder"
    assert not list(pods.folder.glob("inference/weights")), "and had no other way to get them"
    for role in ROLES:
        assert (pods.folder / role / "source" / "my_rewards.py").read_text() == REWARDS
    assert (pods.folder / "scheduler.log").read_text().count("listening on") == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_whose_ledger_is_lost_goes_on_from_its_checkpoint(pods: Processes) -> None:
    for role in ("scheduler", *ROLES):
        pods.start(role)
    pods.announce()
    before = pods.until(lambda p: p.checkpoint >= 3)

    pods.running["scheduler"].kill()
    pods.running["scheduler"].wait()
    shutil.rmtree(pods.folder / "scheduler" / "ledger")
    pods.start("scheduler")
    pods.announce()
    assert pods.running["trainer"].wait(SECONDS) == 3, pods.log_of("trainer").read_text()
    pods.replace("trainer")
    pods.announce()

    ended = succeeded(pods)
    assert ended.lineage > before.lineage
    assert "went on from the checkpoint of step 3" in ended.ledger_lost
    assert "starting at step 3 of 6" in pods.log_of("trainer").read_text()


def succeeded(pods: Processes) -> JobProgress:
    """The job comes to its end, and so does every process; the ledger closes."""
    ended = pods.until(lambda p: p.finished)
    assert (ended.step, ended.checkpoint, ended.error) == (STEPS, STEPS, "")
    for role in ROLES:
        assert pods.running[role].wait(60) == 0, pods.log_of(role).read_text()
    pods.running["scheduler"].terminate()
    assert pods.running["scheduler"].wait(60) == 0
    settings = Settings.from_job(RLJob.from_json(json.dumps(JOB)))
    assert verify(pods.folder / "scheduler" / "ledger", settings).problems == []
    return ended
