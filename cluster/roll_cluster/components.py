"""The commands of the programs that run beside the API server, and their configuration files.

Pure but for the files written: what is started, in which order and how it is watched is in `cluster`.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from roll_cluster.keys import Keys
from roll_cluster.settings import (
    DOMAIN,
    FEATURE_GATES,
    NODE,
    NODE_IP,
    POD_RANGE,
    SERVICE_RANGE,
    State,
)

LOOPBACK = "127.0.0.1"
# Far above what a single machine can do, so that no client's own limit is what a test measures.
REQUESTS_PER_SECOND = 1000


class Components:
    def __init__(self, state: State, programs: Path, keys: Keys, server: str) -> None:
        self.state = state
        self.programs = programs
        self.keys = keys
        self.server = server

    def _file(self, name: str, content: Mapping[str, object] | str) -> Path:
        path = self.state.root / "config" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
        return path

    def _kubeconfig(self, name: str, user: str, group: str = "") -> Path:
        path = self.state.pki / f"{name}.kubeconfig"
        return self.keys.kubeconfig(path, self.server, user, group)

    def controller_manager(self) -> list[str | Path]:
        kubeconfig = self._kubeconfig("kube-controller-manager", "system:kube-controller-manager")
        return [
            self.programs / "kube-controller-manager",
            f"--kubeconfig={kubeconfig}",
            f"--bind-address={LOOPBACK}",
            "--leader-elect=false",
            "--use-service-account-credentials",
            f"--service-account-private-key-file={self.keys.sa_key}",
            f"--root-ca-file={self.keys.ca}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            f"--feature-gates={FEATURE_GATES}",
            "--node-monitor-grace-period=20s",
            "--node-monitor-period=2s",
            f"--kube-api-qps={REQUESTS_PER_SECOND}",
            f"--kube-api-burst={REQUESTS_PER_SECOND}",
        ]

    def volumes(self) -> list[str | Path]:
        return [sys.executable, "-m", "roll_cluster.volumes", self.state.kubeconfig]

    def scheduler(self) -> list[str | Path]:
        kubeconfig = self._kubeconfig("kube-scheduler", "system:kube-scheduler")
        connection = {
            "kubeconfig": str(kubeconfig),
            "qps": REQUESTS_PER_SECOND,
            "burst": REQUESTS_PER_SECOND,
        }
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": connection,
            "leaderElection": {"leaderElect": False},
        }
        return [
            self.programs / "kube-scheduler",
            f"--config={self._file('scheduler.json', config)}",
            f"--bind-address={LOOPBACK}",
            f"--feature-gates={FEATURE_GATES}",
        ]

    def kubelet(self) -> list[str | Path]:
        kubeconfig = self._kubeconfig("kubelet", f"system:node:{NODE}", "system:nodes")
        certificate, key = self.keys.certificate(
            "kubelet-server", f"system:node:{NODE}", names=(f"IP:{NODE_IP}", f"DNS:{NODE}")
        )
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.keys.ca)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(certificate),
            "tlsPrivateKeyFile": str(key),
            "address": NODE_IP,
            "clusterDNS": [NODE_IP],
            "clusterDomain": DOMAIN,
            "resolvConf": "",  # nothing of the machine's own names
            "containerRuntimeEndpoint": f"unix://{self.state.containerd_socket}",
            "podLogsDir": str(self.state.root / "pod-logs"),
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
            },
            # An image that was removed for want of space could not be pulled again.
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            # Renewed every 5 s: four signs of life before the node counts as lost.
            "nodeLeaseDurationSeconds": 20,
            # A changed ConfigMap shows in the pods after some seconds instead of a minute.
            "syncFrequency": "10s",
            "maxPods": 250,
            "makeIPTablesUtilChains": False,  # kube-proxy does without, and they would stay behind
        }
        return [
            self.programs / "kubelet",
            f"--config={self._file('kubelet.json', config)}",
            f"--kubeconfig={kubeconfig}",
            f"--root-dir={self.state.root / 'kubelet'}",
            f"--hostname-override={NODE}",
            f"--node-ip={NODE_IP}",
            "--node-labels=topology.kubernetes.io/zone=zone-a",
        ]

    def proxy(self) -> list[str | Path]:
        return [
            self.programs / "kube-proxy",
            f"--kubeconfig={self._kubeconfig('kube-proxy', 'system:kube-proxy')}",
            f"--hostname-override={NODE}",
            "--proxy-mode=nftables",
            f"--cluster-cidr={POD_RANGE}",
            "--conntrack-max-per-core=0",  # leaves the machine's limit alone
            f"--healthz-bind-address={LOOPBACK}:10256",
            f"--metrics-bind-address={LOOPBACK}:10249",
        ]

    def coredns(self) -> list[str | Path]:
        kubeconfig = self._kubeconfig("coredns", "system:coredns")
        corefile = f"""
        {DOMAIN}:53 10.in-addr.arpa:53 {{
          bind {NODE_IP}
          errors
          kubernetes {DOMAIN} 10.in-addr.arpa {{
            kubeconfig {kubeconfig} roll
            ttl 1
          }}
        }}
        .:53 {{
          bind {NODE_IP}
          template ANY ANY {{
            rcode NXDOMAIN
          }}
        }}
        """
        return [self.programs / "coredns", "-conf", self._file("Corefile", corefile)]
