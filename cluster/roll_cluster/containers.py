"""containerd with a store of its own, the images in it, and the removal of all containers.

Invariant: `remove_all` leaves no container, shim process, network namespace or mount of this cluster,
whether or not a kubelet was there to end its pods.
"""

import io
import json
import signal
import tarfile
import tempfile
from hashlib import sha256
from pathlib import Path

from roll_cluster.processes import Process, end, run
from roll_cluster.settings import BUSYBOX, POD_RANGE, ClusterError, State

CONFIG = """
version = 2
root = "{root}/containerd"
state = "{root}/run/containerd"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{sandbox}"
  # Without it runc fails where the machine itself may not lower the score.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{root}/cni"
"""

# Point to point instead of a bridge: every packet between pods is routed by the node, so Services work
# without bridge filtering, and an interface ends with its pod.
CNI = {
    "cniVersion": "0.4.0",
    "name": "roll",
    "plugins": [
        {
            "type": "ptp",
            "ipMasq": False,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": POD_RANGE}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}
CNI_RESULTS = Path("/var/lib/cni/results")
LOG_LINKS = Path("/var/log/containers")


class Containers:
    def __init__(self, state: State) -> None:
        self.state = state
        self.process = Process(
            "containerd", state.run / "containerd.pid", state.log / "containerd.log"
        )

    def start(self) -> None:
        root = self.state.root
        cni = json.loads(json.dumps(CNI))
        cni["plugins"][0]["ipam"]["dataDir"] = str(root / "run" / "addresses")
        (root / "cni").mkdir(parents=True, exist_ok=True)
        (root / "cni" / "10-roll.conflist").write_text(json.dumps(cni))
        config = root / "containerd.toml"
        socket = self.state.containerd_socket
        config.write_text(CONFIG.format(root=root, socket=socket, sandbox=BUSYBOX))
        self.process.start(["containerd", "--config", config])
        self.process.wait(self._answers, 30)

    def _answers(self) -> bool:
        try:
            self.ctr("version")
        except ClusterError:
            return False
        return True

    def ctr(self, *arguments: str | Path, check: bool = True) -> str:
        return run(*self.command(*arguments), check=check)

    def command(self, *arguments: str | Path) -> list[str]:
        """How `ctr` is called for this store."""
        if self.process.pid is None:
            raise ClusterError("the cluster is not up: `make cluster` starts it")
        socket = self.state.containerd_socket
        return ["ctr", f"--address={socket}", "--namespace=k8s.io", *map(str, arguments)]

    def images(self) -> list[str]:
        return [name for name in self.ctr("images", "list", "-q").split() if "sha256:" not in name]

    def import_archive(self, archive: Path) -> str:
        if not archive.is_file():
            raise ClusterError(f"no image archive at {archive}")
        return self.ctr("images", "import", "--snapshotter", "overlayfs", archive).strip()

    def forget_replaced_images(self) -> None:
        """What a newer import took the name from would keep its gigabytes for ever."""
        lines = [line.split() for line in self.ctr("images", "list").splitlines()[1:]]
        named = {digest for name, _, digest, *_ in lines if not name.startswith("sha256:")}
        for name, _, digest, *_ in lines:
            if digest not in named:
                self.ctr("images", "remove", "--sync", name)

    def provide_busybox(self) -> None:
        """The sandbox image of every pod, and a shell for tests."""
        if BUSYBOX in self.images():
            return
        with tempfile.TemporaryDirectory() as scratch:
            archive = Path(scratch) / "busybox.tar"
            write_busybox_image(archive)
            self.import_archive(archive)

    def remove_all(self) -> None:
        """Needs containerd; a task that does not end is killed with its shim."""
        for container in self.ctr("containers", "list", "-q").split():
            described = json.loads(self.ctr("containers", "info", container))
            namespaces = described["Spec"]["linux"]["namespaces"]
            self.ctr("tasks", "delete", "--force", container, check=False)
            self.ctr("containers", "delete", container, check=False)
            for entry in namespaces:
                path = Path(entry.get("path", ""))
                if entry["type"] == "network" and path.name.startswith("cni-"):
                    run("ip", "netns", "delete", path.name, check=False)

    def stop(self) -> None:
        self.process.stop()
        for pid in self.shims():
            end(pid, signal.SIGKILL, 10)
        # Notes that are kept outside of the state folder, in places nobody can choose.
        for note in CNI_RESULTS.glob(f"{CNI['name']}-*"):
            container = note.name.split("-")[1]
            (CNI_RESULTS / f"cni-loopback-{container}-lo").unlink(missing_ok=True)
            note.unlink()
        for link in LOG_LINKS.glob("*.log"):
            if link.is_symlink() and link.readlink().is_relative_to(self.state.root):
                link.unlink()

    def shims(self) -> list[int]:
        """Processes that serve this containerd and no other: their command names its socket."""
        needle = str(self.state.containerd_socket).encode()
        found = []
        for command in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = command.read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if words[0].endswith(b"containerd-shim-runc-v2") and needle in words:
                found.append(int(command.parent.name))
        return found


def write_busybox_image(archive: Path) -> None:
    """An image of Debian's static busybox, as `docker save` would write it."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        for folder in ("bin", "etc", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            files.addfile(entry)
        files.add("/bin/busybox", "bin/busybox")
        for applet in run("/bin/busybox", "--list").split():
            if applet != "busybox":
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                files.addfile(link)
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[run("uname", "-m").strip()],
        "os": "linux",
        # As a sandbox it only has to be there.
        "config": {"Cmd": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin"]},
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{sha256(layer.getvalue()).hexdigest()}"],
        },
    }
    manifest = [{"Config": "config.json", "RepoTags": [BUSYBOX], "Layers": ["layer.tar"]}]
    contents = {
        "layer.tar": layer.getvalue(),
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    with tarfile.open(archive, "w") as files:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            files.addfile(entry, io.BytesIO(content))
