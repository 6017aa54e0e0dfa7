"""cert-manager beside the API server: its CRDs, and its controllers as a process of this machine.

Only what a CA issuer needs (`binaries/cert-manager`). There is no webhook: what it would refuse is taken.
"""

import json
from pathlib import Path

from roll_cluster import binaries
from roll_cluster.api_server import kubectl
from roll_cluster.processes import Process

NAMESPACE = "cert-manager"
"""Where the secrets of ClusterIssuers are."""
MODULE = "github.com/cert-manager/cert-manager"
KINDS = ("certificates", "certificaterequests", "issuers", "clusterissuers")


def start(folder: Path, kubeconfig: Path) -> Process:
    """In the background until it is stopped or this process ends. A Secret goes with its Certificate."""
    program = binaries.require("cert-manager") / "cert-manager"
    install(kubeconfig)
    process = Process("cert-manager", folder / "cert-manager.pid", folder / "cert-manager.log")
    command: list[str | Path] = [
        program,
        f"--kubeconfig={kubeconfig}",
        f"--cluster-resource-namespace={NAMESPACE}",
        "--enable-certificate-owner-ref",
    ]
    process.start(command, with_parent=True)
    return process


def install(kubeconfig: Path) -> None:
    """Its CRDs, and the namespace."""
    crds = binaries.source_of("cert-manager", MODULE) / "deploy" / "crds"
    files = [part for kind in KINDS for part in ("-f", crds / f"cert-manager.io_{kind}.yaml")]
    kubectl(kubeconfig, "apply", "--server-side", *files)
    names = [f"crd/{kind}.cert-manager.io" for kind in KINDS]
    kubectl(kubeconfig, "wait", "--for=condition=Established", *names, "--timeout=60s")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    kubectl(kubeconfig, "apply", "-f", "-", stdin=json.dumps(namespace))
