"""A real S3 server on an address of this machine: versitygw, which keeps objects as files and checks signatures."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from roll_cluster import binaries
from roll_wire.ports import free_port

KEY, SECRET, BUCKET = "roll", "not-a-secret", "bucket"


class S3Server:
    """Serves `folder`, in which every folder is a bucket. It may be stopped and started again."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self.host = host
        self.program = binaries.require("versitygw") / "versitygw"
        self.folder = folder
        self.bucket = folder / BUCKET
        self.bucket.mkdir(parents=True)
        self.port = free_port(host)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def env(self) -> dict[str, str]:
        """What a pod is given for it."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self.host}:{self.port}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self) -> None:
        address = f"{self.host}:{self.port}"
        with self.folder.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.program, "--port", address, "posix", self.folder],
                env={"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection((self.host, self.port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None and time.monotonic() < deadline, "no S3 server"
                time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def names(self, below: str = "") -> list[str]:
        """The objects, as they lie on its disk; also while some are on their way."""
        root = self.bucket / below
        files = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)
        return sorted(str(p.relative_to(root)) for p in files if ".sgwtmp" not in p.parts)
