"""Empties a volume whose claim is gone and offers it again: `python -m roll_cluster.volumes KUBECONFIG`.

Kubernetes' own recycler deletes the wrong pod when two volumes are released at once, as the two of a
job are. This one is a watch: no request is made while nothing changes.
"""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from roll_cluster import binaries
from roll_cluster.api_server import kubectl
from roll_cluster.manifests import volume_names
from roll_cluster.settings import ClusterError

LINE = "{.metadata.name} {.status.phase} {.spec.hostPath.path}{'\\n'}"
FORGET_CLAIM = '[{"op": "remove", "path": "/spec/claimRef"}]'


def serve(kubeconfig: Path) -> None:
    while True:
        try:
            _watch(kubeconfig)
        except ClusterError as error:
            print(error, flush=True)
        time.sleep(1)  # the API server is away or the watch ran out


def _watch(kubeconfig: Path) -> None:
    command = [
        *("setpriv", "--pdeathsig", "KILL", "--", str(binaries.require("kubectl") / "kubectl")),
        *("--kubeconfig", str(kubeconfig), "get", "pv", "--watch", "-o", f"jsonpath={LINE}"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        try:
            for line in watch.stdout or ():
                name, phase, *path = line.split()
                if phase == "Released" and name in volume_names():
                    _empty(Path(*path))
                    kubectl(kubeconfig, "patch", "pv", name, "--type=json", "-p", FORGET_CLAIM)
                    print(f"{name} is empty", flush=True)
        finally:
            watch.kill()


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
