"""Which run a command is about: a folder on this machine, the scheduler of this pod, or a job on a cluster."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll_operator.controller.folder import RunError, RunFolder

PLUGIN = "kubectl-roll"


@dataclass(frozen=True, slots=True)
class JobOnCluster:
    name: str
    namespace: str | None


@dataclass(slots=True)
class PodFolder(RunFolder):
    """The run of the scheduler in this container: its ledger, its spec, its socket."""

    socket: Path
    spec: Path

    @property
    def job_file(self) -> Path:
        return self.spec

    def run(self) -> dict[str, Any]:
        return {"job": os.environ.get("ROLL_JOB", ""), "scheduler": f"unix:{self.socket}"}

    def in_use(self) -> bool:
        return self.socket.exists()


def find_target(name: Path, namespace: str | None) -> RunFolder | JobOnCluster:
    """RunError where it is neither."""
    here, plugin = os.environ, Path(sys.argv[0]).name == PLUGIN
    if here.get("ROLL_SOCKET") and str(name) == here.get("ROLL_JOB"):
        return PodFolder(
            Path(here["ROLL_STORAGE"]), Path(here["ROLL_SOCKET"]), Path(here["ROLL_SPEC"])
        )
    if namespace is None and not plugin:
        for folder in (name, Path("runs") / name):
            if (folder / "run.json").exists():
                return RunFolder(folder)
    if namespace is not None or plugin or (len(name.parts) == 1 and _kubeconfig_is_there()):
        return JobOnCluster(str(name), namespace)
    raise RunError(_no_run(name))


def find_folder(name: Path) -> RunFolder:
    """For what is done on this machine only."""
    target = find_target(name, None)
    if isinstance(target, JobOnCluster):
        raise RunError(_no_run(name))
    return target


def _no_run(name: Path) -> str:
    known = sorted(str(found.parent) for found in Path("runs").glob("*/run.json"))
    there = f"; there are {', '.join(known)}" if known else ""
    return f"{name} is not the folder of a run (it has no run.json){there}"


def _kubeconfig_is_there() -> bool:
    return bool(os.environ.get("KUBECONFIG")) or Path("~/.kube/config").expanduser().exists()
