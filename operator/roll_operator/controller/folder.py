"""A run's folder: where things lie in it, and whether a `roll run` holds it now."""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll_operator.controller.files import read_json

LOCK = ".lock"


class RunError(Exception):
    """A run that cannot be started or read as asked; the message says what to do."""


@dataclass(slots=True)
class RunFolder:
    path: Path

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger"

    @property
    def job_file(self) -> Path:
        return self.path / "job.json"

    def job(self) -> dict[str, Any]:
        return self._document("job.json")

    def run(self) -> dict[str, Any]:
        return self._document("run.json")

    def state(self) -> dict[str, Any]:
        return self._document("state.json")

    def summary(self) -> dict[str, Any]:
        return self._document("summary.json")

    def exists(self) -> bool:
        return (self.path / "run.json").exists()

    def in_use(self) -> bool:
        """Whether a `roll run` holds this folder now."""
        try:
            descriptor = os.open(self.path / LOCK, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _document(self, name: str) -> dict[str, Any]:
        try:
            document = read_json(self.path / name)
        except (ValueError, OSError) as error:
            raise RunError(str(error)) from error
        return document if isinstance(document, dict) else {}
