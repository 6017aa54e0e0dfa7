"""`python -m roll_cluster up|install|prepare|down|status|images|build`: see ../README.md."""

import argparse
import os
import sys
import time
from pathlib import Path

from roll_cluster import binaries, packages, project
from roll_cluster.cluster import Cluster
from roll_cluster.settings import ClusterError, State, binaries_folder


def main() -> int:
    options = _parser().parse_args()
    cluster = Cluster(State.from_environment(), say)
    began = time.monotonic()
    try:
        COMMANDS[options.command](cluster, options)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if options.command in TIMED:
        say(f"{options.command} took {time.monotonic() - began:.0f} s")
    return 0


def up(cluster: Cluster, options: argparse.Namespace) -> None:
    if given := _given(cluster):
        say(f"the cluster of KUBECONFIG={given} is used; none is started here")
        return
    cluster.up()
    say(f"export KUBECONFIG={cluster.state.kubeconfig} PATH={binaries_folder()}:$PATH")


def install(cluster: Cluster, options: argparse.Namespace) -> None:
    if given := _given(cluster):
        project.install_chart(given, say)
    else:
        identities = project.load_images(cluster.containers, say)
        project.install_chart(cluster.state.kubeconfig, say, identities["operator"])


def _given(cluster: Cluster) -> Path | None:
    """The kubeconfig of somebody else's cluster."""
    given = os.environ.get("KUBECONFIG")
    return Path(given) if given and Path(given).absolute() != cluster.state.kubeconfig else None


def prepare(cluster: Cluster, options: argparse.Namespace) -> None:
    """What takes minutes the first time, so that no test has to wait for it. A machine that cannot have it runs the
    other tests; with CI=true that is a failure."""
    mark = cluster.state.unprepared
    mark.unlink(missing_ok=True)
    try:
        _prepare(cluster)
    except ClusterError as error:
        if os.environ.get("CI") == "true":
            raise
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(f"{error}\n")
        say(f"tests on a cluster will be left out: {error}")


def _prepare(cluster: Cluster) -> None:
    if os.geteuid() == 0:
        packages.install(say)
    elif "etcd-server" in packages.missing():
        say("nothing is prepared for tests on a cluster: etcd is not installed, which needs root")
        return
    binaries.build(binaries.TESTS, say)
    if os.geteuid() == 0 and not _given(cluster):
        with cluster.image_store() as containers:
            project.load_images(containers, say)


def down(cluster: Cluster, options: argparse.Namespace) -> None:
    cluster.down(purge=options.purge)
    say("the cluster is down")


def status(cluster: Cluster, options: argparse.Namespace) -> None:
    for process in reversed(cluster.processes):
        state = f"process {process.pid}" if process.pid else "not running"
        print(f"{process.name:24} {state:16} {process.log}")


def images(cluster: Cluster, options: argparse.Namespace) -> None:
    for archive in options.archives:
        say(cluster.containers.import_archive(archive))
    if not options.archives:
        print("\n".join(cluster.containers.images()))


def build(cluster: Cluster, options: argparse.Namespace) -> None:
    binaries.build(options.programs, say)
    print(binaries_folder())


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


COMMANDS = {
    "up": up,
    "install": install,
    "prepare": prepare,
    "down": down,
    "status": status,
    "images": images,
    "build": build,
}
TIMED = ("up", "install", "prepare")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m roll_cluster", description="A real Kubernetes on this machine."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start it, or what is missing of it")
    commands.add_parser("install", help="build and import the images, install the chart")
    commands.add_parser("prepare", help="build what the tests need: programs and images")
    ending = commands.add_parser("down", help="stop it and clean up")
    ending.add_argument("--purge", action="store_true", help="remove image store and logs as well")
    commands.add_parser("status", help="its processes")
    importing = commands.add_parser("images", help="import image archives, or list the images")
    importing.add_argument("archives", nargs="*", type=Path)
    building = commands.add_parser("build", help="build the programs that are missing")
    building.add_argument("programs", nargs="*")
    return parser


if __name__ == "__main__":
    sys.exit(main())
