"""Certificates of cert-manager's own controllers: issued, trusted, renewed under a job that trains.

Not among the tests of `make test`: `make test-cert-manager` builds cert-manager, which takes minutes, and runs this.
"""

import base64
import json
import socket
import ssl
from collections.abc import Callable, Iterator

import pytest
from cryptography import x509
from roll_cluster import cert_manager
from roll_cluster.project import NAMESPACE as OPERATOR_NAMESPACE
from support.kubernetes import Kubernetes, Manifest, eventually, roll_cluster
from support.minted import Pair
from support.rljobs import Job, training, waiting

AUTHORITY = "roll-authority"
"""Name of the issuer, of its Secret, and of the ConfigMap with its certificate."""
PORTS = {"scheduler": 7070, "trainer": 7071}
LONG = 1_000_000


@pytest.fixture(scope="module")
def authority(cluster: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """cert-manager runs and can sign with its key."""
    if cluster.state is None:
        pytest.skip("the controllers run on this machine, for a cluster that does")
    made = Pair.of_an_authority("authority of a test")
    process = cert_manager.start(tmp_path_factory.mktemp("cert-manager"), cluster.kubeconfig)
    try:
        cluster.apply(secret(made), namespace=cert_manager.NAMESPACE)
        cluster.apply(issuer("ClusterIssuer"))
        cluster("wait", "--for=condition=Ready", f"clusterissuer/{AUTHORITY}", "--timeout=60s")
        yield made
    finally:
        roll_cluster("install")  # other tests find the operator as it is without
        process.stop()


@pytest.fixture(scope="module")
def install(cluster: Kubernetes, authority: Pair) -> Callable[[str], Kubernetes]:
    """The chart, told an issuer."""

    def told(name: str) -> Kubernetes:
        known_by = {"ca.crt": authority.certificate.decode()}
        cluster.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR_NAMESPACE}},
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": AUTHORITY, "namespace": OPERATOR_NAMESPACE},
                "data": known_by,
            },
            namespace=OPERATOR_NAMESPACE,
        )
        values = f"operator.certManagerIssuer={name},operator.certManagerCA={AUTHORITY}"
        roll_cluster("install", HELM_FLAGS=f"--set={values}")
        return cluster

    return told


def test_a_job_trains_with_a_certificate_that_is_renewed_meanwhile(
    install: Callable[[str], Kubernetes], authority: Pair, namespace: str
) -> None:
    operator = install(f"ClusterIssuer/{AUTHORITY}")
    job = Job.apply(operator, namespace, training("sums", steps=LONG))
    job.until("trains", lambda status: status.get("step", 0) > 0)
    first = in_secret(job)
    assert first.issuer == x509.load_pem_x509_certificate(authority.certificate).subject
    assert {role: served(job, role, authority) for role in PORTS} == dict.fromkeys(PORTS, first)
    assert tls_secrets(job) == ["sums-tls"]
    before = {name: pod["metadata"]["uid"] for name, pod in job.pods().items()}

    renew(job)
    eventually("it is renewed", lambda: in_secret(job) != first)
    second = in_secret(job)
    assert second.public_key() != first.public_key()
    for role in PORTS:
        eventually(f"{role} serves it", lambda r=role: served(job, r, authority) == second, 120)
    job.kubectl("delete", "pod", "sums-inference-0", "--wait=false")
    job.until_running_with("inference", 1)
    step = job.status()["step"]
    job.until("goes on", lambda status: status["step"] > step + 2)
    now = {name: pod["metadata"]["uid"] for name, pod in job.pods().items()}
    assert {name for name in now if now[name] != before[name]} == {"sums-inference-0"}
    assert job.restarts() == {}

    job.kubectl("delete", "rljob", "sums", "--timeout=60s")
    eventually("its key is gone", lambda: tls_secrets(job) == [])


def test_an_issuer_of_the_jobs_namespace_will_do(
    install: Callable[[str], Kubernetes], authority: Pair, namespace: str
) -> None:
    operator = install(AUTHORITY)
    job = Job.apply(operator, namespace, waiting("sums"))
    eventually("its certificate is asked for", lambda: requests(job))
    assert job.pod("scheduler")["status"]["phase"] == "Pending"  # for want of the Secret
    told = "Certificate: sums-scheduler-0: Issuer roll-authority has not issued certificate sums: "
    job.until("says so", lambda status: status.get("pendingReason", "").startswith(told))

    operator.apply(secret(authority), issuer("Issuer"), namespace=namespace)
    job.until("the operator knows it", lambda status: status["roles"]["scheduler"]["ready"] == 1)
    assert served(job, "scheduler", authority) == in_secret(job)
    assert job.status().get("pendingReason", "") == ""


def secret(pair: Pair) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": AUTHORITY},
        "stringData": {"tls.crt": pair.certificate.decode(), "tls.key": pair.key.decode()},
    }


def issuer(kind: str) -> Manifest:
    return {
        "apiVersion": "cert-manager.io/v1",
        "kind": kind,
        "metadata": {"name": AUTHORITY},
        "spec": {"ca": {"secretName": AUTHORITY}},
    }


def in_secret(job: Job) -> x509.Certificate:
    data = job.cluster.get("secret", "sums-tls", "-n", job.namespace)["data"]
    return x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"]))


def tls_secrets(job: Job) -> list[str]:
    listed = job.cluster.get("secrets", "-n", job.namespace)["items"]
    names = [item["metadata"]["name"] for item in listed]
    return [name for name in names if name.startswith("sums-tls")]


def requests(job: Job) -> list[Manifest]:
    found: list[Manifest] = job.cluster.get("certificaterequests", "-n", job.namespace)["items"]
    return found


def served(job: Job, role: str, authority: Pair) -> x509.Certificate:
    """What the pod shows to a client that trusts this authority alone and asks for it by its name."""
    pod = job.pod(role)
    name = f"{pod['metadata']['name']}.{job.name}.{job.namespace}.svc"
    trusting = ssl.create_default_context(cadata=authority.certificate.decode())
    trusting.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((pod["status"]["podIP"], PORTS[role]), timeout=10) as plain,
        trusting.wrap_socket(plain, server_hostname=name) as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown)


def renew(job: Job) -> None:
    """As `cmctl renew` asks for it, and the passing of time."""
    asked = {"type": "Issuing", "status": "True", "reason": "ManuallyTriggered"}
    found = job.cluster.get("certificate", job.name, "-n", job.namespace)
    conditions = json.dumps({"status": {"conditions": [*found["status"]["conditions"], asked]}})
    job.kubectl(
        *("patch", "certificate", job.name, "--subresource=status", "--type=merge"),
        *("-p", conditions),
    )
