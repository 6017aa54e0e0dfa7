"""The folder of a job's checkpoints, as all ranks of the trainer see it. Every method is collective."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll_wire.trainer_pb2 import Checkpoint

from roll_workers.errors import UserError
from roll_workers.trainer.checkpoint import manifest as manifests
from roll_workers.trainer.checkpoint.manifest import CorruptCheckpoint, File, Manifest
from roll_workers.trainer.strategies import Strategy

log = logging.getLogger(__name__)

FOLDER = "checkpoints"


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint on disk, which counts once the ledger has taken it."""

    step: int
    path: str  # relative to the job's storage
    digest: str  # of the manifest


class CheckpointStore:
    def __init__(self, storage: Path, strategy: Strategy, rank: int) -> None:
        self._storage, self._strategy, self._rank = storage, strategy, rank

    def save(self, facts: dict[str, Any], *, step: int, term: int) -> Saved:
        """Writes shards and manifest. On failure nothing is left of it, and older checkpoints are untouched."""
        path = f"{FOLDER}/{manifests.folder_name(step, term)}"
        folder = self._storage / path
        outcome: list[File] | str
        try:
            folder.mkdir(parents=True, exist_ok=True)
            outcome = [manifests.describe(folder, name) for name in self._strategy.save(folder)]
        except Exception as error:  # torch and safetensors have kinds of their own for a full disk
            outcome = f"{_reason(error)}"
        gathered = self._strategy.all_gather(outcome)
        problem = next((each for each in gathered if isinstance(each, str)), None)
        content = b""
        if problem is None and self._rank == 0:
            files = tuple(file for share in gathered for file in share)
            content = Manifest(**facts, step=step, term=term, files=files).to_bytes()
            try:
                _put(folder, content)
            except OSError as error:
                problem = _reason(error)
        problem, digest = self._strategy.all_gather((problem, manifests.digest(content)))[0]
        if problem is not None:
            if self._rank == 0:
                shutil.rmtree(folder, ignore_errors=True)
            raise UserError(
                f"can't write the checkpoint of step {step} to {folder}: {problem}; make room or "
                "choose another place, then start the job again: it goes on from the checkpoint before"
            )
        return Saved(step, path, digest)

    def newest_intact(
        self, vouched: Sequence[Checkpoint]
    ) -> tuple[Checkpoint, Manifest] | tuple[None, None]:
        """The newest of the ledger's checkpoints that verifies on every rank."""
        for checkpoint in vouched:
            outcome: Manifest | str
            try:
                outcome = manifests.verify(self._storage / checkpoint.path, checkpoint.digest)
            except CorruptCheckpoint as error:
                outcome = str(error)
            gathered = self._strategy.all_gather(outcome)
            problem = next((each for each in gathered if isinstance(each, str)), None)
            if problem is None:
                return checkpoint, gathered[0]
            log.warning(
                "checkpoint of step %d at %s is corrupt (%s): falling back to the one before",
                checkpoint.step,
                self._storage / checkpoint.path,
                problem,
            )
        return None, None

    def found(self, job_uid: str) -> list[Checkpoint]:
        """What earlier trainers of the job left behind, newest first: for a ledger that was lost."""
        seen: list[tuple[int, int, int, Checkpoint]] = []
        for path in (self._storage / FOLDER).glob(f"step-*-t*/{manifests.NAME}"):
            content = path.read_bytes()
            try:
                read = Manifest.from_bytes(content)
            except CorruptCheckpoint as error:
                log.warning("%s: %s", path.parent, error)
                continue
            if read.job_uid == job_uid and read.step > 0:
                checkpoint = Checkpoint(
                    step=read.step,
                    lineage=read.lineage,
                    path=f"{FOLDER}/{path.parent.name}",
                    digest=manifests.digest(content),
                )
                seen.append((read.lineage, read.step, read.term, checkpoint))
        return [each[-1] for each in sorted(seen, key=lambda each: each[:-1], reverse=True)]

    def restore(self, checkpoint: Checkpoint) -> None:
        self._strategy.restore(self._storage / checkpoint.path)

    def remove(self, paths: Iterable[str]) -> None:
        """What the ledger no longer counts. The manifest goes first: half a checkpoint is none."""
        if self._rank != 0:
            return
        for path in paths:
            folder = self._storage / FOLDER / Path(path).name
            (folder / manifests.NAME).unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)

    def remove_leftovers(self, vouched: Iterable[Checkpoint], term: int) -> None:
        """What earlier trainers wrote and never committed."""
        known = {Path(checkpoint.path).name for checkpoint in vouched}
        for folder in (self._storage / FOLDER).glob("step-*-t*"):
            _, _, began = folder.name.rpartition("-t")
            if folder.name not in known and began.isdigit() and int(began) < term:
                self.remove([folder.name])


def _put(folder: Path, content: bytes) -> None:
    scratch = folder / f".{manifests.NAME}"
    with scratch.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    scratch.rename(folder / manifests.NAME)
    for directory in (folder / "model", folder, folder.parent):
        if directory.is_dir():
            handle = os.open(directory, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _reason(error: BaseException) -> str:
    """The system's own words where there are any, also behind an error of torch's writer."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        seen = seen.__context__
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
