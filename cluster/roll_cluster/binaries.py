"""The programs of Kubernetes, built from their Go modules once per version and kept in the cache.

A program is in the cache folder only when it is whole: it is built under another name and renamed.
The version goes in by linker flags; without them the server calls itself v0.0.0 and helm refuses it.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from roll_cluster.settings import COREDNS, KUBERNETES, KWOK, ClusterError, binaries_folder

MODULE = Path(__file__).parent.parent / "binaries" / "kubernetes"
GO_NEEDED = (1, 26)

# The API server first: with it alone many tests run already.
PROGRAMS = {
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
    "coredns": f"github.com/coredns/coredns@{COREDNS}",
    "kwok": f"sigs.k8s.io/kwok/cmd/kwok@{KWOK}",
}


def require(*programs: str) -> Path:
    """The folder that holds these programs."""
    folder = binaries_folder()
    if missing := [program for program in programs if not (folder / program).exists()]:
        raise ClusterError(
            f"not built yet: {', '.join(missing)}; "
            f"`.venv/bin/python -m roll_cluster build {' '.join(missing)}` does it"
        )
    return folder


def build(programs: list[str], say: Callable[[str], None]) -> None:
    """Build what is missing of the given programs (all, if none is given)."""
    if unknown := sorted(set(programs) - set(PROGRAMS)):
        raise ClusterError(
            f"no such program: {', '.join(unknown)}; there are {', '.join(PROGRAMS)}"
        )
    folder = binaries_folder()
    wanted = [name for name in PROGRAMS if not programs or name in programs]
    missing = [name for name in wanted if not (folder / name).exists()]
    if not missing:
        return
    go = _go()
    folder.mkdir(parents=True, exist_ok=True)
    say(
        f"building {len(missing)} programs of Kubernetes {KUBERNETES}, once; about 10 minutes in all"
    )
    for number, name in enumerate(missing, 1):
        say(f"  {number}/{len(missing)} {name} …")
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="build-") as scratch:
            _compile(go, name, Path(scratch))
            os.replace(Path(scratch) / name, folder / name)
        say(f"  {number}/{len(missing)} {name} built in {time.monotonic() - began:.0f} s")


def _compile(go: str, name: str, target: Path) -> None:
    package = PROGRAMS[name]
    flags = ["-trimpath", "-ldflags", _linker_flags()]
    if "@" in package:
        command = [go, "install", *flags, package]
    else:
        command = [go, "build", *flags, "-o", str(target / name), package]
    # The Go tool as it is: no newer one is fetched; nothing is linked against the machine's libraries.
    environment = os.environ | {"CGO_ENABLED": "0", "GOBIN": str(target), "GOTOOLCHAIN": "local"}
    done = subprocess.run(command, cwd=MODULE, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"{name} could not be built:\n{done.stderr.strip()[-2000:]}")


def _linker_flags() -> str:
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    values = {
        "gitVersion": KUBERNETES,
        "gitMajor": major,
        "gitMinor": minor,
        "gitCommit": "unknown",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    settings = [f"-X {p}.{name}={value}" for p in packages for name, value in values.items()]
    return " ".join(["-s", "-w", *settings])


def _go() -> str:
    needed = ".".join(map(str, GO_NEEDED))
    candidates = [shutil.which("go"), "/usr/local/go/bin/go", f"/usr/lib/go-{needed}/bin/go"]
    for go in filter(None, candidates):
        if not Path(go).exists():
            continue
        # Not `go version` in the module's folder: an older tool refuses the module before it answers.
        said = subprocess.run(
            [go, "env", "GOVERSION"], cwd="/", capture_output=True, text=True
        ).stdout
        found = re.match(r"go(\d+)\.(\d+)", said)
        if found and (int(found[1]), int(found[2])) >= GO_NEEDED:
            return go
    raise ClusterError(
        f"building Kubernetes needs Go {needed} or newer on the PATH or in /usr/local/go"
        f" (apt-get install golang-{needed} where the release has it)"
    )
