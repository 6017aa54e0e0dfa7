"""Nodes for scale tests: a pod on one of them runs without a container, and goes when deleted."""

import json
from pathlib import Path

import pytest
from roll_cluster import ApiServer, kwok
from support.kubernetes import eventually

pytestmark = pytest.mark.api_server


def test_a_pod_on_a_node_without_a_machine_runs_and_goes(tmp_path: Path) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "light"},
        "spec": {"nodeName": "air-0", "containers": [{"name": "main", "image": "none"}]},
    }
    with ApiServer(tmp_path, flags=["--disable-admission-plugins=ServiceAccount"]) as api:
        process = kwok.start(tmp_path, api.kubeconfig)

        def state() -> tuple[str, str]:
            node, pod = (
                json.loads(api.kubectl("get", *what, "-o", "json"))
                for what in (("node", "air-0"), ("pod", "light"))
            )
            told = {c["type"]: c["status"] for c in node["status"].get("conditions", [])}
            return told.get("Ready", ""), pod["status"]["phase"]

        for thing in (kwok.node("air-0"), pod):
            api.kubectl("create", "-f", "-", stdin=json.dumps(thing))
        process.wait(lambda: state() == ("True", "Running"), 60)
        api.kubectl("delete", "pod", "light", "--wait=false")
        eventually("it is gone", lambda: "light" not in api.kubectl("get", "pods", "-o", "name"))
        process.stop()
