"""A run that was stopped, or killed, goes on with the same command."""

import json
import signal
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

STEPS = 150


def trained_steps(run: Any) -> list[int]:
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def assert_complete(workshop: Any, run: Any) -> None:
    summary = run.summary()
    assert summary["phase"] == "Succeeded"
    steps = summary["stepsWanted"]
    assert summary["samples"]["trained"] == steps * 32
    assert summary["samples"]["lost"] == 0
    assert summary["samples"]["trainedTwice"] == 0
    assert set(summary["restarts"].values()) == {0}
    assert trained_steps(run) == list(range(1, steps + 1))
    verified = workshop.roll("ledger", "verify", str(run.folder))
    assert verified.returncode == 0, verified.stderr


def test_ctrl_c_saves_and_the_same_command_continues_from_there(workshop: Any) -> None:
    job = workshop.write_job({"spec": {"steps": STEPS, "checkpoint": {"everySteps": 1000}}})
    run = workshop.start(job)
    run.wait_for_step(3)
    run.interrupt()
    assert run.finish(60) == 130
    assert "Continue with: roll run" in run.out
    assert run.leftovers() == []
    stopped = run.summary()
    assert stopped["phase"] == "Suspended"
    assert 3 <= stopped["steps"] < STEPS
    assert stopped["checkpoint"] >= 3, "the trainer saves what it has when it is asked to end"

    again = workshop.start(job)
    assert again.finish() == 0, again.err
    assert "small continues" in again.out
    assert f"starting at step {stopped['checkpoint']} " in again.logs("small-trainer-0")
    assert_complete(workshop, again)


def test_a_killed_roll_run_takes_everything_along_and_continues(workshop: Any) -> None:
    far_to_go = {"spec": {"steps": 5000, "checkpoint": {"everySteps": 2}}}
    run = workshop.start(workshop.write_job(far_to_go))
    run.wait_for_step(5)
    run.process.send_signal(signal.SIGKILL)
    run.process.wait(10)
    assert run.leftovers() == []
    again = workshop.continued(run, far_to_go)
    assert_complete(workshop, again)


def test_a_finished_run_says_so_and_goes_on_only_when_there_is_more_to_do(workshop: Any) -> None:
    run = workshop.start(workshop.write_job({"spec": {"steps": 3}}))
    assert run.finish() == 0, run.err
    again = workshop.start(workshop.write_job({"spec": {"steps": 3}}))
    assert again.finish(120) == 0
    assert "is finished already" in again.out
    (run.folder / "summary.json").unlink()  # as after a disk that was full at the end
    summed_up = workshop.start(workshop.write_job({"spec": {"steps": 3}}))
    assert summed_up.finish() == 0, summed_up.err
    assert trained_steps(summed_up) == [1, 2, 3]
    assert summed_up.summary()["samples"]["trained"] == 3 * 32
    more = workshop.start(workshop.write_job({"spec": {"steps": 6}}))
    assert more.finish() == 0, more.err
    assert trained_steps(more) == [1, 2, 3, 4, 5, 6]
    assert more.summary()["samples"]["trained"] == 6 * 32
