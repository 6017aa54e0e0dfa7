"""`roll validate`: everything that is wrong, at once."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from roll_api import InvalidJob, Problem, load_job


def validate_files(files: Sequence[Path], *, cluster: bool, as_json: bool) -> int:
    found: list[Problem] = []
    for file in files:
        try:
            job = load_job(file, cluster=cluster)
        except InvalidJob as error:
            found.extend(error.problems)
        else:
            if not as_json:
                print(f"{file}: {job.name} is valid")
    if as_json:
        print(json.dumps([asdict(problem) for problem in found], indent=1))
    else:
        print_problems(found)
    return 2 if found else 0


def print_problems(problems: Sequence[Problem]) -> None:
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
