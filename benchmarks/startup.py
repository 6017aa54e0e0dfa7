"""Seconds from `roll run` to the first generated token, and what the commands take that look at a run.

Runs the example with the tiny model for three steps, in a folder of its own. The first token is there when the
ledger has the first answer of an inference worker, or a part of one. Commands are timed by the clock, the median
of three. Goals: the first token within 15 s, each command within 1 s.

    python benchmarks/startup.py
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROLL = str(Path(sys.executable).with_name("roll"))
JOB = Path(__file__).parent.parent / "examples" / "arithmetic.yaml"
STEPS = 3
TOKEN_SECONDS, COMMAND_SECONDS = 15.0, 1.0
TIMES = 3


def train(run: Path) -> tuple[float, float]:
    """Seconds to the first token, and to the end."""
    began = time.time()
    steps = ["--set", f"steps={STEPS}"]
    roll("run", str(JOB), "--output", str(run), *steps)
    ended = time.time()
    query = "SELECT min(at) FROM parts WHERE worker LIKE '%-inference-%'"
    ledger = sqlite3.connect(f"file:{run}/ledger/ledger.sqlite?mode=ro", uri=True)
    try:
        [[first]] = ledger.execute(query).fetchall()
    finally:
        ledger.close()
    return first - began, ended - began


def roll(*arguments: str) -> float:
    began = time.perf_counter()
    done = subprocess.run([ROLL, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"roll {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return time.perf_counter() - began


def show(what: str, seconds: float, goal: float | None = None) -> None:
    word = "" if goal is None else f"   goal {goal:g} s: {'yes' if seconds <= goal else 'NO'}"
    print(f"{what:<32}{seconds:8.2f} s{word}", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        token, whole = train(run)
        show("the first token", token, TOKEN_SECONDS)
        show(f"all of `roll run`, {STEPS} steps", whole)
        for words in (
            ["--help"],
            ["validate", str(JOB)],
            ["status", str(run)],
            ["samples", str(run)],
            ["ledger", "verify", str(run)],
            ["logs", str(run)],
        ):
            seconds = statistics.median(roll(*words) for _ in range(TIMES))
            name = " ".join(word for word in words if "/" not in word)
            show(f"roll {name}", seconds, COMMAND_SECONDS)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
