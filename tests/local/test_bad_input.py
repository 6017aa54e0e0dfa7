"""Each mistake and each trouble: one clear message, a non-zero exit, no traceback, nothing left, nothing lost."""

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(400)

FAR_TO_GO = {"spec": {"steps": 5000, "checkpoint": {"everySteps": 2}}}
"""Is interrupted, whatever it takes to get there."""
ROWS = [{"prompt": f"{n}{n}{n}>", "answer": str(n), "tag": "number"} for n in range(8)]


def refused(workshop: Any, changes: dict[str, Any], *arguments: str) -> str:
    """Runs a job that cannot work and returns its one message."""
    run = workshop.start(workshop.write_job(changes), *arguments)
    code = run.finish()
    assert code == 2, f"{code}\n{run.out}\n{run.err}"
    assert run.leftovers() == []
    messages = [line for line in run.err.splitlines() if line.startswith("error: ")]
    assert len(messages) == 1, run.err
    assert "Traceback" not in run.err
    return str(messages[0])


def data_of(path: str, **more: Any) -> dict[str, Any]:
    return {"spec": {"data": {"train": {"path": path, **more}}}}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"stepz": 3}, ["job.yaml:", "spec.stepz", "did you mean steps"]),
        ({"steps": "many"}, ["job.yaml:", "spec.steps", "integer"]),
        ({"roles": {"inference": None}}, ["spec.roles.inference"]),
        ({"roles": {"trainer": {"replicas": 3}}}, ["spec.rollout.groupsPerStep", "multiple"]),
    ],
    ids=["unknown key", "wrong type", "missing role", "batch that does not divide"],
)
def test_a_job_that_is_wrong_by_itself(
    workshop: Any, spec: dict[str, Any], words: list[str]
) -> None:
    message = refused(workshop, {"spec": spec})
    for word in words:
        assert word in message
    assert not (workshop.folder / "run").exists()


def test_all_problems_of_a_job_are_told_at_once(workshop: Any) -> None:
    job = workshop.write_job({"spec": {"stepz": 3, "seed": "x", "roles": {"inference": None}}})
    checked = workshop.roll("validate", str(job))
    assert checked.returncode == 2
    for key in ("spec.stepz", "spec.seed", "spec.roles.inference"):
        assert key in checked.stderr


def test_a_job_file_that_is_not_there(workshop: Any) -> None:
    run = workshop.start(workshop.folder / "missing.yaml")
    assert run.finish() == 2
    assert "missing.yaml: cannot be read: No such file" in run.err


def test_data_that_is_missing(workshop: Any) -> None:
    assert "nowhere.jsonl" in refused(workshop, data_of("./nowhere.jsonl"))


def test_data_that_cannot_be_read(workshop: Any) -> None:
    (workshop.folder / "data.jsonl").write_bytes(b"\xff\xfe\x00binary")
    assert "data.jsonl" in refused(workshop, data_of("./data.jsonl"))


def test_a_broken_line_is_named_with_file_and_number(workshop: Any) -> None:
    lines = [json.dumps(row) for row in ROWS]
    lines[4] = '{"prompt": "1'
    (workshop.folder / "data.jsonl").write_text("\n".join(lines))
    message = refused(workshop, data_of("./data.jsonl"))
    assert "data.jsonl" in message
    assert "line 5" in message


def test_an_empty_data_set(workshop: Any) -> None:
    (workshop.folder / "data.jsonl").write_text("")
    message = refused(workshop, data_of("./data.jsonl"))
    assert "data.jsonl" in message
    assert "no rows" in message


def test_a_tag_without_a_reward(workshop: Any) -> None:
    (workshop.folder / "data.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))
    rewards = [{"name": "exact", "tags": ["text"], "scorer": {"kind": "exactMatch"}}]
    changes = data_of("./data.jsonl")
    changes["spec"]["rewards"] = rewards
    assert "'number'" in refused(workshop, changes)


def test_a_model_folder_that_is_missing(workshop: Any) -> None:
    assert "model.path" in refused(workshop, {"spec": {"model": {"path": "./no-model"}}})


def test_a_model_folder_that_is_incomplete(workshop: Any) -> None:
    folder = workshop.folder / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    message = refused(workshop, {"spec": {"model": {"path": "./model"}}})
    assert str(folder) in message or "model.path" in message


def test_a_model_with_too_small_a_context(workshop: Any) -> None:
    message = refused(workshop, {"spec": {"rollout": {"sampling": {"maxNewTokens": 1_000_000}}}})
    assert "maxNewTokens" in message


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import no_such_module\ndef score(response): ...\n", ["no_such_module"]),
        ("def score(:\n", ["rewards.py", "line 1"]),
        ("def other(): pass\n", ["score"]),
        (None, ["rewards.py"]),
    ],
    ids=["import error", "syntax error", "no such function", "no such file"],
)
def test_a_reward_function_that_does_not_import(
    workshop: Any, code: str | None, words: list[str]
) -> None:
    if code is not None:
        (workshop.folder / "rewards.py").write_text(code)
    rewards = [{"name": "mine", "scorer": {"python": "rewards.py:score"}}]
    message = refused(workshop, {"spec": {"rewards": rewards}})
    for word in words:
        assert word in message


def test_a_port_in_use(workshop: Any) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        message = refused(workshop, {}, "--port", port)
    assert port in message
    assert "--port" in message


def test_a_run_folder_of_another_job(workshop: Any) -> None:
    folder = workshop.folder / "run"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"job": "other", "jobUid": "1"}))
    message = refused(workshop, {})
    assert "belongs to the job 'other'" in message
    assert json.loads((folder / "run.json").read_text())["job"] == "other"


def test_a_run_folder_in_use(workshop: Any) -> None:
    job = workshop.write_job()
    first = workshop.start(job)
    first.wait_for(lambda status: status["processes"])
    second = workshop.start(job)
    assert second.finish(30) == 2
    assert "in use by a running" in second.err
    assert first.process.poll() is None
    first.interrupt()
    assert first.finish(90) == 130


@pytest.fixture
def small_disk(workshop: Any) -> Iterator[Path]:
    """The run's folder as a disk of its own."""
    disk: Path = workshop.folder / "run"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs root to mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@contextlib.contextmanager
def kept_full(disk: Path) -> Iterator[None]:
    """Takes every byte, also those that a deleted checkpoint gives back."""
    over = threading.Event()

    def fill() -> None:
        with (disk / ".filler").open("ab", buffering=0) as filler:
            while not over.wait(0.02):
                with contextlib.suppress(OSError):
                    while filler.write(b"\0" * 4096):
                        pass

    filling = threading.Thread(target=fill)
    filling.start()
    try:
        yield
    finally:
        over.set()
        filling.join()
        (disk / ".filler").unlink()


@contextlib.contextmanager
def turned_read_only(disk: Path) -> Iterator[None]:
    """Lays a read-only view over the disk: a remount in place is refused while a file is being written."""
    view = disk.parent / "read-only"
    view.mkdir()
    subprocess.run(["mount", "--bind", str(disk), str(view)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(view)], check=True)
        subprocess.run(["mount", "--bind", str(view), str(disk)], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(view)], check=True)


def assert_told_and_unharmed(run: Any, words: tuple[str, ...]) -> None:
    assert run.finish(120) not in (0, 130)
    assert "Traceback" not in run.err, run.err
    last = run.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert any(word in last for word in words), run.err
    assert run.leftovers() == []


@pytest.mark.slow
def test_a_full_disk_stops_the_run_and_room_lets_it_continue(
    workshop: Any, small_disk: Path
) -> None:
    run = workshop.start(workshop.write_job(FAR_TO_GO))
    run.wait_for_step(3)
    with kept_full(small_disk):
        assert_told_and_unharmed(run, ("No space left", "full"))
    workshop.continued(run, FAR_TO_GO)


@pytest.mark.slow
def test_a_disk_that_turns_read_only_stops_the_run_and_a_writable_one_lets_it_continue(
    workshop: Any, small_disk: Path
) -> None:
    run = workshop.start(workshop.write_job(FAR_TO_GO))
    run.wait_for_step(3)
    with turned_read_only(small_disk):
        assert_told_and_unharmed(run, ("Read-only", "read-only", "readonly"))
    workshop.continued(run, FAR_TO_GO)


def test_a_read_only_folder_is_told_before_anything_starts(workshop: Any, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    message = refused(workshop, {})
    assert "cannot be written" in message
    assert "--output" in message


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before_and_says_so(
    workshop: Any,
) -> None:
    run = workshop.start(workshop.write_job(FAR_TO_GO))
    run.wait_for_step(6)
    run.interrupt()
    assert run.finish(90) == 130
    *_, before, newest = sorted(
        p for p in (run.folder / "checkpoints").glob("step-*") if p.is_dir()
    )
    shard = max(newest.iterdir(), key=lambda p: p.stat().st_size)
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 0xFF
    shard.write_bytes(content)

    again = workshop.continued(run, FAR_TO_GO)
    step = int(before.name.split("-")[1])
    assert f"starting at step {step} " in again.logs("small-trainer-0")
    assert newest.name in again.logs("small-trainer-0")
