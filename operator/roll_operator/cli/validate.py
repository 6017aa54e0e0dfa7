"""`roll validate`: everything that is wrong, at once."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from roll_api import InvalidJob, Problem, load_job

from roll_operator.cli.named import check
from roll_operator.cli.not_yet import what_is_not_there


def validate_files(files: Sequence[Path], *, cluster: bool, as_json: bool) -> int:
    errors: list[Problem] = []
    warnings: list[Problem] = []
    for file in files:
        try:
            job = load_job(file, cluster=cluster)
        except InvalidJob as error:
            errors += error.problems
            continue
        checked, everywhere = check(job, file), what_is_not_there(job, file, cluster=True)
        here = [] if cluster else what_is_not_there(job, file)
        errors += checked.errors + everywhere
        warnings += checked.warnings + [problem for problem in here if problem not in everywhere]
        if not as_json and not checked.errors and not everywhere:
            print(f"{file}: {job.name} is valid" + "".join(f"; {n}" for n in checked.notes))
    if as_json:
        shown = [(problem, "error") for problem in errors]
        shown += [(problem, "warning") for problem in warnings]
        print(
            json.dumps([asdict(problem) | {"severity": word} for problem, word in shown], indent=1)
        )
    else:
        print_problems(errors)
        print_problems(warnings, "warning")
    return 2 if errors else 0


def print_problems(problems: Sequence[Problem], severity: str = "error") -> None:
    for problem in problems:
        print(f"{severity}: {problem}", file=sys.stderr)
