"""`roll run` as the conductor: real processes are killed, counted, restarted, stopped and continued."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_gone(state: dict[str, Any]) -> bool:
    deadline = time.monotonic() + 60
    pids = [p["pid"] for p in state["processes"] if p["pid"]]
    assert pids
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(alive(pid) for pid in pids)


def test_a_job_runs_to_its_end_and_is_summed_up(start_run: Any) -> None:
    run = start_run()
    state = run.until_running()
    assert {p["role"] for p in state["processes"]} == {
        "scheduler",
        "trainer",
        "inference",
        "reward",
        "environment",
    }
    code, out, err = run.finish()
    assert (code, err) == (0, "")
    assert "held-out reward  0.100 → 0.900" in out
    summary = run.summary()
    assert summary["phase"] == "Succeeded"
    assert summary["steps"] == 40
    assert summary["samples"]["trained"] == 40 * 32 * 8
    assert summary["validationReward"] == {"first": 0.1, "last": 0.9, "step": 20}
    assert set(summary["restarts"].values()) == {0}
    assert all_gone(state)


@pytest.mark.parametrize(
    ("victim", "role", "replaced"),
    [
        ("sums-scheduler-0", "scheduler", 1),
        ("sums-trainer-1", "trainer", 2),
        ("sums-inference-0", "inference", 1),
        ("sums-reward-0", "reward", 1),
        ("sums-environment-0", "environment", 1),
    ],
)
def test_a_killed_process_is_replaced_counted_and_reported_gone(
    start_run: Any, victim: str, role: str, replaced: int
) -> None:
    run = start_run(speed=0)
    before = run.until_running()
    pid = run.pid(victim)
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)
    after = run.until(lambda s: s["restarts"][role] == 1 and s["phase"] == "Running")
    old = {p["name"]: p for p in before["processes"]}
    changed = [p for p in after["processes"] if p["pid"] != old[p["name"]]["pid"]]
    assert len(changed) == replaced
    assert {p["role"] for p in changed} == {role}
    assert {p["attempt"] for p in changed} == {1}
    assert sum(after["restarts"].values()) == 1
    if role != "scheduler":
        told = [
            json.loads(x)
            for x in (run.folder / "ledger" / "fake-sync.jsonl").read_text().splitlines()
        ]
        assert any(old[victim]["uid"] in message["gone"] for message in told)
    log = run.folder / "logs" / f"{victim}.1.log"
    assert log.exists()


def test_a_restarted_scheduler_keeps_its_port_and_hears_of_all_pods(start_run: Any) -> None:
    run = start_run(speed=0)
    run.until_running()
    address = json.loads((run.folder / "run.json").read_text())["scheduler"]
    os.kill(run.pid("sums-scheduler-0"), signal.SIGKILL)
    run.until(lambda s: s["restarts"]["scheduler"] == 1 and s["phase"] == "Running")
    assert json.loads((run.folder / "run.json").read_text())["scheduler"] == address
    told = [
        json.loads(x) for x in (run.folder / "ledger" / "fake-sync.jsonl").read_text().splitlines()
    ]
    assert told[-1]["pid"] == run.pid("sums-scheduler-0")
    assert len(told[-1]["current"]) == 5


def test_ctrl_c_stops_everything_and_the_same_command_continues(start_run: Any) -> None:
    run = start_run(speed=5)
    state = run.until(lambda s: s["step"] >= 3)
    run.process.send_signal(signal.SIGINT)
    code, out, _ = run.finish()
    assert code == 130
    assert "Continue with: roll run" in out
    assert all_gone(state)
    assert run.summary()["phase"] == "Suspended"

    again = start_run(speed=50)
    code, out, _ = again.finish()
    assert code == 0
    assert "sums continues" in out
    summary = again.summary()
    assert summary["phase"] == "Succeeded"
    assert set(summary["restarts"].values()) == {0}
    assert (run.folder / "logs" / "sums-trainer-0.1.log").exists()


def test_nohup_lets_a_run_outlive_its_terminal(start_run: Any) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = start_run(speed=20)
    finally:
        signal.signal(signal.SIGHUP, before)
    run.until_running()
    run.process.send_signal(signal.SIGHUP)
    assert run.finish()[0] == 0


def test_a_second_ctrl_c_kills_what_does_not_listen(start_run: Any) -> None:
    run = start_run(speed=0, FAKE_TRAINER="deaf")
    state = run.until_running()
    run.process.send_signal(signal.SIGINT)
    run.until(lambda s: any(p["state"] == "stopping" for p in s["processes"]))
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGINT)
    code, _, _ = run.finish(10)
    assert code == 130
    assert all_gone(state)


def test_a_killed_roll_run_leaves_nothing_and_can_be_continued(start_run: Any) -> None:
    run = start_run(speed=5, FAKE_TRAINER="deaf")
    state = run.until_running()
    run.process.send_signal(signal.SIGKILL)
    run.process.wait()
    assert all_gone(state)
    again = start_run(speed=50)
    code, _, _ = again.finish()
    assert code == 0


def test_bad_input_in_a_worker_ends_the_job_with_its_words_told_once(start_run: Any) -> None:
    run = start_run(speed=0, FAKE_ENVIRONMENT="bad-input")
    code, out, err = run.finish()
    assert code == 2
    assert err == "error: sums-environment-0: train.jsonl:7: this line is not JSON\n"
    assert "not JSON" not in out
    summary = run.summary()
    assert (summary["phase"], summary["reason"]) == ("Failed", "BadInput")


def test_a_crash_loop_ends_when_its_budget_is_spent(start_run: Any) -> None:
    run = start_run(speed=0, FAKE_REWARD="crash")
    code, out, err = run.finish()
    assert code == 1
    assert out.count("sums-reward-0 died") == 2
    assert "maxRestarts" in err
    assert "RuntimeError: out of luck" in err
    assert run.summary()["restarts"]["reward"] == 2


def test_a_finished_run_is_not_run_again_unless_there_are_more_steps(start_run: Any) -> None:
    assert start_run(speed=200).finish()[0] == 0
    again = start_run()
    code, out, _ = again.finish()
    assert code == 0
    assert "is finished already" in out
    assert "held-out reward" in out
    more = start_run("--set", "steps=60", speed=200)
    code, out, _ = more.finish()
    assert code == 0
    assert more.summary()["steps"] == 60
    fresh = start_run("--fresh", speed=200)
    assert fresh.finish()[0] == 0
    assert not (fresh.folder / "logs" / "sums-trainer-0.1.log").exists()


def test_a_run_folder_in_use_is_refused(start_run: Any) -> None:
    first = start_run(speed=0)
    first.until_running()
    code, _, err = start_run().finish()
    assert code == 2
    assert "in use by a running" in err
    assert str(first.process.pid) in err


def test_a_port_in_use_is_refused(start_run: Any) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        code, _, err = start_run("--port", port).finish()
    assert code == 2
    assert err == (
        f"error: port {port} on 127.0.0.1 is in use by another program: choose another with --port, "
        "or leave --port out\n"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name: sums": "name: others"}, "belongs to the job 'sums', not to 'others'"),
        (
            {"builtin:tiny-qwen2": "builtin:tiny-qwen2-frozenlake"},
            "spec.model.path: was 'builtin:tiny-qwen2'",
        ),
        ({"steps: 40": "steps: 40\n  seed: 7"}, "spec.seed: was 42, now 7"),
        (
            {"steps: 40": "steps: 40\n  rollout: {groupSize: 4}"},
            "spec.rollout.groupSize: was 8, now 4",
        ),
    ],
)
def test_a_folder_of_another_job_is_refused_until_fresh(
    start_run: Any, job_file: Path, change: dict[str, str], message: str
) -> None:
    assert start_run(speed=200).finish()[0] == 0
    text = job_file.read_text()
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    job_file.write_text(text)
    code, _, err = start_run(speed=200).finish()
    assert code == 2
    assert message in err
    assert "--fresh" in err
    assert start_run("--fresh", speed=200).finish()[0] == 0


def test_fresh_deletes_no_folder_that_is_not_a_run(start_run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    for arguments in ([], ["--fresh"]):
        code, _, err = start_run(*arguments).finish()
        assert code == 2
        assert "error: " in err
    assert (folder / "thesis.txt").read_text() == "years of work"
    assert [entry.name for entry in folder.iterdir()] == ["thesis.txt"]


def test_what_status_says_of_a_running_job(start_run: Any) -> None:
    run = start_run(speed=0)
    run.until_running()
    shown = subprocess.run(
        [sys.executable, "-m", "roll_operator.cli", "status", str(run.folder), "-o", "json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    document = json.loads(shown.stdout)
    assert document["running"] is True
    assert document["phase"] == "Running"
    assert {"name", "role", "pid", "attempt", "state"} <= set(document["processes"][0])
    assert all(alive(p["pid"]) for p in document["processes"])
    assert document["validationReward"] == {"first": 0.1, "last": 0.9, "step": 20}
    assert document["samples"]["trained"] == document["step"] * 32 * 8
    assert document["samples"]["states"] == {"leased": 8}
