"""`roll` as a user types it: answers fast, explains itself, and turns mistakes into messages."""

import json
import os
import resource
import sqlite3
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from roll_api import JobStatus, RLJob, load_job
from roll_api.data import ValidationData
from roll_operator.cli.cluster.status import read_cluster_status
from roll_operator.cli.status import status_lines
from roll_operator.controller import claim
from roll_operator.controller.folder import RunFolder
from roll_operator.controller.state import State
from roll_operator.controller.summary import summarize
from roll_operator.plan import Progress
from roll_operator.scheduler.ledger import SqliteLedger
from roll_operator.scheduler.settings import Settings

COMMANDS = (
    ["run"],
    ["validate"],
    ["reward"],
    ["submit"],
    ["status"],
    ["samples"],
    ["logs"],
    ["replay"],
    ["ledger", "verify"],
)


def roll(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "roll_operator.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
    )


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """What a run leaves behind, without its ledger."""
    run = tmp_path / "runs" / "sums"
    (run / "logs").mkdir(parents=True)
    state = {
        "job": "sums",
        "phase": "Succeeded",
        "step": 40,
        "steps": 40,
        "stepsWanted": 40,
        "processes": [],
        "restarts": {"trainer": 1},
        "samples": {"trained": 320},
        "samplesPerSecond": 100.0,
        "record": {"secret": "of the operator"},
    }
    documents = {
        "run.json": {"job": "sums", "jobUid": "u", "pid": 1, "scheduler": "127.0.0.1:1"},
        "state.json": state,
        "summary.json": {
            "job": "sums",
            "steps": 40,
            "stepsWanted": 40,
            "samples": {"trained": 320, "lost": 0, "trainedTwice": 0},
        },
    }
    for name, document in documents.items():
        (run / name).write_text(json.dumps(document))
    for pod, attempt, text in (
        ("sums-trainer-0", 0, "step 1\nstep 2\n"),
        ("sums-trainer-0", 1, "step 3\n"),
        ("sums-reward-0", 0, "scored\n"),
    ):
        (run / "logs" / f"{pod}.{attempt}.log").write_text(text)
    return run


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    shown = roll(*command, "--help")
    assert shown.returncode == 0
    assert f"roll {' '.join(command)} " in shown.stdout.split("Example", 1)[1]


@pytest.mark.parametrize("command", COMMANDS[COMMANDS.index(["status"]) :], ids=" ".join)
def test_a_folder_that_is_no_run_is_one_message(command: list[str], tmp_path: Path) -> None:
    shown = roll(*command, str(tmp_path))
    assert shown.returncode == 2
    assert shown.stderr == f"error: {tmp_path} is not the folder of a run (it has no run.json)\n"


def test_all_problems_of_all_files_are_told_with_line_and_key(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(
        "apiVersion: roll.dev/v1alpha1\nkind: RLJob\nmetadata: {name: a}\nspec:\n  stepz: 3\n"
        "  model: {path: x}\n  data: {train: {path: y}}\n"
    )
    (tmp_path / "two.yaml").write_text("kind: [")
    shown = roll("validate", "one.yaml", "two.yaml", cwd=tmp_path)
    assert shown.returncode == 2
    assert "error: one.yaml:5: spec.stepz: unknown key; did you mean steps?" in shown.stderr
    assert "error: two.yaml:" in shown.stderr
    as_json = roll("validate", "one.yaml", "two.yaml", "-o", "json", cwd=tmp_path)
    assert as_json.returncode == 2
    problems = json.loads(as_json.stdout)
    assert {"file", "line", "key_path", "message", "severity"} == set(problems[0])
    assert {p["file"] for p in problems} == {"one.yaml", "two.yaml"}


def test_a_valid_job_is_called_so(job_file: Path) -> None:
    shown = roll("validate", str(job_file))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "sums is valid" in shown.stdout


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("steps", "write KEY=VALUE"),
        ("steps=many", "spec.steps"),
        ("rollout.groupSizes=3", "groupSizes"),
        ("seed.deep.er=3", "spec.seed"),
        ("rewards.7.name=x", "not a position"),
        ("steps=[", "not YAML"),
    ],
)
def test_a_wrong_override_is_named(job_file: Path, tmp_path: Path, change: str, words: str) -> None:
    shown = roll("run", str(job_file), "--output", str(tmp_path / "run"), "--set", change)
    assert shown.returncode == 2
    assert words in shown.stderr
    assert "Traceback" not in shown.stderr
    assert not (tmp_path / "run").exists()


def test_what_a_run_on_one_machine_does_not_do_is_refused_at_once(
    job_file: Path, tmp_path: Path
) -> None:
    changes = ("pipeline=SFT", "suspend=true", "roles.trainer.gpu.count=1", "rewards=[]")
    changes += ("roles.inference.engine.kind=vllm", "roles.trainer.strategy.kind=fsdp2")
    sets = [part for change in changes for part in ("--set", change)]
    shown = roll("run", str(job_file), "--output", str(tmp_path / "run"), *sets)
    assert shown.returncode == 2
    assert len(shown.stderr.splitlines()) == 5
    kinds = ("roles.inference.engine.kind", "roles.trainer.strategy.kind")
    for key in ("pipeline", "suspend", "roles.trainer.gpu", *kinds):
        assert f": spec.{key}: " in shown.stderr
    assert not (tmp_path / "run").exists()


def test_an_output_that_cannot_be_a_folder_is_one_message(job_file: Path) -> None:
    shown = roll("run", str(job_file), "--output", str(job_file / "run"))
    assert shown.returncode == 2
    assert "cannot be written" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_the_status_of_a_finished_run_has_its_figures_and_no_secrets(finished: Path) -> None:
    shown = json.loads(roll("status", str(finished), "-o", "json").stdout)
    assert shown["running"] is False
    assert shown["phase"] == "Succeeded"
    assert shown["samples"]["lost"] == 0
    assert shown["processes"] == []
    assert "record" not in shown
    text = roll("status", str(finished)).stdout
    assert "Succeeded (not running)" in text
    assert "40/40" in text


def test_steps_are_those_done_in_the_status_and_in_the_summary(
    tmp_path: Path, job_file: Path
) -> None:
    job, state = load_job(job_file), State(status=JobStatus(), last_progress=Progress(step=7))
    (tmp_path / "run").mkdir()
    folder = RunFolder(tmp_path / "run")
    status, summary = state.document(job, ()), summarize(folder, job, state)
    on_cluster = {"metadata": {"name": "sums", "namespace": "team"}, "spec": {"steps": 40}}
    remote = read_cluster_status(on_cluster | {"status": {"step": 7}}, [])
    for document in (status, summary, remote):
        assert (document["steps"], document["stepsWanted"]) == (7, 40)
    assert "step       7/40" in "\n".join(status_lines(status | {"running": False}))


def test_a_run_is_found_by_its_name(finished: Path) -> None:
    shown = roll("status", "sums", cwd=finished.parent.parent)
    assert shown.returncode == 0


def test_a_run_that_is_not_there_names_those_that_are(finished: Path) -> None:
    shown = roll("status", "runs/nope", cwd=finished.parents[1])
    assert shown.returncode == 2
    assert shown.stderr.endswith("(it has no run.json); there are runs/sums\n")


def test_the_status_of_a_killed_run_does_not_claim_that_it_runs(finished: Path) -> None:
    state = json.loads((finished / "state.json").read_text())
    state |= {"phase": "Running", "ready": "4/5", "processes": [{"name": "x", "pid": 1}]}
    (finished / "state.json").write_text(json.dumps(state))
    shown = json.loads(roll("status", str(finished), "-o", "json").stdout)
    assert shown["phase"] == "Suspended"
    assert (shown["processes"], shown["ready"]) == ([], "")
    assert "roll run was killed" in shown["message"]


def test_a_damaged_state_is_one_message(finished: Path) -> None:
    (finished / "state.json").write_text('{"job": ')
    shown = roll("status", str(finished))
    assert shown.returncode == 2
    assert "state.json is damaged" in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["trainer-0.1"], ["step 3"]),
        (["sums-reward-0"], ["scored"]),
        (
            ["trainer-0"],
            ["trainer-0.0 | step 1", "trainer-0.0 | step 2", "trainer-0.1 | step 3"],
        ),
        (["--role", "reward"], ["scored"]),
        (["--role", "trainer", "--lines", "1"], ["trainer-0.0 | step 2", "trainer-0.1 | step 3"]),
        (["--role", "reward", "--follow"], ["scored"]),
    ],
)
def test_logs_are_chosen_by_process_attempt_and_role(
    finished: Path, arguments: list[str], lines: list[str]
) -> None:
    shown = roll("logs", str(finished), *arguments)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines() == lines


def test_logs_of_several_processes_are_in_the_order_of_time(finished: Path) -> None:
    for name, text in (
        ("sums-trainer-0.0", "2026-01-31 23:59:58,002 b\n  Traceback\n2026-01-31 23:59:58,004 d\n"),
        ("sums-trainer-0.1", "2026-01-31 23:59:58,001 a\n2026-01-31 23:59:58,003 c\n"),
    ):
        (finished / "logs" / f"{name}.log").write_text(text)
    shown = roll("logs", str(finished), "--role", "trainer")
    assert [line.split()[-1] for line in shown.stdout.splitlines()] == [
        "a",
        "b",
        "Traceback",
        "c",
        "d",
    ]


def test_the_version_is_told() -> None:
    assert roll("--version").stdout == f"roll {version('roll-operator')}\n"


def test_logs_of_nobody_name_those_that_exist(finished: Path) -> None:
    shown = roll("logs", str(finished), "critic-0")
    assert shown.returncode == 2
    assert "reward-0.0, trainer-0.0, trainer-0.1" in shown.stderr


@pytest.mark.parametrize(
    "arguments", [["samples"], ["samples", "--id", "1.0"], ["ledger", "verify"], ["replay"]]
)
def test_a_run_without_a_ledger_is_one_message(finished: Path, arguments: list[str]) -> None:
    command = [a for a in arguments if not a.startswith("-") and a != "1.0"]
    options = [a for a in arguments if a not in command]
    shown = roll(*command, str(finished), *options)
    assert shown.returncode == 2
    assert "no ledger" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_ledger_that_is_none_is_one_message(finished: Path, job_file: Path) -> None:
    (finished / "job.json").write_text(load_job(job_file).to_json())
    (finished / "ledger").mkdir()
    (finished / "ledger" / "ledger.sqlite").write_text("what is this")
    shown = roll("ledger", "verify", str(finished))
    assert shown.returncode == 2
    assert "cannot be read" in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("a.jsonl", "b.jsonl", ["spec.data.validation.path: was 'a.jsonl', now 'b.jsonl'"]),
        ("a.jsonl", None, []),
        (None, "b.jsonl", []),
    ],
)
def test_a_run_may_begin_and_end_to_validate_but_keeps_its_held_out_rows(
    job_file: Path, before: str | None, after: str | None, changed: list[str]
) -> None:
    job = load_job(job_file)
    assert job.spec.data is not None

    def held_out(path: str | None) -> RLJob:
        data = job.spec.data.model_copy(
            update={"validation": ValidationData(path=path) if path else None}
        )
        return job.model_copy(update={"spec": job.spec.model_copy(update={"data": data})})

    spec = held_out(before).spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert claim.changes(spec, held_out(after)) == changed


def test_a_run_whose_ledger_is_of_another_release_is_one_message(
    tmp_path: Path, job_file: Path
) -> None:
    folder, job = tmp_path / "run", load_job(job_file)
    (folder / "ledger").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"job": job.name, "jobUid": "u"}))
    (folder / "job.json").write_text(job.to_json())
    ledger = SqliteLedger(folder / "ledger", Settings.from_job(job))
    ledger.open(0.0)
    ledger.close()
    with sqlite3.connect(folder / "ledger" / "ledger.sqlite") as db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'format'")
    shown = roll("run", str(job_file), "--output", str(folder))
    assert shown.returncode == 2
    assert "written by another release (format 99" in shown.stderr
    assert "Traceback" not in shown.stderr
    (problem,) = json.loads((folder / "summary.json").read_text())["ledgerProblems"]
    assert "format 99" in problem


def test_a_sample_is_named_by_group_and_index(finished: Path) -> None:
    shown = roll("samples", str(finished), "--id", "seven")
    assert shown.returncode == 2
    assert "GROUP.INDEX" in shown.stderr


def test_a_closed_pipe_is_no_error(finished: Path) -> None:
    (finished / "logs" / "sums-reward-0.0.log").write_text("line\n" * 200_000)
    command = f"{sys.executable} -m roll_operator.cli logs {finished} reward-0 | head -1"
    shown = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60
    )
    assert shown.stdout == "line\n"
    assert shown.stderr == ""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["status"], ["logs"], ["validate"]], ids=" ".join
)
def test_commands_that_do_not_train_need_less_than_a_second(
    finished: Path, job_file: Path, arguments: list[str]
) -> None:
    """CPU time: the machine may be busy with other tests. It is all they need, nothing waits."""
    target: dict[str, Any] = {"status": finished, "logs": finished, "validate": job_file}
    more = [str(target[arguments[0]])] if arguments[0] in target else []
    roll(*arguments, *more)  # compiled and in the cache
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert roll(*arguments, *more).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 1.0


def test_the_command_line_imports_neither_torch_nor_the_scheduler(finished: Path) -> None:
    code = (
        "import sys\n"
        "sys.argv = ['roll', 'status', sys.argv[1]]\n"
        "from roll_operator.cli import main\n"
        "try:\n main()\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'numpy', 'grpc', 'roll_operator.scheduler', 'ruamel.yaml')"
        " if m in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, str(finished)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ},
    )
    assert shown.stdout.splitlines()[-1] == "[]"
