"""`roll ledger verify`: the audit, in words."""

import json
import sys
from pathlib import Path

from roll_operator.controller.folder import RunError, RunFolder


def verify_ledger(run: Path, *, as_json: bool) -> int:
    folder = RunFolder(run)
    if not folder.ledger.exists():
        raise RunError(f"{run} has no ledger yet")
    from roll_operator.scheduler import audit

    problems = audit.verify(folder.ledger)
    if as_json:
        print(json.dumps({"run": str(run), "problems": problems}, indent=1))
    elif problems:
        for problem in problems:
            print(f"error: {problem}", file=sys.stderr)
    else:
        print(f"{folder.ledger}: every sample has exactly one end, and none was trained twice")
    return 1 if problems else 0
