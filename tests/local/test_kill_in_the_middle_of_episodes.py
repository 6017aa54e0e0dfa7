"""SIGKILL to the environment worker between the turns of its episodes: another process goes on with them."""

import json
import os
import signal
import time
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

STEPS, GROUPS, SIZE, TURNS = 30, 6, 4, 8
LAKES = {
    "pipeline": "Agentic",
    "steps": STEPS,
    "model": {"path": "builtin:tiny-qwen2-frozenlake"},
    "data": None,
    "rewards": None,
    "environment": {
        "kind": "frozenLake",
        "options": {"size": 4, "render": "local"},
        "maxTurns": TURNS,
        "formatPenalty": -0.05,
    },
    "rollout": {
        "groupsPerStep": GROUPS,
        "groupSize": SIZE,
        "maxStaleness": 1,
        "sampling": {"maxNewTokens": 1},
    },
    "roles": {"reward": None},
    "checkpoint": {"everySteps": 10, "keepLast": 10},  # so that every sample's story is kept
}
POD = "small-environment-0"


def test_episodes_of_a_killed_environment_worker_go_on_from_their_recorded_turns(
    workshop: Any,
) -> None:
    run = workshop.start(workshop.write_job({"spec": LAKES}))
    run.wait_for_step(3)
    begun = stopped_in_the_middle(workshop, run)
    killed_at = time.time()
    run.kill(POD)
    after = run.wait_for(lambda status: status["restarts"]["environment"] == 1)
    assert after["step"] < STEPS, "the kill came too late to prove anything"
    assert run.finish() == 0, run.err

    summary = run.summary()
    assert summary["phase"] == "Succeeded" and summary["steps"] == STEPS
    assert {role for role, count in summary["restarts"].items() if count} == {"environment"}
    samples = summary["samples"]
    assert (samples["trained"], samples["lost"], samples["trainedTwice"]) == (
        STEPS * GROUPS * SIZE,
        0,
        0,
    )
    verified = workshop.roll("ledger", "verify", str(run.folder))
    assert verified.returncode == 0, verified.stderr
    assert run.leftovers() == []

    for name, turns in begun.items():
        story = json.loads(
            workshop.roll("samples", str(run.folder), "--id", name, "-o", "json").stdout
        )
        assert story["state"].startswith("committed("), story
        events = [event for event in story["events"] if event["worker"] == POD]
        before = [event for event in events if event["at"] < killed_at]
        since = [event for event in events if event["at"] >= killed_at]
        # One life: begun once, by the process that died, and every turn made once.
        assert not any("life" in event["detail"] for event in events), events
        assert [event["what"] for event in before] == ["reset"] + ["step"] * turns, events
        assert since and {event["what"] for event in since} == {"step"}, events
        made = [int(event["detail"]["turn"]) for event in (before + since)[1:]]
        assert made == list(range(len(made))), events


def stopped_in_the_middle(workshop: Any, run: Any) -> dict[str, int]:
    """Halts the environment worker while it holds episodes: some of these, with the turns they have behind them."""
    pid = next(int(p["pid"]) for p in run.status()["processes"] if p["name"] == POD)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        os.kill(pid, signal.SIGSTOP)
        listed = workshop.roll("samples", str(run.folder), "--limit", "500", "-o", "json")
        found = {
            sample["sample"]: sample["turn"]
            for sample in json.loads(listed.stdout)["samples"]
            if (sample["state"], sample["stage"]) == ("leased", "step") and sample["turn"] > 0
        }
        if found:
            return dict(list(found.items())[:8])
        os.kill(pid, signal.SIGCONT)  # it held none, or only beginnings
    raise AssertionError("the environment worker was never seen in the middle of an episode")
