"""`roll samples` and the answers of a run, where somebody laid hands on the ledger: one sentence, no trace."""

import json
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from roll_operator.cli.samples import show_ended, show_sample, show_samples
from roll_operator.controller import claim
from roll_operator.controller.answers import read_answers
from roll_operator.controller.folder import RunError, RunFolder
from roll_operator.scheduler import record
from roll_operator.scheduler.ledger.segments import SegmentStore
from roll_operator.scheduler.lifecycle import Part
from roll_operator.scheduler.settings import Settings
from roll_wire import control_pb2_grpc
from roll_wire.sample_pb2 import Trajectory
from support.job_objects import make_job
from support.scheduler_roles import Held
from support.scheduler_world import World

SETTINGS = Settings(
    steps=6, groups_per_step=2, group_size=2, validation_every=1, validation_prompts=2
)


class Talk(World):
    def payload(self, task: Held) -> bytes:
        """As a worker says it."""
        facts = {f"{task.stage}Lease": json.dumps(task.lease)}
        return Trajectory(facts=facts).SerializeToString()


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Stopped in the middle: two steps and their validations have ended, samples are in flight."""
    folder = RunFolder(tmp_path)
    folder.job_file.write_text(make_job().to_json())
    job = Talk(folder.ledger, SETTINGS)
    for role in ("environment", "reward", "inference"):
        job.add_worker(role, credits=64)
    job.start_trainer()
    job.begin()
    job.train(2)
    job.fetch_all()
    job.finish_all("reset")
    job.flush()
    job.ledger.close()
    return folder


def one(run: RunFolder, where: str) -> int:
    db = sqlite3.connect(run.ledger / "ledger.sqlite")
    (group,) = db.execute(
        f"SELECT id FROM groups JOIN parts ON group_id = id WHERE {where} ORDER BY id DESC"
    ).fetchone()
    db.close()
    return int(group)


@pytest.mark.parametrize("command", [["samples"], ["samples", "--ended"], ["ledger", "verify"]])
def test_commands_that_read_the_ledger_are_quick(run: RunFolder, command: list[str]) -> None:
    """CPU time, as of the commands that do not: their own limit is in `benchmarks/startup.py`."""
    known = {"job": "sums", "jobUid": "u", "pid": 1, "scheduler": "127.0.0.1:1"}
    (run.path / "run.json").write_text(json.dumps(known))
    words = [sys.executable, "-m", "roll_operator.cli", *command, str(run.path)]
    subprocess.run(words, capture_output=True, timeout=60)  # compiled and in the cache
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout, done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2.0


IN_FLIGHT, TRAINED, EVALUATED = "state IN (1, 3)", "state = 4", "state = 10 AND position = 0"


def alter(run: RunFolder, group: int) -> None:
    """Its parts are of a kind that no stage has."""
    db = sqlite3.connect(run.ledger / "ledger.sqlite", isolation_level=None)
    query = "SELECT rowid, packed FROM parts WHERE group_id = ?"
    for row, packed in db.execute(query, (group,)).fetchall():
        changed = [v for part in record.parts(packed, group) for v in part._replace(kind=9)]
        db.execute("UPDATE parts SET packed = ? WHERE rowid = ?", (record.pack(changed), row))
    db.close()


def listed(run: RunFolder) -> int:
    return show_samples(run, follow=False, limit=99, as_json=False, screen=False)


def ended(run: RunFolder, *, limit: int = 99, as_json: bool = False) -> int:
    return show_ended(run, limit=limit, reward_below=None, as_json=as_json)


@pytest.mark.parametrize(
    ("where", "command"),
    [
        (IN_FLIGHT, lambda run, group: listed(run)),
        (TRAINED, lambda run, group: show_sample(run, f"{group}.0", as_json=False)),
        (TRAINED, lambda run, group: ended(run)),
    ],
    ids=["samples", "--id", "--ended"],
)
def test_an_altered_record_is_one_sentence(
    run: RunFolder, where: str, command: Callable[[RunFolder, int], int]
) -> None:
    group = one(run, where)
    assert command(run, group) == 0
    alter(run, group)

    with pytest.raises(RunError) as raised:
        command(run, group)

    said = f"{run.ledger}: group {group} was altered: a part of its sample "
    assert str(raised.value).startswith(said)
    assert str(raised.value).endswith("see `roll ledger verify`")


def test_an_altered_record_is_no_answer(run: RunFolder) -> None:
    assert len(read_answers(run, last=True)["answers"]) == 2

    alter(run, one(run, EVALUATED))

    assert read_answers(run, last=True) == {}


def test_a_ledger_of_another_release_is_one_sentence(run: RunFolder) -> None:
    db = sqlite3.connect(run.ledger / "ledger.sqlite", isolation_level=None)
    db.execute("UPDATE meta SET value = '0' WHERE key = 'format'")
    db.close()

    with pytest.raises(RunError, match="written by another release"):
        ended(run)


def test_what_a_scheduler_fails_to_tell_the_ledger_tells(run: RunFolder) -> None:
    class Control(control_pb2_grpc.ControlServicer):
        def GetSample(self, request: Any, context: Any) -> Any:
            raise RuntimeError("altered")

    group = one(run, TRAINED)
    alter(run, group)
    server = grpc.server(ThreadPoolExecutor(1))
    control_pb2_grpc.add_ControlServicer_to_server(Control(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    (run.path / "run.json").write_text(json.dumps({"scheduler": f"127.0.0.1:{port}"}))
    server.start()
    try:
        with claim.held(run), pytest.raises(RunError, match=f"group {group} was altered"):
            show_sample(run, f"{group}.0", as_json=False)
    finally:
        server.stop(0).wait()


def damage(run: RunFolder, group: int) -> None:
    """One byte of what its first sample generated."""
    db = sqlite3.connect(run.ledger / "ledger.sqlite")
    query = "SELECT packed FROM parts WHERE group_id = ?"
    parts = [p for (packed,) in db.execute(query, (group,)) for p in record.parts(packed, group)]
    db.close()
    part = next(p for p in parts if (p.idx, p.stage) == (0, "generate"))
    with (run.ledger / "segments" / f"{part.segment:08d}.seg").open("r+b") as file:
        file.seek(part.start + part.length - 1)
        file.write(b"\0")


def test_a_damaged_payload_is_told(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    group = one(run, TRAINED)
    ended(run, as_json=True)
    before = {s["sample"] for s in json.loads(capsys.readouterr().out)["samples"]}
    damage(run, group)
    said = f"{run.ledger}: what was said in sample {group}.0 is damaged; see `roll ledger verify`"

    with pytest.raises(RunError) as raised:
        show_sample(run, f"{group}.0", as_json=False)
    assert str(raised.value) == said
    assert show_sample(run, f"{group}.1", as_json=False) == 0, "the other one is whole"

    capsys.readouterr()
    assert ended(run, as_json=True) == 0
    shown = capsys.readouterr()
    assert before - {s["sample"] for s in json.loads(shown.out)["samples"]} == {f"{group}.0"}
    assert shown.err == f"warning: {said}\n"


def test_of_many_damaged_payloads_the_first_is_named(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    for segment in (run.ledger / "segments").glob("*.seg"):
        segment.unlink()

    assert ended(run) == 0

    newest = one(run, "state NOT IN (1, 3)")
    every = 2 * 2 * 2 + 2 * 2  # of two steps, and of the two validations before them
    assert f"sample {newest}.0 and {every - 1} more is damaged" in capsys.readouterr().err


def test_what_is_pruned_while_it_is_read_is_no_damage(
    run: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pruned(store: SegmentStore, part: Part) -> None:
        """Its rows are gone first, then something else is written over it."""
        db = sqlite3.connect(run.ledger / "ledger.sqlite", isolation_level=None)
        db.execute("DELETE FROM groups WHERE state NOT IN (1, 3)")
        db.close()

    monkeypatch.setattr(SegmentStore, "read_part", pruned)

    assert ended(run) == 0

    shown = capsys.readouterr()
    assert (shown.out.splitlines()[-1], shown.err) == ("none", "")
