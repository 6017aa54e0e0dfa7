"""What this repository puts into its cluster: both images, and the operator by its chart."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from roll_cluster.containers import Containers
from roll_cluster.processes import run
from roll_cluster.settings import ClusterError
from roll_cluster.transfer import transfer

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "helm" / "roll-operator"
NAMESPACE = "roll-system"
LABEL = "roll.dev/build"


def load_images(containers: Containers, say: Callable[[str], None], *names: str) -> dict[str, str]:
    """Build the images (all, if none is named), import those that the cluster does not have; their ids.

    A build of an unchanged image takes a moment and gives the same id.
    """
    identities = {}
    for line in _build(*names).splitlines():
        reference, identity, size = line.split(maxsplit=2)
        name = reference.rpartition("/")[2].partition(":")[0].removeprefix("roll-")
        if not _is_there(containers, reference, identity):
            identity = _import(containers, say, name, reference, size)
        identities[name] = identity
    containers.forget_replaced_images()
    return identities


def _import(
    containers: Containers, say: Callable[[str], None], name: str, reference: str, size: str
) -> str:
    """The id of what was imported: the code may have changed since the build."""
    said: list[str] = []
    began = time.monotonic()
    moved = transfer(
        containers, reference, lambda layout: said.append(_build("--layout", str(layout), name))
    )
    identity = said[0].split()[1]
    containers.ctr("images", "label", reference, f"{LABEL}={identity}")
    took = time.monotonic() - began
    say(f"imported {reference}, {size}, of which {moved / 1e6:.0f} MB were new, {took:.0f} s")
    return identity


def _is_there(containers: Containers, reference: str, identity: str) -> bool:
    """The label tells: an archive changes the form of an image and with it the id."""
    matching = f'name=={reference},labels."{LABEL}"=="{identity}"'
    return bool(containers.ctr("images", "list", "-q", matching).strip())


def _build(*arguments: str) -> str:
    """What images/build prints; what it tells meanwhile goes to the user."""
    command = [str(REPOSITORY / "images" / "build"), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise ClusterError(f"images/build {' '.join(arguments)} failed")
    return done.stdout


def install_chart(kubeconfig: Path, say: Callable[[str], None], operator_image: str = "") -> None:
    """Install or upgrade the operator; HELM_FLAGS of the environment come last.

    `operator_image` is the id of an image whose tag says nothing about its content: a new one brings
    new pods.
    """
    helm = Path(sys.executable).parent / "helm"
    flags = shlex.split(os.environ.get("HELM_FLAGS", ""))
    if operator_image:
        flags = ["--set-string", f"podAnnotations.roll\\.dev/image={operator_image}", *flags]
    say(f"installing {CHART.relative_to(REPOSITORY)} in namespace {NAMESPACE}")
    run(
        *(helm if helm.exists() else "helm", "upgrade", "--install", CHART.name, CHART),
        *("--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout", "3m"),
        *flags,
        env=os.environ | {"KUBECONFIG": str(kubeconfig)},
    )
