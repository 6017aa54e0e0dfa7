"""SIGKILL to any one process while a job trains: it finishes by itself, nothing lost, nothing trained twice."""

from typing import Any

import pytest

pytestmark = pytest.mark.timeout(400)

STEPS = 150
SAMPLES = STEPS * 32


@pytest.mark.slow
@pytest.mark.parametrize("role", ["trainer", "inference", "reward", "environment", "scheduler"])
def test_a_killed_process_is_restarted_alone_and_nothing_is_lost(workshop: Any, role: str) -> None:
    run = workshop.start(workshop.write_job({"spec": {"steps": STEPS}}))
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
