"""etcd and kube-apiserver: the half of a cluster that needs no root.

`ApiServer` is used twice: by the whole cluster, and alone by tests, in a folder and on ports of their own.
"""

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from roll_wire.ports import LOOPBACK, free_port

from roll_cluster import binaries
from roll_cluster.keys import Keys
from roll_cluster.processes import Process
from roll_cluster.settings import (
    API_SERVICE_IP,
    FEATURE_GATES,
    ISSUER,
    SERVICE_RANGE,
    ClusterError,
    binaries_folder,
    cache,
)

# Everything, without bodies: who asked for what, when, and what the answer was.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class ApiServer:
    """An API server with its own etcd; with `with`, both end when the block or this process ends."""

    def __init__(
        self,
        folder: Path,
        *,
        address: str = LOOPBACK,
        port: int = 0,
        flags: Sequence[str] = (),
        with_parent: bool = True,
    ) -> None:
        self.folder = folder
        self.address = address
        self.port = port or free_port(address)
        self.flags = tuple(flags)
        self.with_parent = with_parent
        self.url = f"https://{address}:{self.port}"
        self.keys = Keys(folder / "pki")
        self.sa_key = self.keys.sa_key
        self.kubeconfig = folder / "kubeconfig"
        self.audit_log = folder / "log" / "audit.log"
        self.etcd = self._process("etcd")
        self.server = self._process("kube-apiserver")

    def _process(self, name: str) -> Process:
        return Process(
            name, self.folder / "run" / f"{name}.pid", self.folder / "log" / f"{name}.log"
        )

    @property
    def pid(self) -> int | None:
        return self.server.pid

    def start(self) -> None:
        """Start what does not run and return when requests are answered."""
        programs = binaries.require("kube-apiserver", "kubectl")
        self.keys.make()
        self.keys.kubeconfig(self.kubeconfig, self.url, "roll-admin", "system:masters")
        self._start_etcd()
        self.server.start(
            [programs / "kube-apiserver", *self._arguments(), *self.flags],
            with_parent=self.with_parent,
        )
        self.server.wait(lambda: self.answers("/readyz"), 90)

    def stop(self) -> None:
        """The API server alone; etcd and the data stay. Asked nicely it waits for all watches to end."""
        self.server.stop(seconds=2)

    def close(self) -> None:
        self.stop()  # first: without etcd it would wait for a minute
        self.etcd.stop()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def answers(self, path: str) -> bool:
        """Whether GET of a path that needs no identity says 200."""
        trust = ssl.create_default_context(cafile=str(self.keys.ca))
        connection = http.client.HTTPSConnection(self.address, self.port, timeout=5, context=trust)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def kubectl(self, *arguments: str | Path, stdin: str | None = None) -> str:
        """What kubectl prints, as the administrator; an error with what it said."""
        return kubectl(self.kubeconfig, *arguments, stdin=stdin)

    def _start_etcd(self) -> None:
        program = shutil.which("etcd")
        if program is None:
            raise ClusterError("etcd is not installed: apt-get install etcd-server")
        if self.etcd.pid is not None:
            return
        client, peer = free_port(), free_port()
        (self.folder / "run").mkdir(parents=True, exist_ok=True)
        self._etcd_port.write_text(str(client))
        self.etcd.start(
            [
                program,
                *("--name", "roll", "--data-dir", self.folder / "etcd"),
                "--unsafe-no-fsync",  # the data need not survive a power cut
                f"--listen-client-urls=http://{LOOPBACK}:{client}",
                f"--advertise-client-urls=http://{LOOPBACK}:{client}",
                f"--listen-peer-urls=http://{LOOPBACK}:{peer}",
                f"--initial-advertise-peer-urls=http://{LOOPBACK}:{peer}",
                f"--initial-cluster=roll=http://{LOOPBACK}:{peer}",
                "--quota-backend-bytes=4294967296",
            ],
            with_parent=self.with_parent,
        )
        self.etcd.wait(lambda: listens(LOOPBACK, client), 30)

    @property
    def _etcd_port(self) -> Path:
        return self.folder / "run" / "etcd.port"

    def _arguments(self) -> list[str]:
        service = ("DNS:kubernetes.default.svc", "DNS:kubernetes.default")
        names = (f"IP:{self.address}", f"IP:{API_SERVICE_IP}", "DNS:localhost", *service)
        certificate, key = self.keys.certificate("kube-apiserver", "kube-apiserver", names=names)
        client, client_key = self.keys.certificate(
            "kubelet-client", "kubelet-client", "system:masters"
        )
        policy = self.folder / "audit-policy.json"
        policy.write_text(json.dumps(AUDIT_POLICY))
        return [
            f"--etcd-servers=http://{LOOPBACK}:{self._etcd_port.read_text()}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--secure-port={self.port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={self.keys.ca}",
            f"--kubelet-certificate-authority={self.keys.ca}",
            f"--kubelet-client-certificate={client}",
            f"--kubelet-client-key={client_key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-key-file={self.keys.sa_public}",
            f"--service-account-signing-key-file={self.keys.sa_key}",
            f"--service-account-issuer={ISSUER}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--feature-gates={FEATURE_GATES}",
            "--runtime-config=scheduling.k8s.io/v1alpha2=true",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log}",
            "--audit-log-maxsize=500",
            "--audit-log-maxbackup=1",
        ]


def kubectl(kubeconfig: Path, *arguments: str | Path, stdin: str | None = None) -> str:
    """What kubectl prints; an error with what it said."""
    built = binaries_folder() / "kubectl"
    program = built if built.exists() else shutil.which("kubectl")
    if program is None:
        raise ClusterError("kubectl is not there: `.venv/bin/python -m roll_cluster build kubectl`")
    # Not among the user's own files: servers of tests come and go on arbitrary ports.
    remembered = {"KUBECONFIG": str(kubeconfig), "KUBECACHEDIR": str(cache() / "kubectl")}
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(
        command, env=os.environ | remembered, input=stdin, capture_output=True, text=True
    )
    if done.returncode:
        raise ClusterError(f"kubectl {' '.join(command[1:])}: {done.stderr.strip()}")
    return done.stdout


def listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True
