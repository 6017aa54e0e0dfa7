"""`roll ledger verify`: the audit, in words."""

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from roll_operator.controller.folder import RunError, RunFolder

if TYPE_CHECKING:
    from roll_operator.scheduler.settings import Settings


def verify_ledger(folder: RunFolder, *, as_json: bool) -> int:
    with reading(folder) as settings:
        from roll_operator.scheduler.audit import verify

        found = verify(folder.ledger, settings)
    if as_json:
        print(json.dumps({"run": str(folder.path), **asdict(found)}, indent=1))
        return 1 if found.problems else 0
    for problem in found.problems:
        print(f"error: {problem}", file=sys.stderr)
    dropped = sum(found.dropped.values())
    print(
        f"{found.admitted} samples: {found.trained} trained in {found.steps} steps, {found.evaluated} "
        f"evaluated, {dropped} dropped with a reason, {found.live} in flight, {found.lost} lost, "
        f"{found.trained_twice} trained twice; staleness at most {found.staleness_max}"
    )
    return 1 if found.problems else 0


@contextmanager
def reading(folder: RunFolder) -> Iterator["Settings"]:
    """What the ledger's rows are to be read with. Raises RunError if there is no ledger, or none that can be read."""
    if not (folder.ledger / "ledger.sqlite").exists():
        raise RunError(f"{folder.path} has no ledger yet")
    from roll_api import RLJob

    from roll_operator.scheduler.ledger.sqlite import LedgerError
    from roll_operator.scheduler.lifecycle import Altered
    from roll_operator.scheduler.settings import Settings

    try:
        yield Settings.from_job(RLJob.from_json(folder.job_file.read_text(encoding="utf-8")))
    except Altered as error:
        raise RunError(f"{folder.ledger}: {error}; see `roll ledger verify`") from error
    except LedgerError as error:
        raise RunError(str(error)) from error
    except sqlite3.Error as error:
        raise RunError(f"{folder.ledger} cannot be read: {error}") from error
