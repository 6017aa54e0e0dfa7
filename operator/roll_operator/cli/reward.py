"""`roll reward`: the job's rewards on a few rows of its data, in seconds and without a model."""

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from roll_api import InvalidJob, load_job

from roll_operator.cli.overrides import override
from roll_operator.cli.validate import print_problems
from roll_operator.controller.folder import RunError


def try_reward(file: Path, *, rows: int, response: str | None, overrides: Sequence[str]) -> int:
    try:
        job = override(load_job(file), overrides)
    except InvalidJob as error:
        print_problems(error.problems)
        return 2
    if not all(map(importlib.util.find_spec, ("roll_workers", "numpy"))):
        raise RunError(
            "roll reward runs your function as a worker does, and what workers need is not installed here: "
            "pip install 'roll-operator[worker]'"
        )
    command = [sys.executable, "-m", "roll_workers.reward.trial", str(file.resolve().parent)]
    command += ["--rows", str(rows)]
    command += [] if response is None else [f"--response={response}"]
    return subprocess.run(command, input=job.to_json(), text=True).returncode
