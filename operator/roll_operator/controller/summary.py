"""What a run leaves for people and scripts at its end: `summary.json` and `reward.png`."""

import json
from pathlib import Path
from typing import Any

from roll_api import RLJob

from roll_operator.controller.files import write_json
from roll_operator.controller.folder import RunFolder
from roll_operator.controller.state import State, figures
from roll_operator.plan import Progress


def summarize(folder: RunFolder, job: RLJob, state: State) -> dict[str, Any]:
    """Writes `summary.json`. Lost and doubled samples are counted by the audit of the ledger, not by its author."""
    assert state.status is not None
    document = figures(job, state.status, state.record, state.last_progress, state.clock)
    progress = state.last_progress or Progress()
    lost, twice, problems = audit(folder.ledger)
    document["steps"] = progress.step
    document["stepsWanted"] = job.spec.steps
    document["samples"] = {
        "trained": document["samples"]["trained"],
        "lost": lost,
        "trainedTwice": twice,
        "redone": progress.redone,
        "dropped": dict(progress.dropped),
    }
    document["ledgerProblems"] = problems
    document["reason"] = state.status.reason
    document["message"] = state.status.message
    write_json(folder.path / "summary.json", document)
    return document


def audit(ledger: Path) -> tuple[int, int, list[str]]:
    """Samples without an end, samples in two committed steps, and everything else that does not add up."""
    if not ledger.exists():
        return 0, 0, []
    from roll_operator.scheduler import audit as ledger_audit

    account = ledger_audit.account(ledger)
    return account.lost, account.trained_twice, list(account.problems)


def curve(folder: RunFolder) -> list[tuple[int, float]]:
    """Mean training reward by step."""
    return _series(folder.path / "metrics.jsonl", "reward")


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


def draw(folder: RunFolder, job: RLJob) -> Path | None:
    """`reward.png`; None where matplotlib is not installed or there is nothing to draw."""
    training = curve(folder)
    held_out = _series(folder.path / "metrics.jsonl", "validation_reward")
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
