"""What the cluster takes from the distribution, installed by apt where that is possible."""

import os
import shutil
from collections.abc import Callable

from roll_cluster.processes import run
from roll_cluster.settings import ClusterError

# A file or program that shows the package is there.
PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "containernetworking-plugins": "/usr/lib/cni/ptp",
    "etcd-server": "etcd",
    "buildah": "buildah",
    "skopeo": "skopeo",
    "debootstrap": "debootstrap",
    "busybox-static": "/bin/busybox",
    "nftables": "nft",
    "conntrack": "conntrack",
    "iproute2": "ip",
    "openssl": "openssl",
    "util-linux": "setpriv",
    "mount": "umount",
}


def missing() -> list[str]:
    return [package for package, sign in PACKAGES.items() if not _there(sign)]


def _there(sign: str) -> bool:
    return os.path.exists(sign) if sign.startswith("/") else shutil.which(sign) is not None


def install(say: Callable[[str], None]) -> None:
    """Install what is missing; an error that names it where apt cannot."""
    wanted = missing()
    if not wanted:
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(f"not installed: {', '.join(wanted)} (names of Debian's packages)")
    say(f"installing {' '.join(wanted)}")
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    apt = ("apt-get", "-q", "-y", "--no-install-recommends")
    run("apt-get", "-q", "update", env=quiet)
    run(*apt, "install", *wanted, env=quiet)
    if still := missing():
        raise ClusterError(f"apt-get did not bring {', '.join(still)}")
