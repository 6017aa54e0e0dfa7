"""One RLJob on a real cluster as a test sees it: its status, its pods, its containers' processes."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from roll_cluster import ClusterError
from roll_cluster.containers import Containers
from roll_cluster.project import NAMESPACE as OPERATOR_NAMESPACE
from roll_cluster.settings import binaries_folder

from support.kubernetes import Kubernetes, Manifest, eventually

OPERATOR_IMAGE = "localhost/roll-operator:0.1.0"
WAITS = ["bash", "-c", "trap exit TERM; sleep infinity & wait"]
"""Stands in for a worker where nothing is to be trained: it starts at once and ends when asked."""
ROLES = ("trainer", "inference", "reward", "environment")


def training(name: str, **spec: Any) -> Manifest:
    """A job that really trains, as small as it can be."""
    return _job(
        name,
        {
            "steps": 10,
            "seed": 42,
            "algorithm": {"advantage": "grpo", "loss": "ppo", "learningRate": 5.0e-4},
            "rollout": {
                "groupsPerStep": 4,
                "groupSize": 4,
                "maxStaleness": 2,
                "sampling": {"maxNewTokens": 4},
                "retry": {"maxAttempts": 5, "noProgressSeconds": 60},
            },
            "roles": {role: {"replicas": 1} for role in ROLES},
            "checkpoint": {"everySteps": 5, "keepLast": 2},
            **spec,
        },
    )


def waiting(name: str, commands: dict[str, list[str]] | None = None, **spec: Any) -> Manifest:
    """A job of the real scheduler, and workers that do nothing (or what `commands` says)."""
    roles = {role: {"replicas": 1, **spec.get("roles", {}).get(role, {})} for role in ROLES}
    for role, settings in roles.items():
        command = (commands or {}).get(role, WAITS)
        container = {"name": role, "image": OPERATOR_IMAGE, "command": command}
        template = settings.get("template", {"spec": {}})
        settings["template"] = {"spec": {**template["spec"], "containers": [container]}}
    storage = {"size": "1Gi", "ledger": "EmptyDir"}
    return _job(name, {"steps": 10, "storage": storage, **spec, "roles": roles})


def _job(name: str, spec: Manifest) -> Manifest:
    return {
        "apiVersion": "roll.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name},
        "spec": {
            "model": {"path": "builtin:tiny-qwen2"},
            "data": {"train": {"path": "builtin:largest-of-three"}},
            "rewards": [{"name": "exact", "scorer": {"kind": "exactMatch"}}],
            **spec,
        },
    }


@dataclass(frozen=True)
class Job:
    cluster: Kubernetes
    namespace: str
    name: str

    @classmethod
    def apply(cls, cluster: Kubernetes, namespace: str, manifest: Manifest) -> "Job":
        cluster.apply(manifest, namespace=namespace)
        return cls(cluster, namespace, manifest["metadata"]["name"])

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster("-n", self.namespace, *arguments, stdin=stdin)

    def object(self) -> Manifest:
        found: Manifest = self.cluster.get("rljob", self.name, "-n", self.namespace)
        return found

    def status(self) -> Manifest:
        found: Manifest = self.object().get("status", {})
        return found

    def role(self, role: str) -> Manifest:
        found: Manifest = self.status().get("roles", {}).get(role, {})
        return found

    def restarts(self) -> dict[str, int]:
        """What was counted, without the roles that have nothing."""
        roles = self.status()["roles"].items()
        return {role: told["restarts"] for role, told in roles if told["restarts"]}

    def pods(self) -> dict[str, Manifest]:
        """By name."""
        listed = self.cluster.get("pods", "-n", self.namespace, "-l", f"roll.dev/job={self.name}")
        return {pod["metadata"]["name"]: pod for pod in listed["items"]}

    def until_pods_run(self, count: int) -> None:
        def look() -> bool:
            pods = self.pods().values()
            return len(pods) == count and all(p["status"]["phase"] == "Running" for p in pods)

        eventually(f"{count} pods of {self.name} run", look)

    def pod(self, role: str, index: int = 0) -> Manifest:
        name = f"{self.name}-{role}-{index}"
        return self.pods().get(name) or _none(name)

    def uid(self, role: str, index: int = 0) -> str:
        """Of the pod that fills the place now; empty: none does."""
        found = self.pods().get(f"{self.name}-{role}-{index}")
        return str(found["metadata"]["uid"]) if found else ""

    def patch(self, spec: Manifest) -> None:
        change = json.dumps({"spec": spec})
        self.kubectl("patch", "rljob", self.name, "--type=merge", "-p", change)

    def until(self, what: str, truth: Callable[[Manifest], object], seconds: float = 120) -> None:
        """Until it is true of the status. A job that fails meanwhile ends the wait."""

        def look() -> object:
            status = self.status()
            if truth(status):
                return True
            phase = status.get("phase")
            assert phase != "Failed", f"{self.name} failed: {json.dumps(status, indent=1)}"
            seen["status"] = {k: status.get(k) for k in ("phase", "ready", "step", "pendingReason")}
            return False

        seen: dict[str, Any] = {}
        try:
            eventually(f"{self.name}: {what}", look, seconds)
        except AssertionError as late:
            raise AssertionError(f"{late} {seen}") from late

    def until_phase(self, phase: str, seconds: float = 180) -> None:
        self.until(phase, lambda status: status.get("phase") == phase, seconds)

    def until_running_with(self, role: str, attempt: int, seconds: float = 120) -> None:
        """All serve, and the role with this attempt: a status of before the fault says another one."""
        self.until(
            f"Running with attempt {attempt} of {role}",
            lambda status: (
                status["phase"] == "Running" and status["roles"][role]["attempt"] == attempt
            ),
            seconds,
        )

    @contextmanager
    def watched(self, path: str) -> Iterator[list[str]]:
        """Every value that this part of the job had, of which a look now and then would miss some."""
        built, show = binaries_folder() / "kubectl", f'-o=jsonpath={{{path}}}{{"\\n"}}'
        kubectl = [built if built.exists() else "kubectl", "-n", self.namespace]
        seen: list[str] = []
        with subprocess.Popen(
            [*kubectl, "get", "rljob", self.name, "--watch", show],
            env=os.environ | {"KUBECONFIG": str(self.cluster.kubeconfig)},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield seen
            finally:
                process.terminate()
                seen.extend(process.communicate()[0].splitlines())

    def sigkill(self, role: str) -> None:
        """The process of the role's container, from outside, as the kernel does when memory is short."""
        os.kill(process_of(self.cluster, self.pod(role)), signal.SIGKILL)

    def verified_ledger(self) -> Manifest:
        """What `roll ledger verify` says in a pod that holds the job's ledger."""
        name = f"{self.name}-verify"
        digest = self.status()["specHash"]
        self.cluster.apply(_verifier(name, self.name, digest), namespace=self.namespace)
        ended = lambda: self._phase_of(name) in ("Succeeded", "Failed")  # noqa: E731
        eventually(f"{name} ends", ended)
        said = self.kubectl("logs", name)
        self.kubectl("delete", "pod", name, "--wait=false")
        found: Manifest = json.loads(said)
        return found

    def _phase_of(self, pod: str) -> str:
        return str(self.cluster.get("pod", pod, "-n", self.namespace)["status"]["phase"])


def _none(name: str) -> NoReturn:
    raise ClusterError(f"there is no pod {name}")


def process_of(cluster: Kubernetes, pod: Manifest) -> int:
    assert cluster.state is not None
    (container,) = pod["status"]["containerStatuses"]
    identity = container["containerID"].removeprefix("containerd://")
    for line in Containers(cluster.state).ctr("tasks", "list").splitlines():
        task, pid, *_ = line.split()
        if task == identity:
            return int(pid)
    raise AssertionError(f"no process of container {identity}")


def operator_pod(cluster: Kubernetes) -> Manifest:
    """The one that is ready."""
    listed = cluster.get(
        "pods", "-n", OPERATOR_NAMESPACE, "-l", "app.kubernetes.io/name=roll-operator"
    )
    (pod,) = [p for p in listed["items"] if "deletionTimestamp" not in p["metadata"]]
    found: Manifest = pod
    return found


def _verifier(name: str, job: str, digest: str) -> Manifest:
    mounts = [  # laid out like the folder of a `roll run`, which is known by its run.json
        {"name": "job", "mountPath": "/tmp/run/run.json", "subPath": "job.json"},
        {"name": "job", "mountPath": "/tmp/run/job.json", "subPath": "job.json"},
        {"name": "ledger", "mountPath": "/tmp/run/ledger", "subPath": "ledger"},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "runAsGroup": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "verify",
                    "image": OPERATOR_IMAGE,
                    "command": ["roll", "ledger", "verify", "/tmp/run", "-o", "json"],
                    "volumeMounts": mounts,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
            "volumes": [
                {"name": "job", "configMap": {"name": f"{job}-spec-{digest}"}},
                {"name": "ledger", "persistentVolumeClaim": {"claimName": f"{job}-ledger"}},
            ],
        },
    }
