"""A cluster as the tests see it: kubectl, namespaces of their own, and waiting without sleeping."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll_cluster import ClusterError, State, kubectl

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Kubernetes:
    kubeconfig: Path
    state: State | None
    """The folder of the cluster where it runs on this machine; None for somebody else's."""
    started_here: bool = False

    def __call__(self, *arguments: str | Path, stdin: str | None = None) -> str:
        return kubectl(self.kubeconfig, *arguments, stdin=stdin)

    def get(self, *arguments: str) -> Any:
        return json.loads(self("get", *arguments, "-o", "json"))

    def apply(self, *objects: Manifest, namespace: str = "default") -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self("apply", "-n", namespace, "-f", "-", stdin=json.dumps(listed))

    def wait(self, condition: str, *what: str, namespace: str, seconds: int = 60) -> None:
        """`kubectl wait` for one that is there already: condition=Ready, delete, jsonpath=…"""
        self("wait", f"--for={condition}", *what, "-n", namespace, f"--timeout={seconds}s")


def eventually(what: str, truth: Callable[[], object], seconds: float = 60) -> None:
    """Until it is true. What kubectl refuses meanwhile counts as not yet true."""
    deadline = time.monotonic() + seconds
    seen: object = None
    pause = 0.1
    while time.monotonic() < deadline:
        try:
            seen = truth()
        except ClusterError as error:
            seen = error
        else:
            if seen:
                return
        time.sleep(pause)
        pause = min(1.0, 1.3 * pause)  # kubectl itself costs more than most of what it waits for
    raise AssertionError(f"not within {seconds:g} s: {what} (last: {seen})")


def roll_cluster(*arguments: str, **environment: str) -> str:
    """What `python -m roll_cluster` says; ClusterError with its words if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "roll_cluster", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ClusterError(done.stderr)
    return done.stdout + done.stderr


def roll(cluster: Kubernetes, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command line, as a user of this cluster calls it."""
    return subprocess.run(
        [sys.executable, "-m", "roll_operator.cli", *map(str, arguments)],
        env=os.environ | {"KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=120,
    )
