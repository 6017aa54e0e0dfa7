"""What the benchmark runs on: etcd, API server, kube-scheduler and KWOK nodes, all of this machine and its own.

Every process ends with this one, however it ends. kube-controller-manager does not run: nothing here needs it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import uvloop
from roll_cluster import ApiServer, ClusterError, kwok
from roll_cluster.binaries import require
from roll_cluster.components import Components
from roll_cluster.processes import Process
from roll_cluster.settings import State
from roll_wire.ports import free_port
from ruamel.yaml import YAML
from watching import Access

Manifest = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = "roll-system"
OPERATOR = f"system:serviceaccount:{SYSTEM}:roll-operator"
BENCHMARK = "benchmark"
SCHEDULERS = "127.77.0.7"
"""Address of all pods, where `schedulers.py` answers for those that are schedulers."""
PODS_PER_NODE = 250
CLOCK = os.sysconf("SC_CLK_TCK")
FLAGS = (
    "--disable-admission-plugins=TaintNodesByCondition",  # nobody would take the taint away again
    "--max-requests-inflight=1000",
    "--max-mutating-requests-inflight=500",
    # KWOK's watches begin at version 0, which with Debian's etcd is an error under this gate: it would live on
    # lists, with pauses that double.
    "--feature-gates=WatchList=false",
)
STIRRED, AT_ONCE = 3200, 16
MERGE = {"Content-Type": "application/merge-patch+json"}
AT_REST = 0.2
"""Cores that all processes together use, at most, on a cluster where nothing happens."""
REST_SECONDS = 40.0


class World:
    def __init__(self, pods: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="roll-operator-benchmark-"))
        self.server = ApiServer(self.folder, flags=FLAGS)
        self._nodes = pods // PODS_PER_NODE + 2
        self.processes: dict[str, Process] = {
            "etcd": self.server.etcd,
            "kube-apiserver": self.server.server,
        }
        self.spent: list[tuple[float, dict[str, float]]] = []
        """When, and `cpu` then."""

    def __enter__(self) -> Self:
        try:
            self.server.start()
            uvloop.run(self._stir())
            programs = require("kube-scheduler", "kwok")
            parts = Components(State(self.folder), programs, self.server.keys, self.server.url)
            self.start("kube-scheduler", *parts.scheduler(), "--secure-port=0")
            # Without leases: on a busy machine KWOK loses them to itself, and then its nodes stand still.
            played = kwok.start(self.folder, self.server.kubeconfig, SCHEDULERS, lease_seconds=0)
            self.processes["kwok"] = played
            nodes = [kwok.node(f"air-{i}", pods=PODS_PER_NODE) for i in range(self._nodes)]
            self.create(*nodes)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        for process in reversed(list(self.processes.values())[2:]):
            process.stop()
        self.server.close()
        shutil.rmtree(self.folder)

    async def _stir(self) -> None:
        """News of pods before anybody watches. On a new API server a watch holds 10 events and is ended when there
        are more at once, again and again; room for more comes with use, and is for the watches that begin then."""
        url, ca, certificate, key = self.access()
        trusted = ssl.create_default_context(cafile=ca)
        trusted.load_cert_chain(certificate, key)
        pods = f"{url}/api/v1/namespaces/default/pods"
        account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
        spec = {"containers": [{"name": "none", "image": "none"}], "schedulerName": "nobody"}

        async def stir(session: aiohttp.ClientSession, name: str) -> None:
            body = {"metadata": {"name": name}, "spec": spec}
            async with session.post(pods, json=body, raise_for_status=True):
                pass
            for number in range(STIRRED // AT_ONCE):
                change = {"metadata": {"labels": {"number": str(number)}}}
                async with session.patch(f"{pods}/{name}", json=change, headers=MERGE) as answer:
                    answer.raise_for_status()
            async with session.delete(f"{pods}/{name}?gracePeriodSeconds=0", raise_for_status=True):
                pass

        connector = aiohttp.TCPConnector(ssl=trusted)
        async with aiohttp.ClientSession(connector=connector) as session:
            accounts = f"{url}/api/v1/namespaces/default/serviceaccounts"
            async with session.post(accounts, json=account, raise_for_status=True):
                pass
            await asyncio.gather(*(stir(session, f"stir-{i}") for i in range(AT_ONCE)))

    def start(self, name: str, *command: str | Path) -> Process:
        process = Process(name, self.folder / f"{name}.pid", self.folder / f"{name}.log")
        process.start(command, with_parent=True)
        self.processes[name] = process
        return process

    def create(self, *objects: Manifest) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.server.kubectl("create", "-f", "-", stdin=json.dumps(listed))

    @property
    def kubeconfig(self) -> Path:
        """This program's: KWOK is the administrator, too, and their writes are told apart by name."""
        path = self.folder / "benchmark.kubeconfig"
        return self.server.keys.kubeconfig(path, self.server.url, BENCHMARK, "system:masters")

    def access(self) -> Access:
        keys = self.server.keys
        certificate, key = keys.certificate("benchmark", BENCHMARK, "system:masters")
        return self.server.url, str(keys.ca), str(certificate), str(key)

    def start_operator(self, qps: float, profile: str, first: Manifest) -> None:
        """As the chart starts it: its rights, its environment, its command. `first` comes and goes before the
        others: the API server reads a new schema at its first use, for two seconds."""
        schedulers = [sys.executable, Path(__file__).parent / "schedulers.py", SCHEDULERS]
        played = self.start("schedulers", *schedulers, *self.access())
        played.wait(lambda: "ready" in played.log.read_text(), 30)
        rates = {"operator.qps": qps, "operator.burst": 2 * qps}
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
        chart = _render(rates)
        self.create(*(m for m in chart if m["kind"] != "Deployment"))
        self.server.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        deployment = next(m for m in chart if m["kind"] == "Deployment")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        env = {v["name"]: v["value"] for v in container["env"] if "value" in v}
        command = [sys.executable if c == "python" else c for c in container["command"]]
        set_up = [f"{name}={value}" for name, value in (env | self._own_env()).items()]
        before = profile.split() if profile else []
        operator = self.start("operator", "env", *set_up, *before, *command)
        operator.wait(lambda: "this operator leads" in operator.log.read_text(), 60)
        self.create(first)
        kind, name = first["kind"], first["metadata"]["name"]
        self.server.kubectl("wait", kind, name, "--for=condition=Suspended", "--timeout=30s")
        self.server.kubectl("delete", kind, name)

    def _own_env(self) -> dict[str, str]:
        """What only a pod would have."""
        token = self.server.kubectl("create", "token", "roll-operator", "-n", SYSTEM).strip()
        access = {"server": self.server.url, "certificate-authority": str(self.server.keys.ca)}
        kubeconfig = self.folder / "operator.kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "roll", "cluster": access}],
            "users": [{"name": "operator", "user": {"token": token}}],
            "contexts": [{"name": "roll", "context": {"cluster": "roll", "user": "operator"}}],
            "current-context": "roll",
        }
        kubeconfig.write_text(json.dumps(config))
        return {
            "KUBECONFIG": str(kubeconfig),
            "ROLL_OPERATOR_NAMESPACE": SYSTEM,
            "ROLL_IDENTITY": "benchmark",
            "ROLL_HEALTH_PORT": str(free_port()),
            "ROLL_METRICS_PORT": str(free_port()),
        }

    def rest(self) -> None:
        """Waits until what was started and installed is ready for work: a new API server, the schema of RLJobs."""
        until = time.monotonic() + REST_SECONDS
        while time.monotonic() < until:
            before = sum(self.cpu().values())
            time.sleep(1)
            if sum(self.cpu().values()) - before < AT_REST:
                return
        raise ClusterError(f"the cluster did not come to rest in {REST_SECONDS:.0f} s")

    def check(self) -> None:
        """An error with the last words of a process that ended."""
        for process in self.processes.values():
            if process.pid is None:
                raise ClusterError(f"{process.name} ended; {process.last_words()}")

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU that each process has used, user and system, and this one."""
        pids = {name: process.pid for name, process in self.processes.items()}
        used = {name: _cpu(pid) for name, pid in pids.items() if pid is not None}
        return used | {"this program": _cpu(os.getpid())}

    def memory(self, name: str) -> tuple[float, float]:
        """Megabytes that a process holds, and the most it ever held."""
        text = Path(f"/proc/{self.processes[name].pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in text.splitlines())
        return tuple(int(fields[f].split()[0]) * 1024 / 1e6 for f in ("VmRSS", "VmHWM"))


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK


def _render(values: dict[str, Any]) -> list[Manifest]:
    helm = Path(sys.executable).parent / "helm"
    chosen = [f"--set-json={path}={json.dumps(value)}" for path, value in values.items()]
    chart = ROOT / "helm" / "roll-operator"
    command = [helm, "template", "roll-operator", chart, f"--namespace={SYSTEM}", "--no-hooks"]
    done = subprocess.run([*command, *chosen], capture_output=True, text=True, check=True)
    return [m for m in YAML(typ="safe", pure=True).load_all(done.stdout) if m]
