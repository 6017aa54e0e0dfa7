"""The life of a release on a real API server: install, upgrade, rollback, uninstall, and what the account may do.

No controller runs there, so no pod starts; tests/cluster shows that one does.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from roll_cluster import ApiServer, ClusterError
from ruamel.yaml import YAML
from support.chart import CHART, HELM, ROOT

pytestmark = pytest.mark.api_server

NAMESPACE = "roll-system"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:roll-operator"
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("api")) as server:
        server.kubectl("create", "namespace", NAMESPACE)
        server.kubectl("label", "namespace", NAMESPACE, RESTRICTED)
        server.kubectl("create", "namespace", "blue")
        yield server


def helm(api: ApiServer, *arguments: str | Path) -> str:
    done = subprocess.run(
        [HELM, *arguments, f"--kubeconfig={api.kubeconfig}", f"--namespace={NAMESPACE}"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def release(api: ApiServer) -> Iterator[str]:
    helm(api, "install", "roll-operator", CHART)
    yield "roll-operator"
    helm(api, "uninstall", "roll-operator", "--ignore-not-found")


def get(api: ApiServer, *what: str) -> Any:
    return json.loads(api.kubectl("get", *what, "--output=json"))


def crd(api: ApiServer) -> Any:
    return get(api, "crd", "rljobs.roll.dev")


def may(api: ApiServer, verb: str, resource: str, namespace: str = "blue") -> bool:
    resource, _, subresource = resource.partition("/")
    asked = ("auth", "can-i", verb, resource, f"--subresource={subresource}")
    try:
        said = api.kubectl(*asked, f"--as={ACCOUNT}", f"--namespace={namespace}")
    except ClusterError:  # kubectl's way to say no
        return False
    return said.strip() == "yes"


def test_the_crd_follows_an_upgrade_and_a_rollback_and_outlives_the_release(
    api: ApiServer, release: str, tmp_path: Path
) -> None:
    changed = shutil.copytree(CHART, tmp_path / "chart")
    source = changed / "files" / "rljobs.roll.dev.yaml"
    text = source.read_text(encoding="utf-8")
    assert "shortNames: [rlj]" in text
    source.write_text(text.replace("shortNames: [rlj]", "shortNames: [rlj, rl]"), encoding="utf-8")
    job = ROOT / "examples" / "arithmetic.yaml"
    api.kubectl("wait", "crd/rljobs.roll.dev", "--for=condition=Established", "--timeout=60s")
    api.kubectl("apply", "--namespace=blue", f"--filename={job}")

    helm(api, "upgrade", release, changed, "--set=replicas=2")
    assert crd(api)["spec"]["names"]["shortNames"] == ["rlj", "rl"]
    assert get(api, "deployment", release, "-n", NAMESPACE)["spec"]["replicas"] == 2

    helm(api, "rollback", release, "1")
    assert crd(api)["spec"]["names"]["shortNames"] == ["rlj"]
    assert get(api, "deployment", release, "-n", NAMESPACE)["spec"]["replicas"] == 1

    helm(api, "uninstall", release)
    left = get(api, "deployments,services,serviceaccounts,roles", "-n", NAMESPACE)["items"]
    assert [o["metadata"]["name"] for o in left if "roll" in o["metadata"]["name"]] == []
    assert get(api, "rljob", "arithmetic", "-n", "blue")["spec"]["model"]

    helm(api, "install", release, CHART)
    assert get(api, "rljob", "arithmetic", "-n", "blue")["spec"]["model"]


def test_the_operators_pod_is_admitted_to_a_restricted_namespace(
    api: ApiServer, release: str, tmp_path: Path
) -> None:
    template = get(api, "deployment", release, "-n", NAMESPACE)["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"]["name"] = "admitted"
    manifest = tmp_path / "pod.yaml"

    YAML().dump(pod, manifest)
    create = ("create", "--dry-run=server", f"--namespace={NAMESPACE}", f"--filename={manifest}")
    assert "admitted" in api.kubectl(*create)

    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    YAML().dump(pod, manifest)
    with pytest.raises(ClusterError, match="allowPrivilegeEscalation"):
        api.kubectl(*create)


@pytest.mark.usefixtures("release")
def test_what_the_operator_may_do(api: ApiServer) -> None:
    rights = {
        ("create", "pods"): True,
        ("delete", "pods"): True,
        ("patch", "rljobs.roll.dev/status"): True,
        ("create", "secrets"): True,
        ("watch", "nodes"): True,
        ("get", "secrets"): False,
        ("list", "secrets"): False,
        ("delete", "secrets"): False,
        ("create", "pods/exec"): False,
        ("patch", "rljobs.roll.dev"): False,
        ("delete", "persistentvolumeclaims"): False,
        ("create", "roles.rbac.authorization.k8s.io"): False,
        ("create", "serviceaccounts/token"): False,
        ("patch", "nodes"): False,
    }

    assert {right: may(api, *right) for right in rights} == rights


def test_a_namespaced_operator_may_nothing_elsewhere(api: ApiServer, release: str) -> None:
    helm(api, "upgrade", release, CHART, "--set=watchNamespaces={blue}")

    assert may(api, "create", "pods", "blue")
    assert not may(api, "create", "pods", "default")
    assert not may(api, "watch", "nodes")
    assert may(api, "update", "leases.coordination.k8s.io", NAMESPACE)
    assert not may(api, "update", "leases.coordination.k8s.io", "blue")
