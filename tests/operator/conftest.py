"""`roll` as a process, with stand-ins for the job's own processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FAKE_ROLL = Path(__file__).with_name("fake_roll.py")

JOB = """\
apiVersion: roll.dev/v1alpha1
kind: RLJob
metadata: {name: sums}
spec:
  steps: 40
  model: {path: "builtin:tiny-qwen2"}
  data: {train: {path: "builtin:largest-of-three"}}
  rewards: [{name: exact, scorer: {kind: exactMatch}}]
  roles:
    trainer: {replicas: 2}
    inference: {replicas: 1}
    reward: {replicas: 1}
    environment: {replicas: 1}
  failurePolicy: {maxRestarts: 2, backoffSeconds: 0.1, backoffMaxSeconds: 0.2}
"""


@dataclass
class FakeRun:
    """A `roll run` that goes on in the background."""

    process: subprocess.Popen[str]
    folder: Path

    def state(self) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        except FileNotFoundError:
            return {}
        return document

    def until(
        self, holds: Callable[[dict[str, Any]], object], seconds: float = 30
    ) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state = self.state()
            if state and holds(state):
                return state
            if self.process.poll() is not None:
                raise AssertionError(f"roll run ended early: {self.process.communicate()}")
            time.sleep(0.02)
        raise TimeoutError(self.state())

    def until_running(self) -> dict[str, Any]:
        return self.until(lambda state: state["phase"] == "Running")

    def pid(self, name: str) -> int:
        return next(int(p["pid"]) for p in self.state()["processes"] if p["name"] == name)

    def finish(self, seconds: float = 30) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err

    def summary(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return document


Start = Callable[..., FakeRun]


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


@pytest.fixture
def start_run(tmp_path: Path, job_file: Path) -> Iterator[Start]:
    runs: list[FakeRun] = []

    def start(*arguments: str, speed: float = 20, **env: str) -> FakeRun:
        folder = tmp_path / "run"
        process = subprocess.Popen(
            [
                sys.executable,
                str(FAKE_ROLL),
                "run",
                str(job_file),
                "--output",
                str(folder),
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "FAKE_SPEED": str(speed), **env},
        )
        run = FakeRun(process, folder)
        runs.append(run)
        return run

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGKILL)
        run.process.communicate()
