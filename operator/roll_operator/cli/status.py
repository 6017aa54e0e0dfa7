"""`roll status`: what `roll run` wrote last, with the scheduler's newest figures while the job runs."""

import json
import sqlite3
from typing import Any

from roll_api.figures import figure

from roll_operator.cli.scheduler_call import CALL_SECONDS, ask
from roll_operator.controller.folder import RunFolder

HIDDEN = ("record",)
LEFT_OVER = "cancelled.job-ended"


def show_status(folder: RunFolder, *, as_json: bool) -> int:
    document = read_status(folder)
    print(json.dumps(document, indent=1) if as_json else _text(document))
    return 0


def read_status(folder: RunFolder) -> dict[str, Any]:
    running = folder.in_use()
    document = {key: value for key, value in folder.state().items() if key not in HIDDEN}
    document.setdefault("job", folder.run().get("job"))
    document.setdefault("phase", "Pending")
    document.setdefault("processes", [])
    document["running"] = running
    document["run"] = str(folder.path)
    if not running:
        document |= {key: value for key, value in folder.summary().items() if key not in document}
        document["samples"] = folder.summary().get("samples", document.get("samples"))
        if document["phase"] in ("Pending", "Starting", "Running", "Recovering"):
            # `roll run` itself was killed: what it wrote last is no longer true.
            document |= {"phase": "Suspended", "processes": [], "ready": "", "notices": []}
            document["message"] = (
                "roll run was killed; the same command goes on from the checkpoint"
            )
    elif (live := _live(folder)) is not None:
        document |= live
    return document


def _live(folder: RunFolder) -> dict[str, Any] | None:
    from roll_wire import control_pb2

    reply = ask(
        folder,
        lambda control: control.GetProgress(control_pb2.ProgressRequest(), timeout=CALL_SECONDS),
    )
    if reply is None:
        return None
    from roll_operator.controller.link import read_progress
    from roll_operator.controller.state import progress_figures

    seen, rollout = read_progress(reply), folder.job()["spec"]["rollout"]
    live = progress_figures(seen, rollout["groupsPerStep"] * rollout["groupSize"])
    live["samples"] |= _audited(folder)
    return {
        **live,
        "recentSamplesPerSecond": seen.samples_per_second,
        "notices": list(seen.notices),
    }


def _audited(folder: RunFolder) -> dict[str, int]:
    """What nobody but the ledger may say of itself. Empty while it cannot be read."""
    from roll_api import RLJob

    from roll_operator.controller.summary import audit
    from roll_operator.scheduler.ledger.sqlite import LedgerError

    try:
        found = audit(folder, RLJob.from_json(folder.job_file.read_text(encoding="utf-8")))
    except (LedgerError, sqlite3.Error, OSError):
        return {}
    return {} if found is None else {"lost": found.lost, "trainedTwice": found.trained_twice}


def _text(document: dict[str, Any]) -> str:
    lines = status_lines(document)
    if document["processes"]:
        lines.append("")
        lines.append(f"{'PROCESS':<32}{'PID':>8}  {'ATTEMPT':<9}STATE")
        lines += [
            f"{p['name']:<32}{_or_none(p['pid']):>8}  {p['attempt']:<9}{p['state']}"
            for p in document["processes"]
        ]
    return "\n".join(lines)


def status_lines(document: dict[str, Any]) -> list[str]:
    """The figures of a job, wherever it runs."""
    restarts = document.get("restarts") or {}
    samples = document.get("samples") or {}
    lines = [
        f"job        {document['job']}",
        f"phase      {document['phase']}" + ("" if document["running"] else " (not running)"),
    ]
    if document.get("ready") and document["running"]:
        lines.append(f"ready      {document['ready']}")
    lines += [
        f"step       {document.get('step', 0)}/{document.get('stepsWanted', '?')}"
        f", checkpoint {_or_none(document.get('checkpoint'))}",
        f"reward     {_number(document.get('reward'))}",
    ]
    if (held_out := document.get("validationReward")) is not None:
        known = [held_out["first"], held_out["last"]] if isinstance(held_out, dict) else [held_out]
        of = (
            f" (step {held_out['step']})"
            if isinstance(held_out, dict) and "step" in held_out
            else ""
        )
        lines.append(f"held out   {' → '.join(f'{reward:.3f}' for reward in known)}{of}")
    lines += [
        f"samples    {samples.get('trained', 0)} trained, {_audit_text(samples)}"
        f"{figure(document.get('samplesPerSecond', 0), 3)}/s, stale {document.get('stalenessMax', 0)}",
        "restarts   " + (", ".join(f"{role} {n}" for role, n in restarts.items() if n) or "none"),
    ]
    if dropped := dropped_text(samples.get("dropped") or {}):
        lines.append(f"untrained  {dropped}")
    if document.get("message"):
        lines.append("message    " + "\n           ".join(document["message"].splitlines()))
    lines += [f"notice     {notice}" for notice in document.get("notices", [])]
    return lines


def dropped_text(dropped: dict[str, int]) -> str:
    """Samples that ended untrained, by reason; those that a job's end left over are none of anybody's business."""
    reasons = {name: n for name, n in sorted(dropped.items()) if name != LEFT_OVER}
    words = (name.partition(".") for name in reasons)
    told = (f"{end} ({cause})" if cause else end for end, _, cause in words)
    return ", ".join(f"{n} {said}" for n, said in zip(reasons.values(), told, strict=True))


def _audit_text(samples: dict[str, Any]) -> str:
    """A cluster's status has no audit: `kubectl roll samples` and `roll ledger verify` ask the ledger."""
    if "lost" not in samples:
        return ""
    return f"{samples['lost']} lost, {samples['trainedTwice']} trained twice, "


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _or_none(value: object) -> str:
    return "-" if value is None else str(value)
