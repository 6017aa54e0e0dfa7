"""An image on its way from buildah's store into containerd's: only blobs that are missing there move.

It is written into an OCI layout in which containerd's own blobs lie already, as hard links. What is there
is not written again, and what is new makes up the archive that containerd reads.
"""

import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from roll_cluster.containers import Containers
from roll_cluster.settings import ClusterError

CONTENT = Path("containerd/io.containerd.content.v1.content/blobs/sha256")


def transfer(containers: Containers, reference: str, write: Callable[[Path], None]) -> int:
    """Import the image that `write` puts into a layout's folder; how many bytes of it were new."""
    root = containers.state.root
    with tempfile.TemporaryDirectory(dir=root, prefix="layout-") as scratch:
        layout = Path(scratch)
        blobs = layout / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        for digest in containers.ctr("content", "list", "-q").split():
            name = digest.removeprefix("sha256:")
            with suppress(FileNotFoundError):  # containerd has just collected it
                (blobs / name).hardlink_to(root / CONTENT / name)
        there = set(blobs.iterdir())
        write(layout)
        new = sorted(set(blobs.iterdir()) - there)
        with _held(containers, reference):
            _feed(containers, reference, layout, new)
        return sum(blob.stat().st_size for blob in new)


@contextmanager
def _held(containers: Containers, reference: str) -> Iterator[None]:
    """The image that is replaced keeps the layers that both share: containerd would collect them meanwhile."""
    other_name = f"{reference}-replaced"
    if reference in containers.images():
        containers.ctr("images", "tag", "--force", reference, other_name)
    yield
    # Waits until what is not needed any more is gone: the next image must not find it half there.
    containers.ctr("images", "remove", "--sync", other_name)


def _feed(containers: Containers, reference: str, layout: Path, blobs: list[Path]) -> None:
    index = json.loads((layout / "index.json").read_text())
    for image in index["manifests"]:  # by its whole name: containerd would complete it otherwise
        image["annotations"] = {"io.containerd.image.name": reference}
    named = json.dumps(index).encode()
    entry = tarfile.TarInfo("index.json")
    entry.size = len(named)
    command = containers.command("images", "import", "--snapshotter", "overlayfs", "-")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as importing:
        assert importing.stdin is not None and importing.stderr is not None
        try:
            with tarfile.open(fileobj=importing.stdin, mode="w|") as archive:
                archive.add(layout / "oci-layout", "oci-layout")
                archive.addfile(entry, io.BytesIO(named))
                for blob in blobs:
                    archive.add(blob, f"blobs/sha256/{blob.name}")
            importing.stdin.close()
        except BrokenPipeError:
            pass  # it says why
        said = importing.stderr.read().decode(errors="replace").strip()
    if importing.returncode:
        raise ClusterError(f"{reference} could not be imported: {said}")
