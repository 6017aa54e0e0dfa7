"""What a person reads while a job runs."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from roll_api import JobStatus, RLJob
from roll_operator.cli.status import dropped_text, status_lines
from roll_operator.cli.view import PlainView, news_line, plain_line, sparkline
from roll_operator.controller.folder import RunFolder
from roll_operator.controller.local import Snapshot
from roll_operator.controller.summary import curve, draw
from roll_operator.plan import FailJob, Failure, Held, Process, Progress, Record, Restarted

JOB = RLJob.parse(
    {
        "apiVersion": "roll.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "sums"},
        "spec": {
            "steps": 120,
            "model": {"path": "builtin:tiny-qwen2"},
            "data": {"train": {"path": "builtin:largest-of-three"}},
            "rewards": [{"name": "exact", "scorer": {"kind": "exactMatch"}}],
            "roles": {"inference": {}, "reward": {}, "environment": {}},
        },
    }
)
SEEN = Progress(step=37, reward=0.61, samples_per_second=812.4, staleness_max=1)
RUNNING = Snapshot(JOB, JobStatus(phase="Running", restarts=0), SEEN, (), Record(), False, 60.0)


def test_the_plain_line_says_it_all_in_one_line() -> None:
    assert plain_line(RUNNING) == "step 37/120 reward 0.61 812 samples/s stale 1 restarts 0"


def test_a_speed_is_told_without_an_exponent() -> None:
    fast = replace(SEEN, samples_per_second=2223.4)
    assert " 2,220 samples/s " in plain_line(replace(RUNNING, progress=fast))
    slow = {"job": "sums", "phase": "Running", "running": True, "samplesPerSecond": 0.042}
    assert any(line.endswith(" 0.042/s, stale 0") for line in status_lines(slow))


def test_the_plain_line_shows_what_was_held_out() -> None:
    seen = replace(SEEN, validation=(0.1, 0.55), validation_step=20)
    assert plain_line(replace(RUNNING, progress=seen)).endswith(" held-out 0.55 (step 20)")


def test_before_the_first_step_the_line_tells_what_is_waited_for() -> None:
    processes = [
        Process(f"sums-inference-{i}", "inference", 1, 0, "ready" if i < 2 else "starting")
        for i in range(5)
    ]
    starting = replace(
        RUNNING,
        status=JobStatus(phase="Starting"),
        progress=None,
        processes=processes,
        seconds=7.0,
    )
    assert plain_line(starting) == "starting: 2/5 processes ready after 7 s"
    continued = replace(starting, progress=replace(SEEN, step=15))
    assert plain_line(continued) == (
        "starting: 2/5 processes ready after 7 s, to go on from step 15"
    )


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            Restarted(
                Failure("Killed", "killed by signal 9", "sums-reward-0"), "reward", True, 0.0
            ),
            "sums-reward-0 died (killed by signal 9); restarting reward now",
        ),
        (
            Restarted(Failure("Crashed", "boom", "sums-trainer-1"), "trainer", True, 5.0),
            "sums-trainer-1 died (boom); restarting trainer in 5 s",
        ),
        (
            FailJob(Failure("BadInput", "no data", "sums-environment-0")),
            "sums-environment-0 cannot go on: everything is stopped",
        ),
    ],
)
def test_a_restart_and_a_failure_are_told_in_a_sentence(
    event: FailJob | Restarted, line: str
) -> None:
    assert news_line(event) == line


def test_a_notice_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView()
    waiting = replace(RUNNING, progress=replace(SEEN, notices=("step 38 waits for 9.3",)))
    view.show(waiting, ())
    view.show(waiting, ())
    assert capsys.readouterr().out.count("note: step 38 waits for 9.3") == 1


def test_a_trainer_that_goes_back_to_its_checkpoint_says_how_far(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = PlainView()
    for step in (513, 500, 501, 514):
        view.show(replace(RUNNING, progress=replace(SEEN, step=step)), ())

    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert notes == ["note: the trainer is at step 500 again: it redoes 13 steps"]


@pytest.mark.parametrize(
    ("values", "shape"),
    [([], ""), ([0.5], "▁"), ([0, 1], "▁█"), ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█")],
)
def test_a_curve_in_one_line(values: list[float], shape: str) -> None:
    assert sparkline(values) == shape


def test_a_long_curve_is_drawn_from_means_of_equal_parts() -> None:
    line = sparkline([n / 1000 for n in range(1000)], width=8)
    assert line == "▁▂▃▄▅▆▇█"


def test_the_curve_on_disk_survives_a_half_written_line(tmp_path: Path) -> None:
    rows = [json.dumps({"step": n, "critic/rewards/mean": n / 10}) for n in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*rows, '{"step": 3, "crit']))
    assert curve(RunFolder(tmp_path)) == [(1, 0.1), (2, 0.2)]


def test_the_reward_curve_is_drawn(tmp_path: Path) -> None:
    rows = [json.dumps({"step": n, "critic/rewards/mean": n / 10}) for n in range(5)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows))
    picture = draw(RunFolder(tmp_path), JOB, [(0, 0.1), (4, 0.4)])
    if picture is None:
        pytest.importorskip("matplotlib")
    assert picture is not None
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_on_a_terminal_there_is_one_live_picture(tmp_path: Path, job_file: Path) -> None:
    ours, theirs = pty.openpty()
    roll = subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).with_name("fake_roll.py")),
            "run",
            str(job_file),
            "--output",
            str(tmp_path / "run"),
        ],
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "FAKE_SPEED": "20", "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(theirs)
    shown = io.BytesIO()
    try:
        while block := os.read(ours, 65536):
            shown.write(block)
    except OSError:  # the other end is closed
        pass
    assert roll.wait(30) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.getvalue().decode())
    for word in ("40/40", "reward", "held out", "0.100 → 0.900", "staleness", "● ready", "/s"):
        assert word in text


def test_what_was_not_trained_is_told_by_reason() -> None:
    dropped = {"filtered": 40, "failed.input": 15, "cancelled.job-ended": 300}
    assert dropped_text(dropped) == "15 failed (input), 40 filtered"


def test_the_first_step_says_what_it_waits_for() -> None:
    held = Held("sums-reward-0", "3/1", "score", 12.4)
    seen = Progress(step=0, samples={"scored": 12, "leased": 244}, held=held)
    assert plain_line(replace(RUNNING, progress=seen)) == (
        "step 0/120: 12 of 256 samples scored; sums-reward-0 has been at the score of one for 12 s"
    )
