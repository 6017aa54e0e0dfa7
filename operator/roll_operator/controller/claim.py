"""Whose a run's folder is, and what of a job may change between two runs.

Invariants: at most one `roll run` holds a folder (a lock that ends with its process); a folder belongs to one
job for ever, until `--fresh` empties it; nothing is written into or deleted from a folder of somebody else.
"""

import contextlib
import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roll_api import RLJob, spec_hash
from roll_api.rules import TRANSITIONS, read

from roll_operator.controller.files import write_json
from roll_operator.controller.folder import LOCK, RunError, RunFolder

OURS = (
    "job.json",
    "state.json",
    "summary.json",
    "reward.png",
    "metrics.jsonl",
    "ledger",
    "checkpoints",
    "weights",
    "weights-cache",
    "models",
    "logs",
    "tensorboard",
    "run.json",
)
"""What a run writes. `run.json` goes last: until then the rest is known to be a run's."""

LOCK_SECONDS = 1.0
"""`roll status` holds the lock for a moment to see whether a run holds it."""

FIXED = tuple(
    transition
    for transition in TRANSITIONS
    if not transition.unless_suspended and transition.shown_at != "storage"
)
PLACE = "storage.uri"
"""Checkpoints lie there. Of a job's storage nothing else concerns one machine."""


@contextlib.contextmanager
def held(folder: RunFolder) -> Iterator[None]:
    """The folder for this process alone, while the block runs. Raises RunError."""
    if not folder.exists() and folder.path.is_dir() and _entries(folder.path):
        raise RunError(
            f"{folder.path} holds files that no run wrote; choose another folder with --output"
        )
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunError(
            f"{folder.path} cannot be written: {error.strerror}; choose another folder with --output"
        ) from error
    try:
        _take(lock, folder)
        yield
    finally:
        os.close(lock)


def identify(folder: RunFolder, job: RLJob, *, fresh: bool = False) -> str:
    """The uid under which this job may use the folder, which is held. Raises RunError."""
    if fresh:
        _empty(folder)
        return str(uuid.uuid4())
    run = folder.run()
    if not run:
        return str(uuid.uuid4())
    if run.get("job") != job.name:
        raise RunError(
            f"{folder.path} belongs to the job {run.get('job')!r}, not to {job.name!r}: choose another "
            "folder with --output, or delete what is there with --fresh"
        )
    problems = changes(folder.job().get("spec", {}), job)
    if problems:
        raise RunError(
            f"{folder.path} holds a run of this job with other settings, which cannot be changed:\n"
            + "\n".join(f"  {problem}" for problem in problems)
            + "\nchoose another folder with --output, or delete the old run with --fresh"
        )
    return str(run["jobUid"])


def changes(before: dict[str, Any], job: RLJob) -> list[str]:
    """What differs between a recorded spec and a job, of that which a run cannot change."""
    after = job.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    if not before:
        return []
    keys = [key for transition in FIXED for key in transition.broken_by(before, after)]
    keys += [PLACE] if read(before, PLACE) != read(after, PLACE) else []
    return [f"spec.{key}: was {read(before, key)!r}, now {read(after, key)!r}" for key in keys]


def write_job(folder: RunFolder, job: RLJob) -> None:
    write_json(folder.job_file, json.loads(job.to_json()))


def write_run(folder: RunFolder, job: RLJob, uid: str, scheduler: str, **more: Any) -> None:
    document = {
        "job": job.name,
        "jobUid": uid,
        "specHash": spec_hash(job),
        "pid": os.getpid(),
        "scheduler": scheduler,
        "startedAt": time.time(),
        **more,
    }
    write_json(folder.path / "run.json", document)


def _take(lock: int, folder: RunFolder) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                break
        time.sleep(0.05)
    pid = folder.run().get("pid", "unknown")
    raise RunError(
        f"{folder.path} is in use by a running `roll run` (process {pid}): stop that one, or choose "
        "another folder with --output"
    )


def _empty(folder: RunFolder) -> None:
    for name in OURS:
        entry = folder.path / name
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _entries(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
