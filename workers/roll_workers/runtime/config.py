"""What a worker process is told by its environment: the same variables locally and in a pod."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from roll_workers.errors import UserError

if TYPE_CHECKING:
    from roll_api import RLJob

ROLES = ("trainer", "inference", "reward", "environment")


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Who this process is and where things lie."""

    job: str
    job_uid: str
    role: str
    index: int
    pod: str
    pod_uid: str
    attempt: int
    scheduler: str  # host:port
    spec: Path  # the RLJob as JSON
    storage: Path  # the job's folder
    source: Path  # relative paths in the job resolve against it
    archive: Path | None = None  # is unpacked into `source`, if it is there
    trust: Path | None = None  # folder with ca.crt: who is spoken to with TLS; None: in the clear
    token: Path | None = None  # proves to the scheduler which pod this is
    ready: Path | None = None  # exists while this worker can be of use: a kubelet looks for it
    tls: Path | None = None  # folder with tls.crt and tls.key, for this process's own services
    port: int = 0  # own gRPC (health, weights); 0: any free
    metrics_port: int | None = None  # prometheus; 0: any free; None: off
    host: str = "127.0.0.1"  # where others reach this process
    rank: int = 0  # trainers
    world: int = 1
    local_rank: int = 0  # among the processes that share this one's GPUs
    local_world: int = 1  # ranks of this pod
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    # Rises with every process start of this pod, so that the scheduler tells a new process from a reconnect.
    incarnation: int = field(default_factory=time.time_ns)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> WorkerConfig:
        """Reads the environment; everything that is wrong with it is one UserError."""
        return _Reader(os.environ if environ is None else environ).config()

    def load_job(self) -> RLJob:
        """The job that this process works for."""
        from pydantic import ValidationError
        from roll_api import RLJob

        try:
            return RLJob.model_validate_json(self.spec.read_bytes())
        except OSError as error:
            raise UserError(
                f"ROLL_SPEC: can't read the job at {self.spec}: {error.strerror}"
            ) from error
        except ValidationError as error:
            raise UserError(f"ROLL_SPEC: {self.spec} is not a valid RLJob: {error}") from error


class _Reader:
    """Collects what is missing or malformed, so that one message names all of it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.problems: list[str] = []

    def text(self, name: str, default: str | None = None) -> str:
        value = self.environ.get(name, "")
        if value:
            return value
        if default is None:
            self.problems.append(f"{name} is not set")
            return ""
        return default

    def path(self, name: str) -> Path | None:
        value = self.environ.get(name, "")
        return Path(value) if value else None

    def number(self, name: str, default: int | None = None) -> int:
        value = self.text(name, None if default is None else str(default))
        if value.isdigit():
            return int(value)
        if value:
            self.problems.append(f"{name} is not a whole number: {value!r}")
        return 0

    def config(self) -> WorkerConfig:
        role = self.text("ROLL_ROLE")
        if role and role not in ROLES:
            self.problems.append(f"ROLL_ROLE is none of {', '.join(ROLES)}: {role!r}")
        trainer = role == "trainer"
        rank = self.number("RANK") if trainer else 0
        local_world = self.number("LOCAL_WORLD_SIZE", 1) if trainer else 1
        metrics = bool(self.environ.get("ROLL_METRICS_PORT", ""))
        config = WorkerConfig(
            job=self.text("ROLL_JOB"),
            job_uid=self.text("ROLL_JOB_UID"),
            role=role,
            index=self.number("ROLL_INDEX"),
            pod=self.text("ROLL_POD"),
            pod_uid=self.text("ROLL_POD_UID"),
            attempt=self.number("ROLL_ATTEMPT", 0),
            scheduler=self.text("ROLL_SCHEDULER"),
            spec=Path(self.text("ROLL_SPEC")),
            storage=Path(self.text("ROLL_STORAGE")),
            source=Path(self.text("ROLL_SOURCE", ".")),
            archive=self.path("ROLL_SOURCE_ARCHIVE"),
            trust=self.path("ROLL_TRUST"),
            token=Path(self.text("ROLL_TOKEN")) if self.path("ROLL_TRUST") else None,
            ready=self.path("ROLL_READY"),
            tls=self.path("ROLL_TLS"),
            port=self.number("ROLL_PORT", 0),
            metrics_port=self.number("ROLL_METRICS_PORT") if metrics else None,
            host=self.text("ROLL_HOST", "127.0.0.1"),
            rank=rank,
            world=self.number("WORLD_SIZE") if trainer else 1,
            # Pods of one rank each may share a machine, and what it has.
            local_rank=self.number("LOCAL_RANK", 0) if local_world > 1 else rank,
            local_world=local_world,
            master_addr=self.text("MASTER_ADDR", "127.0.0.1"),
            master_port=self.number("MASTER_PORT", 0),
        )
        if self.problems:
            raise UserError(
                "the environment of this worker is incomplete: " + "; ".join(self.problems)
            )
        return config
