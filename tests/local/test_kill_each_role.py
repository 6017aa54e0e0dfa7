"""SIGKILL to any one process while a job trains: it finishes by itself, nothing lost, nothing trained twice."""

import json
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(400)

STEPS = 150
SAMPLES = STEPS * 32


@pytest.mark.slow
@pytest.mark.parametrize("role", ["trainer", "inference", "reward", "environment", "scheduler"])
def test_a_killed_process_is_restarted_alone_and_nothing_is_lost(workshop: Any, role: str) -> None:
    kept = STEPS if role == "trainer" else 3  # all: of a run that is replayed as a whole
    changes = {"spec": {"steps": STEPS, "checkpoint": {"keepLast": kept}}}
    run = workshop.start(workshop.write_job(changes))
    before = run.wait_for_step(3)
    assert before["step"] < STEPS
    victim = f"small-{role}-0"
    killed = run.kill(victim)

    after = run.wait_for(lambda status: status["restarts"][role] == 1)
    assert after["step"] < STEPS, "the kill came too late to prove anything"
    assert run.finish() == 0, run.err

    summary = run.summary()
    assert summary["phase"] == "Succeeded"
    assert summary["steps"] == STEPS
    assert summary["restarts"] == {
        name: int(name == role)
        for name in ("scheduler", "trainer", "inference", "reward", "environment")
    }
    assert summary["samples"]["trained"] == SAMPLES
    assert summary["samples"]["lost"] == 0
    assert summary["samples"]["trainedTwice"] == 0
    assert summary["stalenessMax"] <= 3
    assert (run.folder / "logs" / f"{victim}.1.log").exists()
    others = [p for p in before["processes"] if p["name"] != victim]
    assert killed not in [p["pid"] for p in others]
    assert {p["attempt"] for p in after["processes"] if p["name"] != victim} == {0}

    verified = workshop.roll("ledger", "verify", str(run.folder))
    assert verified.returncode == 0, verified.stderr
    assert run.leftovers() == []
    if role == "trainer":
        assert_an_undisturbed_trainer_learns_the_same(workshop, run)


def assert_an_undisturbed_trainer_learns_the_same(workshop: Any, run: Any) -> None:
    """Over the same recorded batches, from the first step on: those before the kill, too."""
    last = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
    replayed = workshop.roll("replay", str(run.folder))
    assert replayed.returncode == 0, f"{replayed.stdout}\n{replayed.stderr}"
    assert f"replayed  steps 1 to {STEPS}\n" in replayed.stdout
    assert replayed.stdout.count(f"weights after step {STEPS}: {last['weights_digest']}\n") == 2
    assert "equal, bit for bit" in replayed.stdout
