"""Nodes without machines, for scale: pods on them say Running and use nothing.

KWOK plays the kubelet of every node made by `node`. They are tainted, so only a pod that tolerates
`kwok.x-k8s.io/node` lands there.
"""

import json
from pathlib import Path
from typing import Any

from roll_cluster import binaries
from roll_cluster.processes import Process

KEY = "kwok.x-k8s.io/node"
TOLERATION = {"key": KEY, "operator": "Exists", "effect": "NoSchedule"}

NODE_STATUS = """
conditions:
{{ range NodeConditions }}
- type: {{ .type | Quote }}
  status: {{ .status | Quote }}
  reason: {{ .reason | Quote }}
  message: {{ .message | Quote }}
  lastHeartbeatTime: {{ Now | Quote }}
  lastTransitionTime: {{ Now | Quote }}
{{ end }}
addresses:
- {type: InternalIP, address: {{ NodeIP | Quote }}}
phase: Running
"""
POD_STATUS = """
phase: Running
startTime: {{ Now | Quote }}
hostIP: {{ NodeIPWith .spec.nodeName | Quote }}
podIP: ADDRESS
conditions:
{{ range $type := ( list "Initialized" "ContainersReady" "Ready" ) }}
- {type: {{ $type }}, status: "True", lastTransitionTime: {{ Now | Quote }}}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: true
  restartCount: 0
  state: {running: {startedAt: {{ Now | Quote }}}}
{{ end }}
"""
ADDRESS = """
{{ PodIPWith .spec.nodeName false ( or .metadata.uid "" ) ( or .metadata.name "" ) ( or .metadata.namespace "" ) | Quote }}
""".strip()


# Four at once, the default, would be what a benchmark measures.
SETTINGS = {
    "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
    "kind": "KwokConfiguration",
    "options": {"podPlayStageParallelism": 32, "nodePlayStageParallelism": 32},
}


def start(
    folder: Path, kubeconfig: Path, address: str = ADDRESS, lease_seconds: int = 40
) -> Process:
    """In the background until it is stopped or this process ends.

    `address` is that of all pods, where somebody plays them; with `lease_seconds` 0 nodes show no sign of life,
    which is enough where no controller looks for one.
    """
    stages = folder / "stages.json"
    parts = [SETTINGS, *_stages(address)]
    stages.write_text("\n---\n".join(json.dumps(part) for part in parts))
    process = Process("kwok", folder / "kwok.pid", folder / "kwok.log")
    command: list[str | Path] = [
        binaries.require("kwok") / "kwok",
        f"--kubeconfig={kubeconfig}",
        f"--config={stages}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={KEY}=fake",
        f"--node-lease-duration-seconds={lease_seconds}",
    ]
    process.start(command, with_parent=True)
    return process


def node(name: str, cpu: int = 64, pods: int = 250) -> dict[str, Any]:
    room = {"cpu": str(cpu), "memory": "1Ti", "pods": str(pods)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {KEY: "fake"},
            "labels": {"kubernetes.io/hostname": name, "type": "kwok"},
        },
        "spec": {"taints": [{"key": KEY, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"capacity": room, "allocatable": room},
    }


def _stages(address: str) -> list[dict[str, Any]]:
    deleted, phase = ".metadata.deletionTimestamp", ".status.phase"
    ready = '.status.conditions.[] | select( .type == "Ready" ) | .status'
    return [
        _stage("node-ready", "Node", {"statusTemplate": NODE_STATUS}, (ready, "NotIn", "True")),
        _stage(
            *("pod-runs", "Pod", {"statusTemplate": POD_STATUS.replace("ADDRESS", address)}),
            *((deleted, "DoesNotExist"), (phase, "In", "Pending")),
        ),
        _stage("pod-goes", "Pod", {"delete": True}, (deleted, "Exists")),
    ]


def _stage(name: str, kind: str, then: dict[str, Any], *when: tuple[str, ...]) -> dict[str, Any]:
    conditions = [
        {"key": key, "operator": operator} | ({"values": values} if values else {})
        for key, operator, *values in when
    ]
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": conditions},
            "next": then,
        },
    }
