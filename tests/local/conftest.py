"""Whole runs as a user starts them: `roll run` in a folder of its own, watched through its status, hurt by signals."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROLL = str(Path(sys.executable).with_name("roll"))

SMALL_JOB: dict[str, Any] = {
    "apiVersion": "roll.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "small"},
    "spec": {
        "steps": 60,
        "model": {"path": "builtin:tiny-qwen2"},
        "data": {"train": {"path": "builtin:largest-of-three"}},
        "algorithm": {"learningRate": 5.0e-4},
        "rollout": {
            "groupsPerStep": 8,
            "groupSize": 4,
            "maxStaleness": 3,
            "sampling": {"maxNewTokens": 4},
        },
        "rewards": [{"name": "exact", "scorer": {"kind": "exactMatch"}}],
        "roles": {
            "trainer": {"replicas": 1},
            "inference": {"replicas": 1},
            "reward": {"replicas": 1},
            "environment": {"replicas": 1},
        },
        "checkpoint": {"everySteps": 10},
    },
}
SAMPLES_PER_STEP = 32
START_SECONDS = 150.0
"""Until the first step, on two busy cores: the roles import torch and transformers."""
RUN_SECONDS = 280.0


def merged(base: Any, changes: Any) -> Any:
    """`base` with `changes` put over it, key by key; None removes a key."""
    if not isinstance(base, dict) or not isinstance(changes, dict):
        return changes
    result = {key: value for key, value in base.items() if changes.get(key, "") is not None}
    for key, value in changes.items():
        if value is not None:
            result[key] = merged(result.get(key), value)
    return result


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


@dataclass
class Run:
    """One `roll run`, under way or ended."""

    process: subprocess.Popen[str]
    folder: Path
    out: str = ""
    err: str = ""
    _seen: set[int] = field(default_factory=set)

    def status(self) -> dict[str, Any]:
        """What `roll run` wrote last: `roll status -o json` shows the same processes and counters."""
        try:
            document: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        except FileNotFoundError:
            return {}
        self._seen.update(p["pid"] for p in document["processes"] if p["pid"])
        return document

    def wait_for(
        self, holds: Callable[[dict[str, Any]], object], seconds: float = START_SECONDS
    ) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            status = self.status()
            if status and holds(status):
                return status
            if self.process.poll() is not None:
                self.finish()
                raise AssertionError(f"`roll run` ended early:\n{self.out}\n{self.err}")
            time.sleep(0.05)
        raise TimeoutError(json.dumps(self.status(), indent=1))

    def wait_for_step(self, step: int) -> dict[str, Any]:
        return self.wait_for(lambda status: status["step"] >= step)

    def kill(self, pod: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Sends the signal to a pod's process and proves that it arrived: it lived before, it is dead after."""
        status = self.status()
        pid = next(int(p["pid"]) for p in status["processes"] if p["name"] == pod)
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert f"ROLL_POD={pod}".encode() in environment
        assert alive(pid)
        os.kill(pid, number)
        deadline = time.monotonic() + 10
        while alive(pid):
            assert time.monotonic() < deadline, f"{pod} (process {pid}) survived {number.name}"
            time.sleep(0.01)
        return pid

    def interrupt(self) -> None:
        self.status()
        self.process.send_signal(signal.SIGINT)

    def finish(self, seconds: float = RUN_SECONDS) -> int:
        self.out, self.err = self.process.communicate(timeout=seconds)
        return self.process.returncode

    def summary(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return document

    def saved_step(self) -> int:
        """Of the newest checkpoint."""
        return max(
            int(path.name.split("-")[1]) for path in (self.folder / "checkpoints").glob("step-*")
        )

    def leftovers(self) -> list[int]:
        deadline = time.monotonic() + 5
        while any(alive(pid) for pid in self._seen) and time.monotonic() < deadline:
            time.sleep(0.02)
        return [pid for pid in self._seen if alive(pid)]

    def logs(self, pod: str) -> str:
        return "".join(p.read_text() for p in sorted((self.folder / "logs").glob(f"{pod}.*.log")))


@dataclass
class Workshop:
    """A folder in which jobs are written and run."""

    folder: Path
    runs: list[Run] = field(default_factory=list)

    def write_job(self, changes: dict[str, Any] | None = None, name: str = "job.yaml") -> Path:
        file = self.folder / name
        # JSON is YAML.
        file.write_text(json.dumps(merged(SMALL_JOB, changes or {}), indent=1))
        return file

    def continued(self, run: Run, changes: dict[str, Any]) -> Run:
        """A job that had far to go is started again with a few steps left. Ends well, nothing lost or doubled."""
        steps = run.saved_step() + 20
        again = self.start(self.write_job(merged(changes, {"spec": {"steps": steps}})))
        assert again.finish() == 0, again.err
        samples = again.summary()["samples"]
        assert (samples["trained"], samples["lost"], samples["trainedTwice"]) == (
            steps * SAMPLES_PER_STEP,
            0,
            0,
        )
        return again

    def start(self, job: Path, *arguments: str, output: str = "run") -> Run:
        run = Run(
            subprocess.Popen(
                [ROLL, "run", str(job), "--output", str(self.folder / output), *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=self.folder,
            ),
            self.folder / output,
        )
        self.runs.append(run)
        return run

    def roll(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROLL, *arguments], capture_output=True, text=True, timeout=200, cwd=self.folder
        )


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    """Ends whatever a failed test left running."""
    shop = Workshop(tmp_path)
    yield shop
    for run in shop.runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.communicate()
