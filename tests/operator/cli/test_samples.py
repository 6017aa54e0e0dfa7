"""`roll samples` and the answers of a run, where somebody laid hands on the ledger: one sentence, no trace."""

import json
import sqlite3
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
