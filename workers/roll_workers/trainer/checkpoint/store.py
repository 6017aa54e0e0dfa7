"""A job's checkpoints, as all ranks of the trainer see them. Every method is collective."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from roll_wire.trainer_pb2 import Checkpoint

from roll_workers.errors import Unreachable, UserError
from roll_workers.trainer.checkpoint import manifest as manifests
from roll_workers.trainer.checkpoint.manifest import CorruptCheckpoint, File, Manifest
from roll_workers.trainer.checkpoint.place import FOLDER, Place, kept_manifests
from roll_workers.trainer.strategies import Strategy

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that is kept, which counts once the ledger has taken it."""

    step: int
    path: str  # relative to the job's storage
    digest: str  # of the manifest


def read_manifest(place: Place, checkpoint: Checkpoint) -> Manifest:
    """Of a checkpoint that the ledger vouches for, without a look at its files. Raises CorruptCheckpoint."""
    try:
        content = place.read(Path(checkpoint.path).name)
    except FileNotFoundError:
        raise CorruptCheckpoint("it is not there") from None
    return manifests.vouched(content, checkpoint.digest)


class CheckpointStore:
    def __init__(self, place: Place, strategy: Strategy, rank: int) -> None:
        self._place, self._strategy, self._rank = place, strategy, rank

    def save(self, facts: dict[str, Any], *, step: int, term: int) -> Saved:
        """Writes shards and manifest. On failure nothing is left of it, and older checkpoints are untouched."""
        name = manifests.folder_name(step, term)

        def seal() -> str:
            if self._rank != 0:
                return ""
            files = tuple(file for share in shares for file in share)
            manifest = Manifest(**facts, step=step, term=term, files=files)
            self._place.seal(name, manifest)
            return manifests.digest(manifest.to_bytes())

        try:
            shares = self._together(lambda: self._write(name))
            digest = self._together(seal)[0]
        except (UserError, Unreachable, OSError) as problem:
            self._place.tidy()
            what = f"can't write the checkpoint of step {step} to {self._place}/{name}: {_reason(problem)}"
            if isinstance(problem, Unreachable):  # neither can anything be removed there
                raise Unreachable(what) from problem
            self.remove([name])
            raise UserError(
                f"{what}; make room or choose another place, then start the job again: "
                "it goes on from the checkpoint before"
            ) from problem
        return Saved(step, f"{FOLDER}/{name}", digest)

    def _write(self, name: str) -> list[File]:
        folder = self._place.scratch(name)
        try:
            written = self._strategy.save(folder)
        except Exception as error:  # torch and safetensors have kinds of their own for a full disk
            raise UserError(_reason(error)) from error
        files = [manifests.describe(folder, file) for file in written]
        self._place.keep(name, files)
        return files

    def _together(self, act: Callable[[], T]) -> list[T]:
        """What each rank's part gave. What went wrong for one is raised by all: nobody waits for it."""
        outcome: T | Exception
        try:
            outcome = act()
        except (UserError, Unreachable, OSError) as error:
            outcome = error
        gathered: list[T | Exception] = self._strategy.all_gather(outcome)
        for each in gathered:
            if isinstance(each, Exception):
                raise each
        return [each for each in gathered if not isinstance(each, Exception)]

    def restore_first(
        self, vouched: Sequence[Checkpoint]
    ) -> tuple[Checkpoint, Manifest] | tuple[None, None]:
        """Takes up the first of these that verifies on every rank, and says which it was."""
        for checkpoint in vouched:
            name = Path(checkpoint.path).name
            gathered = self._together(partial(self._verified, name, checkpoint.digest))
            mine = gathered[self._rank]
            problem = next((each for each in gathered if isinstance(each, str)), None)
            if problem is None and not isinstance(mine, str):
                manifest, folder = mine
                self._strategy.restore(folder)
                self._place.tidy()
                return checkpoint, manifest
            log.warning(
                "checkpoint of step %d at %s/%s is corrupt (%s): falling back to another",
                checkpoint.step,
                self._place,
                name,
                problem,
            )
        self._place.tidy()
        return None, None

    def _verified(self, name: str, digest: str) -> tuple[Manifest, Path] | str:
        """With the folder of its files here, or what is wrong with it."""
        try:
            folder = self._place.bring(name)
            return manifests.verify(folder, digest), folder
        except CorruptCheckpoint as error:
            return str(error)
        except FileNotFoundError:
            return "it is not there"

    def found(self, job_uid: str) -> list[Checkpoint]:
        """What earlier trainers of the job left behind, newest first: for a ledger that was lost."""
        return self._together(lambda: self._found(job_uid) if self._rank == 0 else [])[0]

    def _found(self, job_uid: str) -> list[Checkpoint]:
        seen: list[tuple[int, int, int, Checkpoint]] = []
        for name, content in kept_manifests(self._place):
            try:
                read = Manifest.from_bytes(content)
            except CorruptCheckpoint as error:
                log.warning("%s/%s: %s", self._place, name, error)
                continue
            if read.job_uid == job_uid:
                checkpoint = Checkpoint(
                    step=read.step,
                    lineage=read.lineage,
                    path=f"{FOLDER}/{name}",
                    digest=manifests.digest(content),
                )
                seen.append((read.lineage, read.step, read.term, checkpoint))
        return [each[-1] for each in sorted(seen, key=lambda each: each[:-1], reverse=True)]

    def remove(self, paths: Iterable[str]) -> None:
        """What the ledger no longer counts. What stays behind now is a leftover for the next trainer."""
        if self._rank != 0:
            return
        for path in paths:
            try:
                self._place.drop(Path(path).name)
            except (UserError, Unreachable, OSError) as error:
                log.warning("%s is not removed yet: %s", Path(path).name, error)

    def remove_leftovers(self, vouched: Iterable[Checkpoint], term: int) -> None:
        """What earlier trainers wrote and never committed."""
        if self._rank != 0:
            return
        known = {Path(checkpoint.path).name for checkpoint in vouched}
        try:
            names = self._place.names()
        except (UserError, Unreachable) as error:
            log.warning("what earlier trainers left is not removed yet: %s", error)
            return
        for name in names:
            _, _, began = name.rpartition("-t")
            if name not in known and began.isdigit() and int(began) < term:
                self.remove([name])


def _reason(error: BaseException) -> str:
    """The system's own words where there are any, also behind an error of torch's writer."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        seen = seen.__context__
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
