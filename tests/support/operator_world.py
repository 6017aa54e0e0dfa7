"""A real API server for the operator's tests, with what a cluster would add played by the test.

There is no kubelet and no scheduler: pods get their states from `Kubelet`, through the API. The operator is a
process of its own with exactly the rights of `rbac.yaml`.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import urllib3
from roll_cluster import ApiServer
from roll_wire.ports import free_port
from ruamel.yaml import YAML

from support.job_objects import BASE
from support.objects import changed

Manifest = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
RBAC = ROOT / "operator/roll_operator/controller/cluster/rbac.yaml"
SYSTEM = "roll-system"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:roll-operator"
KINDS = {
    "pods": "/api/v1",
    "services": "/api/v1",
    "configmaps": "/api/v1",
    "secrets": "/api/v1",
    "serviceaccounts": "/api/v1",
    "persistentvolumeclaims": "/api/v1",
    "events": "/api/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "podgroups": "/apis/scheduling.k8s.io/v1alpha2",
    "rljobs": "/apis/roll.dev/v1alpha1",
}
CERTIFICATES = "certificates.cert-manager.io"


JOB: Manifest = changed(
    BASE,
    {
        "metadata": {"name": "sums"},
        "spec.steps": 40,
        "spec.storage": {"size": "1Gi"},
        "spec.failurePolicy": {"maxRestarts": 3, "backoffSeconds": 0.1, "backoffMaxSeconds": 0.2},
    },
)
PLACES = [
    "sums-environment-0",
    "sums-inference-0",
    "sums-inference-1",
    "sums-reward-0",
    "sums-scheduler-0",
    "sums-trainer-0",
]


def rights() -> dict[str, list[Manifest]]:
    """The parts of rbac.yaml."""
    found: dict[str, list[Manifest]] = YAML(typ="safe").load(RBAC.read_text())
    return found


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class World:
    """The API server as its administrator sees it."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        certificate, key = server.keys.certificate("tests", "tests", "system:masters")
        self._pool = urllib3.PoolManager(
            cert_file=str(certificate),
            key_file=str(key),
            ca_certs=str(server.keys.ca),
            retries=False,
            timeout=30,
            maxsize=8,
            block=True,
        )

    def call(self, method: str, path: str, body: Any = None, kind: str = "json") -> Any:
        types = {
            "json": "application/json",
            "merge": "application/merge-patch+json",
        }
        answer = self._pool.request(
            method,
            self.server.url + path,
            body=None if body is None else json.dumps(body),
            headers={"Content-Type": types[kind]},
        )
        if answer.status >= 400:
            raise Refused(answer.status, answer.data.decode(errors="replace"))
        return json.loads(answer.data)

    def path(self, kind: str, namespace: str, name: str = "") -> str:
        home = "/apis/cert-manager.io/v1" if kind == "certificates" else KINDS[kind]
        return f"{home}/namespaces/{namespace}/{kind}" + (f"/{name}" if name else "")

    def get(self, kind: str, namespace: str, name: str) -> Manifest:
        found: Manifest = self.call("GET", self.path(kind, namespace, name))
        return found

    def all(self, kind: str, namespace: str) -> list[Manifest]:
        items: list[Manifest] = self.call("GET", self.path(kind, namespace))["items"]
        return items

    def create(self, kind: str, namespace: str, body: Manifest) -> Manifest:
        made: Manifest = self.call("POST", self.path(kind, namespace), body)
        return made

    def merge(self, kind: str, namespace: str, name: str, body: Manifest) -> Manifest:
        made: Manifest = self.call("PATCH", self.path(kind, namespace, name), body, "merge")
        return made

    def delete(self, kind: str, namespace: str, name: str, **options: Any) -> None:
        self.call("DELETE", self.path(kind, namespace, name), options or None)

    def namespace(self, name: str) -> str:
        """With the account that a controller of the cluster would make."""
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self.create("serviceaccounts", name, {"metadata": {"name": "default"}})
        return name

    def pod_status(self, namespace: str, name: str, status: Manifest) -> None:
        path = f"{self.path('pods', namespace, name)}/status"
        self.call("PATCH", path, {"status": status}, "merge")

    def run_pod(self, namespace: str, name: str, role: str, ip: str = "127.0.0.1") -> None:
        began = _now()
        state = {"running": {"startedAt": began}}
        self.pod_status(
            namespace,
            name,
            {
                "phase": "Running",
                "podIP": ip,
                "podIPs": [{"ip": ip}],
                "startTime": began,
                "conditions": [
                    {"type": "PodScheduled", "status": "True"},
                    {"type": "Ready", "status": "True"},
                ],
                "containerStatuses": [_container(role, state, True)],
            },
        )

    def end_pod(
        self, namespace: str, name: str, role: str, code: int, message: str = "", **more: Any
    ) -> None:
        state = {
            "terminated": {
                "exitCode": code,
                "reason": "Error" if code else "Completed",
                "message": message,
                "startedAt": _now(),
                "finishedAt": _now(),
            }
        }
        status = {
            "phase": "Failed" if code else "Succeeded",
            "conditions": [{"type": "PodScheduled", "status": "True"}],
            "containerStatuses": [_container(role, state, False)],
        }
        self.pod_status(namespace, name, status | more)

    def job(self, namespace: str, name: str) -> Manifest:
        return self.get("rljobs", namespace, name)

    def events(self, namespace: str) -> list[Manifest]:
        return self.all("events", namespace)

    def grant(self) -> None:
        """The operator's account, with the rights of rbac.yaml and no others."""
        self.namespace(SYSTEM)
        self.account("roll-operator")
        rules = rights()
        self.allow("roll-operator", rules["cluster"] + rules["jobs"])

    def account(self, name: str) -> None:
        """One for an operator, which may lead and show itself to schedulers."""
        self.create("serviceaccounts", SYSTEM, {"metadata": {"name": name}})
        rules = rights()
        account = [rule | {"resourceNames": [name]} for rule in rules["account"]]
        self.allow(name, rules["own"] + account, SYSTEM)

    def allow(self, account: str, rules: list[Manifest], namespace: str = "") -> None:
        """In one namespace, or in all."""
        kind = "Role" if namespace else "ClusterRole"
        path = "/apis/rbac.authorization.k8s.io/v1"
        path += f"/namespaces/{namespace}" if namespace else ""
        group = {"apiGroup": "rbac.authorization.k8s.io"}
        subject = {"kind": "ServiceAccount", "name": account, "namespace": SYSTEM}
        role = {"metadata": {"generateName": f"{account}-"}, "rules": rules}
        name = self.call("POST", f"{path}/{kind.lower()}s", role)["metadata"]["name"]
        binding = {
            "metadata": {"name": name},
            "subjects": [subject],
            "roleRef": group | {"kind": kind, "name": name},
        }
        self.call("POST", f"{path}/{kind.lower()}bindings", binding)

    @contextmanager
    def certificates(self) -> Iterator[None]:
        """cert-manager's objects, without cert-manager; and the operator's rights on them."""
        anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": "v1", "served": True, "storage": True}
        crd = {
            "metadata": {"name": CERTIFICATES},
            "spec": {
                "group": "cert-manager.io",
                "names": {"kind": "Certificate", "plural": "certificates"},
                "scope": "Namespaced",
                "versions": [version | {"schema": {"openAPIV3Schema": anything}}],
            },
        }
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        self.allow("roll-operator", rights()["certManager"])
        self.call("POST", path, crd)
        eventually("they are served", lambda: self.all("certificates", "default") == [])
        yield
        self.call("DELETE", f"{path}/{CERTIFICATES}")
        eventually("they are served no more", lambda: not self._serves("certificates"))

    def _serves(self, kind: str) -> bool:
        try:
            self.all(kind, "default")
        except Refused as refused:
            return refused.status != 404
        return True

    def token(self, account: str = "roll-operator") -> str:
        path = f"{self.path('serviceaccounts', SYSTEM, account)}/token"
        asked = {"spec": {"expirationSeconds": 86400}}
        return str(self.call("POST", path, asked)["status"]["token"])


class OperatorProcess:
    """`python -m roll_operator`, under an identity and with ports of its own."""

    def __init__(self, folder: Path, server: str, token: str, **env: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "operator.log"
        self.health, self.metrics = free_port(), free_port()
        config = folder / "kubeconfig"
        config.write_text(json.dumps(_kubeconfig(server, token)))
        self._env = {
            **os.environ,
            "KUBECONFIG": str(config),
            "ROLL_OPERATOR_NAMESPACE": SYSTEM,
            "ROLL_OPERATOR_IMAGE": "roll-operator:test",
            "ROLL_WORKER_IMAGE": "roll-worker:test",
            "ROLL_IDENTITY": "test",
            "ROLL_HEALTH_PORT": str(self.health),
            "ROLL_METRICS_PORT": str(self.metrics),
            "ROLL_LOG_LEVEL": "INFO",
            **env,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "OperatorProcess":
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "roll_operator"],
                env=self._env,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)

    def stop(self, seconds: float = 30) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(seconds)

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def http(self, path: str) -> tuple[int, str]:
        port = self.metrics if path == "/metrics" else self.health
        answer = urllib3.request("GET", f"http://127.0.0.1:{port}{path}", retries=False, timeout=10)
        return answer.status, answer.data.decode()


class Kubelet:
    """Makes the pods of some namespaces run, as soon as they are there."""

    def __init__(self, world: World, namespace: str, ip: str = "127.0.0.1") -> None:
        self._world, self._namespace, self._ip = world, namespace, ip
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Kubelet":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._over.wait(0.1):
            try:
                pods = self._world.all("pods", self._namespace)
                for pod in pods:
                    self.look_at(pod)
            except (Refused, urllib3.exceptions.HTTPError):
                continue  # gone meanwhile, or the API server is away

    def look_at(self, pod: Manifest) -> None:
        if pod["status"].get("phase") == "Pending":
            role, name = pod["metadata"]["labels"]["roll.dev/role"], pod["metadata"]["name"]
            self._world.run_pod(self._namespace, name, role, self._ip)


Start = Callable[..., OperatorProcess]


FIRST = dict.fromkeys(PLACES, "0")
AFTER = FIRST | {"sums-inference-0": "1"}
"""`attempts` of a job that began, and after the first failure of an inference pod."""


def attempts(world: World, namespace: str) -> dict[str, str]:
    """Name and attempt of every pod that runs."""
    return {
        pod["metadata"]["name"]: pod["metadata"]["labels"]["roll.dev/attempt"]
        for pod in world.all("pods", namespace)
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


def names(manifests: list[Manifest]) -> list[str]:
    return sorted(manifest["metadata"]["name"] for manifest in manifests)


def eventually(
    what: str, holds: Callable[[], Any], seconds: float = 60, every: float = 0.05
) -> Any:
    """The first true value; what is refused meanwhile counts as not yet."""
    deadline = time.monotonic() + seconds
    seen: object = None
    while time.monotonic() < deadline:
        try:
            seen = holds()
            if seen:
                return seen
        except (Refused, urllib3.exceptions.HTTPError, KeyError) as error:
            seen = error
        time.sleep(every)
    raise AssertionError(f"not within {seconds:g} s: {what} (last: {seen!r})")


@contextmanager
def ended(*operators: OperatorProcess) -> Iterator[None]:
    """Whatever happens, no operator is left behind."""
    try:
        yield
    finally:
        for operator in operators:
            operator.kill()


def _container(role: str, state: Manifest, ready: bool) -> Manifest:
    return {
        "name": role,
        "image": "test",
        "imageID": "test",
        "ready": ready,
        "restartCount": 0,
        "state": state,
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _kubeconfig(server: str, token: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "roll", "cluster": {"server": server}}],
        "users": [{"name": "operator", "user": {"token": token}}],
        "contexts": [{"name": "roll", "context": {"cluster": "roll", "user": "operator"}}],
        "current-context": "roll",
    }
