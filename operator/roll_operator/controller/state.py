"""`state.json`: what an RLJob's status would hold on a cluster, and the figures that `roll status` shows."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter
from roll_api import JobStatus, RLJob

from roll_operator.controller.answers import Answers, read_answers
from roll_operator.controller.files import write_json
from roll_operator.controller.folder import RunFolder
from roll_operator.plan import Process, Progress, Record, next_run, ready_count
from roll_operator.plan.desired import ROLES

_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


@dataclass(slots=True)
class Clock:
    """Seconds that a job ran, over all its runs; `training` since everything was ready."""

    total: float = 0.0
    training: float = 0.0
    earlier: float = 0.0
    """Of the total: in runs before this one."""
    _last: float = 0.0

    def tick(self, now: float, *, training: bool) -> None:
        elapsed = max(0.0, now - self._last) if self._last else 0.0
        self.total += elapsed
        self.training += elapsed if training else 0.0
        self._last = now


@dataclass(slots=True)
class State:
    record: Record = field(default_factory=Record)
    status: JobStatus | None = None
    clock: Clock = field(default_factory=Clock)
    last_progress: Progress | None = None
    job_uid: str = ""
    held_out: list[tuple[int, float]] = field(default_factory=list)
    """Step and mean reward on held-out prompts, whenever it changed."""
    first_answers: Answers | None = None
    """Of the first validation; empty where it could not be read, None before there was one."""

    @classmethod
    def load(cls, folder: RunFolder, job_uid: str) -> "State":
        """Takes up what an earlier run left: counters and times stay, everything is a new attempt."""
        document = folder.state()
        if not document:
            return cls(job_uid=job_uid)
        record = next_run(_RECORD.validate_python(document["record"]))
        earlier = document.get("durationSeconds", 0.0)
        clock = Clock(earlier, document.get("trainingSeconds", 0.0), earlier)
        status = JobStatus.model_validate(document["status"])
        held_out = [(int(step), float(value)) for step, value in document.get("heldOut", [])]
        answers = document.get("firstAnswers")
        return cls(record, status, clock, None, job_uid, held_out, answers)

    def remember(self, progress: Progress | None, folder: RunFolder) -> None:
        if progress is not None:
            self.last_progress = progress
            if progress.validation is not None:
                if self.first_answers is None:
                    self.first_answers = read_answers(folder, last=False)
                first, last = progress.validation
                if not self.held_out:
                    self.held_out.append((0, first))
                if self.held_out[-1][1] != last:
                    self.held_out.append((progress.validation_step, last))

    def save(self, folder: RunFolder, job: RLJob, shown: Sequence[Process]) -> None:
        write_json(folder.path / "state.json", self.document(job, shown))

    def document(self, job: RLJob, shown: Sequence[Process]) -> dict[str, Any]:
        status = self.status or JobStatus()
        return {
            **figures(job, status, self.record, self.last_progress, self.clock),
            "jobUid": self.job_uid,
            "reason": status.reason,
            "message": status.message,
            "ready": ready_count(shown),
            "processes": [process.to_dict() for process in shown],
            "notices": list(self.last_progress.notices) if self.last_progress else [],
            "heldOut": self.held_out,
            "firstAnswers": self.first_answers,
            "trainingSeconds": round(self.clock.training, 3),
            "updatedAt": time.time(),
            "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
            "record": _RECORD.dump_python(self.record, mode="json"),
        }


def figures(
    job: RLJob, status: JobStatus, record: Record, progress: Progress | None, clock: Clock
) -> dict[str, Any]:
    """The figures that `summary.json` and `roll status` share."""
    seen = progress or Progress()
    per_step = job.spec.rollout.samples_per_step
    speed = seen.trained(per_step) / clock.training if clock.training > 0 else 0.0
    return {
        "job": job.name,
        "phase": status.phase,
        "stepsWanted": job.spec.steps,
        "durationSeconds": round(clock.total, 3),
        "samplesPerSecond": round(speed, 3),
        **progress_figures(seen, per_step),
        "lineage": seen.lineage,
        "tokens": seen.tokens,
        "restarts": {
            role: record.restarts.get(role, 0)
            for role in ROLES
            if role == "scheduler" or _replicas(job, role)
        },
    }


def progress_figures(seen: Progress, samples_per_step: int) -> dict[str, Any]:
    """Those of them that the scheduler knows at any moment."""
    return {
        "step": seen.step,
        "steps": seen.step,
        "checkpoint": seen.checkpoint,
        "stalenessMax": seen.staleness_max,
        "reward": seen.reward,
        "validationReward": None
        if seen.validation is None
        else {
            "first": seen.validation[0],
            "last": seen.validation[1],
            "step": seen.validation_step,
        },
        "samples": {
            "trained": seen.trained(samples_per_step),
            "redone": seen.redone,
            "dropped": dict(seen.dropped),
            "states": dict(seen.samples),
        },
    }


def _replicas(job: RLJob, role: str) -> int:
    return int(getattr(job.spec.roles, role).replicas)
