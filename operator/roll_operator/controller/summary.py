"""What a run leaves for people and scripts at its end: `summary.json` and `reward.png`."""

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll_api import RLJob

from roll_operator.controller.answers import read_answers
from roll_operator.controller.files import write_json
from roll_operator.controller.folder import RunFolder
from roll_operator.controller.state import State, figures
from roll_operator.plan import Progress

if TYPE_CHECKING:
    from roll_operator.scheduler.audit import Audit

REWARD = "critic/rewards/mean"
"""The trainer's name for the mean reward of a step, as in ROLL."""


def summarize(folder: RunFolder, job: RLJob, state: State) -> dict[str, Any]:
    """Writes `summary.json`. Lost and doubled samples are counted by the audit of the ledger, not by its author."""
    from roll_operator.scheduler.ledger.sqlite import LedgerError

    assert state.status is not None
    document = figures(job, state.status, state.record, state.last_progress, state.clock)
    progress = state.last_progress or Progress()
    document["trainingSeconds"] = round(state.clock.training, 3)
    document["earlierSeconds"] = round(state.clock.earlier, 3)
    document["samples"] = {
        "trained": document["samples"]["trained"],
        "lost": 0,
        "trainedTwice": 0,
        "redone": progress.redone,
        "dropped": dict(progress.dropped),
    }
    document["ledgerProblems"] = []
    try:
        found = audit(folder, job)
    except (LedgerError, sqlite3.Error, OSError) as error:
        found = None
        document["ledgerProblems"] = [f"the ledger cannot be read: {error}"]
    if found is not None:
        document["samples"] |= {
            "trained": found.trained,
            "lost": found.lost,
            "trainedTwice": found.trained_twice,
            "evaluated": found.evaluated,
            "redone": found.redone,
            "dropped": found.dropped,
        }
        document["stalenessMax"] = found.staleness_max
        document["ledgerProblems"] = found.problems
        if state.clock.training > 0:
            document["samplesPerSecond"] = round(found.trained / state.clock.training, 3)
    means = [reward for _, reward in curve(folder)]
    document["trainingReward"] = {"first": means[0], "last": means[-1]} if means else None
    document["firstAnswers"] = state.first_answers or {}
    document["lastAnswers"] = read_answers(folder, last=True) if state.first_answers else {}
    document["reason"] = state.status.reason
    document["message"] = state.status.message
    write_json(folder.path / "summary.json", document)
    return document


def audit(folder: RunFolder, job: RLJob) -> "Audit | None":
    """None before there is a ledger."""
    if not (folder.ledger / "ledger.sqlite").exists():
        return None
    from roll_operator.scheduler.audit import verify
    from roll_operator.scheduler.settings import Settings

    # Reading every payload again is for `roll ledger verify`, when somebody asks.
    return verify(folder.ledger, Settings.from_job(job), payloads=False)


def curve(folder: RunFolder) -> list[tuple[int, float]]:
    """Mean training reward by step."""
    return _series(folder.path / "metrics.jsonl", REWARD)


def _series(path: Path, key: str) -> list[tuple[int, float]]:
    points: dict[int, float] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:  # the trainer is writing this line
            continue
        if isinstance(row.get(key), int | float) and isinstance(row.get("step"), int):
            points[row["step"]] = float(row[key])
    return sorted(points.items())


def draw(folder: RunFolder, job: RLJob, held_out: Sequence[tuple[int, float]]) -> Path | None:
    """`reward.png`; None where matplotlib is not installed or there is nothing to draw."""
    training = curve(folder)
    if not training:
        return None
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    axes.plot(*zip(*training, strict=True), linewidth=1.2, label="training")
    if held_out:
        axes.plot(*zip(*held_out, strict=True), marker="o", label="held out")
    axes.set(xlabel="step", ylabel="mean reward", title=job.name)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    path = folder.path / "reward.png"
    figure.savefig(path)
    pyplot.close(figure)
    return path
