"""What this repository puts into its cluster: both images, and the operator by its chart."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from roll_cluster.containers import Containers
from roll_cluster.processes import run
from roll_cluster.settings import ClusterError

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "helm" / "roll-operator"
NAMESPACE = "roll-system"


def load_images(containers: Containers, say: Callable[[str], None], *names: str) -> None:
    """Build the images (all, if none is named) and import those that the cluster does not have.

    A build of an unchanged image takes a moment and gives the same id; an import of gigabytes does not.
    """
    imported = set(containers.ctr("images", "list", "-q").split())
    for line in _build(*names).splitlines():
        reference, identity, size = line.split(maxsplit=2)
        if f"sha256:{identity.removeprefix('sha256:')}" in imported:
            continue
        say(f"importing {reference}, {size}")
        name = reference.rpartition("/")[2].partition(":")[0].removeprefix("roll-")
        _build("--load", shlex.join([sys.executable, "-m", "roll_cluster", "images"]), name)


def _build(*arguments: str) -> str:
    """What images/build prints; what it tells meanwhile goes to the user."""
    command = [str(REPOSITORY / "images" / "build"), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise ClusterError(f"images/build {' '.join(arguments)} failed")
    return done.stdout


def install_chart(kubeconfig: Path, say: Callable[[str], None], flags: Sequence[str] = ()) -> None:
    """Install or upgrade the operator; HELM_FLAGS of the environment come last."""
    helm = Path(sys.executable).parent / "helm"
    given = shlex.split(os.environ.get("HELM_FLAGS", ""))
    say(f"installing {CHART.relative_to(REPOSITORY)} in namespace {NAMESPACE}")
    run(
        *(helm if helm.exists() else "helm", "upgrade", "--install", CHART.name, CHART),
        *("--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout", "3m"),
        *(*flags, *given),
        env=os.environ | {"KUBECONFIG": str(kubeconfig)},
    )
