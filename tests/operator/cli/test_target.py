"""Which run a command is about: a folder, the scheduler of this container, or a job on a cluster."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from roll_operator.cli.cluster.target import JobOnCluster, PodFolder, find_folder, find_target
from roll_operator.controller.folder import RunError, RunFolder
from support.scheduler_process import Scheduler


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kubeconfig, no scheduler's pod, and a run called `sums` in `runs`."""
    for name in ("KUBECONFIG", "ROLL_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["/usr/bin/roll"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/sums").mkdir(parents=True)
    (tmp_path / "runs/sums/run.json").write_text("{}")


def test_a_run_on_this_machine_goes_before_a_job_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBECONFIG", "some")
    assert find_target(Path("sums"), None) == RunFolder(Path("runs/sums"))
    assert find_target(Path("other"), None) == JobOnCluster("other", None)
    assert find_target(Path("sums"), "team") == JobOnCluster("sums", "team")


def test_as_a_plugin_of_kubectl_it_is_about_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kubectl-roll"])
    assert find_target(Path("sums"), None) == JobOnCluster("sums", None)


def test_a_kubeconfig_in_its_usual_place_is_one(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not the folder of a run"):
        find_target(Path("other"), None)
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").write_text("")
    assert find_target(Path("other"), None) == JobOnCluster("other", None)


@pytest.mark.parametrize("path", ["runs/other", "/nowhere"])
def test_a_path_is_no_job(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("KUBECONFIG", "some")
    with pytest.raises(RunError, match="not the folder of a run"):
        find_target(Path(path), None)


def test_what_is_done_here_needs_a_folder_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "some")
    assert find_folder(Path("sums")) == RunFolder(Path("runs/sums"))
    with pytest.raises(RunError, match="not the folder of a run"):
        find_folder(Path("other"))


def test_in_the_schedulers_container_its_job_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SOCKET", "/s"), ("JOB", "sums"), ("STORAGE", "/data"), ("SPEC", "/j")):
        monkeypatch.setenv(f"ROLL_{name}", value)
    assert find_target(Path("sums"), None) == PodFolder(Path("/data"), Path("/s"), Path("/j"))


def test_a_scheduler_is_asked_through_the_socket_in_its_container(tmp_path: Path) -> None:
    """And its ledger is read where it does not listen yet, or any more."""
    socket, home = tmp_path / "roll.sock", tmp_path / "home"
    home.mkdir()
    inside = {
        "ROLL_SOCKET": str(socket),
        "ROLL_JOB": "sums",
        "ROLL_STORAGE": str(home),
        "ROLL_SPEC": str(home / "job.json"),
    }
    scheduler = Scheduler(home, env={"ROLL_SOCKET": str(socket)})
    try:
        scheduler.start()
        until_there(socket)
        no_ledger = {"ROLL_STORAGE": str(tmp_path)}
        assert roll(inside | no_ledger, "samples", "sums") == (0, "0 in flight")
        assert roll(inside, "ledger", "verify", "sums")[0] == 0
        # Stdin is at its end: who asked is gone.
        assert roll(inside, "samples", "sums", "--follow", "--while-stdin") == (0, "0 in flight")
        scheduler.kill()
        assert roll(inside, "samples", "sums") == (0, "0 in flight")
        code, said = roll(inside | no_ledger, "samples", "sums")
        assert (code, "no ledger" in said) == (2, True)
    finally:
        scheduler.close()


def roll(env: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Exit code and last line."""
    done = subprocess.run(
        [sys.executable, "-m", "roll_operator.cli", *arguments],
        env=os.environ | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, (done.stdout + done.stderr).splitlines()[-1]


def until_there(path: Path, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)
