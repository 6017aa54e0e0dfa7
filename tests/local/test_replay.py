"""`roll replay` of whole runs, also of one whose settings were changed at rest, as they may be."""

import json
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


def test_a_run_is_replayed_from_where_its_settings_were_changed_last(workshop: Any) -> None:
    saving = {"checkpoint": {"everySteps": 2, "keepLast": 9}}
    run = workshop.start(workshop.write_job({"spec": {"steps": 4, **saving}}))
    assert run.finish() == 0, run.err
    faster = {"spec": {"steps": 7, "algorithm": {"learningRate": 1.0e-3}, **saving}}
    again = workshop.start(workshop.write_job(faster))
    assert again.finish() == 0, again.err

    replayed = workshop.roll("replay", str(run.folder))
    assert replayed.returncode == 0, f"{replayed.stdout}\n{replayed.stderr}"
    assert replayed.stdout.startswith("replayed  steps 5 to 7\n")
    assert replayed.stdout.endswith("equal, bit for bit\n")
    assert "another algorithm.learningRate: replaying from step 4 on" in replayed.stderr

    file = run.folder / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"trainerThreads": 7}))
    refused = workshop.roll("replay", str(run.folder))
    assert refused.returncode == 2 and refused.stdout == ""
    assert refused.stderr == (
        "error: nothing to replay: what followed the checkpoint of step 7 was trained under another threads\n"
    )


def test_a_replays_verdict_is_json_when_asked_for(workshop: Any) -> None:
    run = workshop.start(workshop.write_job({"spec": {"steps": 2}}))
    assert run.finish() == 0, run.err
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    digests = [json.loads(line)["weights_digest"] for line in lines]

    replayed = workshop.roll("replay", str(run.folder), "-o", "json")
    assert replayed.returncode == 0, replayed.stderr
    assert json.loads(replayed.stdout) == {
        "equal": True,
        "differentFrom": None,
        "steps": [
            {"step": step, "recorded": digest, "replayed": digest}
            for step, digest in enumerate(digests, start=1)
        ],
    }
