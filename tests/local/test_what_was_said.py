"""What the model says is to be read: while it learns, afterwards, and side by side at the end."""

import json
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

STEPS = 20


def test_prompts_answers_and_rewards_of_a_run_can_be_read(workshop: Any) -> None:
    held_out = {"path": "builtin:largest-of-three/held-out", "everySteps": 10, "samples": 3}
    changes = {
        "steps": STEPS,
        "data": {"validation": held_out},
        "checkpoint": {"everySteps": 10, "keepLast": 1},
    }
    run = workshop.start(workshop.write_job({"spec": changes}))
    assert run.finish() == 0, run.err

    listed = json.loads(
        workshop.roll("samples", str(run.folder), "--ended", "-o", "json", "--limit", "500").stdout
    )["samples"]
    assert any(sample["validation"] for sample in listed)
    for sample in listed:
        if sample["reward"] is None:
            continue
        answered = sample["said"][1]
        assert sample["said"][0]["text"] == sample["row"]["prompt"]
        assert sample["reward"] == float(answered["text"] == sample["row"]["answer"])
        assert answered["finish"] in ("stop", "length")

    worst = workshop.roll(
        "samples", str(run.folder), "--reward-below", "0.5", "--limit", "1"
    ).stdout
    name = worst.splitlines()[1].split()[0]
    story = workshop.roll("samples", str(run.folder), "--id", name).stdout
    assert "--- prompt, 6 tokens\n" in story
    assert "--- reward 0 (exact 0)" in story

    first, last = run.summary()["firstAnswers"], run.summary()["lastAnswers"]
    assert (first["step"], last["step"]) == (0, STEPS)
    assert [a["prompt"] for a in first["answers"]] == [a["prompt"] for a in last["answers"]]
    assert len(first["answers"]) == 3
    for answer in first["answers"]:
        assert answer["prompt"] in run.out

    nothing = workshop.roll("samples", str(run.folder))
    assert "--ended lists samples that have ended" in nothing.stdout
    pruned = workshop.roll("samples", str(run.folder), "--id", "1.0")
    assert "details are kept since the oldest kept checkpoint" in pruned.stdout
    for name, words in (
        ("99999.0", "the newest that has ended"),
        (f"{listed[0]['sample']}9", "has"),
    ):
        missing = workshop.roll("samples", str(run.folder), "--id", name)
        assert missing.returncode == 2
        assert words in missing.stderr
