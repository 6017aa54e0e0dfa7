"""The chart as `helm` renders it: valid objects, restricted pods, values that are documented and checked."""

import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from roll_operator.controller.cluster.settings import Settings
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from support.chart import CHART, ROOT, Manifest, helm, render, template
from support.network_policy import End, connects
from support.pod_security import violations

EVERYTHING = {
    "replicas": 2,
    "image.pullSecrets": ["registry"],
    "metrics.serviceMonitor.enabled": True,
    "metrics.podMonitor.enabled": True,
    "metrics.rules.enabled": True,
    "metrics.dashboard.enabled": True,
    "networkPolicy.metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
    "networkPolicy.jobMetricsFrom": ["monitoring"],
    "operator.podGroupScheduler": "gangs",
    "operator.certManagerIssuer": "ClusterIssuer/corp",
    "operator.certManagerCA": "corp-authority",
    "operator.extraEnv": [{"name": "TZ", "value": "UTC"}],
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"operator": "Exists"}],
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
    "priorityClassName": "system-cluster-critical",
    "serviceAccount.annotations": {"a": "b"},
}
IN_TWO_NAMESPACES = {"watchNamespaces": ["blue", "green"]}
INSTALLS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "with everything": EVERYTHING,
    "in two namespaces": EVERYTHING | IN_TWO_NAMESPACES,
}


def one(objects: list[Manifest], kind: str, name: str = "roll-operator") -> Manifest:
    (found,) = (o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name)
    return found


def kinds(objects: list[Manifest]) -> set[str]:
    return {o["kind"] for o in objects}


def operator_pod(objects: list[Manifest]) -> Manifest:
    return one(objects, "Deployment")["spec"]["template"]["spec"]


def environment(objects: list[Manifest]) -> dict[str, str]:
    variables = operator_pod(objects)["containers"][0]["env"]
    return {v["name"]: v.get("value", "from the pod's own metadata") for v in variables}


@pytest.mark.parametrize("values", INSTALLS.values(), ids=INSTALLS)
def test_helm_finds_nothing_to_complain_of(values: dict[str, Any], tmp_path: Path) -> None:
    chosen = tmp_path / "values.yaml"
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *parents, last = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    YAML().dump(tree, chosen)

    answer = helm("lint", "--strict", str(CHART), f"--values={chosen}")

    assert answer.returncode == 0, answer.stdout


@pytest.mark.parametrize("values", INSTALLS.values(), ids=INSTALLS)
def test_every_object_is_valid_by_kubernetes_own_schema(values: dict[str, Any]) -> None:
    objects = [o for o in render(**values) if "monitoring.coreos.com" not in o["apiVersion"]]

    assert len(objects) > 8
    for found in objects:
        kubernetes_validate.validate(found, "1.36", strict=True)


def test_a_misspelt_field_would_be_noticed() -> None:
    deployment = one(render(), "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, "1.36", strict=True)


@pytest.mark.parametrize("values", INSTALLS.values(), ids=INSTALLS)
def test_every_object_is_named_labelled_and_stands_once(values: dict[str, Any]) -> None:
    objects = render(**values)
    names = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]

    assert len(set(names)) == len(names)
    for found in objects:
        assert found["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm", found
        assert found["metadata"]["labels"]["app.kubernetes.io/instance"] == "roll-operator", found


@pytest.mark.parametrize("kind", ["Deployment", "Pod"])
def test_pods_pass_the_restricted_standard_and_write_nothing(kind: str) -> None:
    objects = render(**EVERYTHING)
    pods = {
        "Deployment": one(objects, "Deployment")["spec"]["template"],
        "Pod": one(objects, "Pod", "roll-operator-test"),
    }

    assert violations(pods[kind]) == []
    for container in pods[kind]["spec"]["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_operator_understands_the_environment_that_it_is_given() -> None:
    settings = Settings.read(environment(render(**(EVERYTHING | IN_TWO_NAMESPACES))))

    assert settings.watch_namespaces == ("blue", "green")
    assert settings.watch_nodes is False
    assert settings.metrics_namespaces == ("monitoring",)
    assert settings.pull_secrets == ("registry",)
    assert settings.operator_image == "localhost/roll-operator:0.1.0"
    assert settings.worker_image == "localhost/roll-worker:0.1.0"
    assert settings.service_account == "roll-operator"
    assert settings.pod_group_scheduler == "gangs"
    assert settings.cert_manager_issuer == "ClusterIssuer/corp"
    assert str(settings.authority) == "/etc/roll/issuer/ca.crt"


def test_every_variable_that_the_operator_reads_is_set_and_no_other() -> None:
    class Recorded(dict[str, str]):
        def get(self, key: str, default: Any = None) -> Any:
            read.add(key)
            return super().get(key, default)

    read: set[str] = set()
    given = environment(render())
    Settings.read(Recorded(given))

    assert read == set(given)


def test_a_digest_goes_before_the_tag() -> None:
    digest = f"sha256:{'a' * 64}"
    pod = operator_pod(render(**{"image.digest": digest, "image.tag": "ignored"}))

    assert pod["containers"][0]["image"] == f"localhost/roll-operator@{digest}"


def test_a_budget_is_made_only_where_it_does_not_block_a_drain() -> None:
    assert "PodDisruptionBudget" not in kinds(render(replicas=1))
    assert one(render(replicas=2), "PodDisruptionBudget")["spec"]["minAvailable"] == 1


def test_nothing_of_prometheus_is_installed_unasked() -> None:
    groups = {o["apiVersion"].partition("/")[0] for o in render()}

    assert "monitoring.coreos.com" not in groups


SCHEDULER = {"app.kubernetes.io/managed-by": "roll-operator", "roll.dev/role": "scheduler"}
TRAINER = SCHEDULER | {"roll.dev/role": "trainer"}


@pytest.mark.parametrize(
    ("values", "namespace", "labels", "port", "reached"),
    [
        ({}, "blue", SCHEDULER, 7070, True),
        ({}, "blue", SCHEDULER, 9090, False),
        ({}, "blue", TRAINER, 7071, False),
        (IN_TWO_NAMESPACES, "green", SCHEDULER, 7070, True),
        (IN_TWO_NAMESPACES, "red", SCHEDULER, 7070, False),
        ({}, "kube-system", {"component": "kube-apiserver"}, 6443, True),
    ],
)
def test_the_operator_reaches_schedulers_and_the_api_server_only(
    values: dict[str, Any], namespace: str, labels: dict[str, str], port: int, reached: bool
) -> None:
    objects = render(**values)
    pod = one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    policy = one(objects, "NetworkPolicy")

    assert connects([policy], End("roll-system", pod), End(namespace, labels), port) == reached


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("replica", 2, "replica"),
        ("image.pullPolicy", "Sometimes", "pullPolicy"),
        ("image.repository", "roll:1", "repository"),
        ("image.digest", "sha256:12", "digest"),
        ("replicas", -1, "replicas"),
        ("watchNamespaces", "blue", "watchNamespaces"),
        ("watchNamespaces", ["Blue"], "watchNamespaces"),
        ("operator.qps", 0, "qps"),
        ("operator.logLevel", "loud", "logLevel"),
        ("operator.podGroupScheduler", "Volcano!", "podGroupScheduler"),
        ("operator.certManagerIssuer", "corp", "certManagerCA"),
        ("operator.certManagerIssuer", "clusterissuer/corp", "certManagerIssuer"),
        ("metrics.serviceMonitor.interval", "often", "interval"),
        ("networkPolicy.apiServerPorts", [], "apiServerPorts"),
    ],
)
def test_a_wrong_value_is_refused_by_name(path: str, value: Any, complaint: str) -> None:
    answer = template(**{path: value})

    assert answer.returncode != 0
    assert complaint in answer.stderr


def leaves(node: Any, path: str = "") -> list[tuple[str, bool]]:
    """Every key of values.yaml that is no mere section, and whether a comment stands right above it."""
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    result = []
    for key, value in node.items():
        if isinstance(value, CommentedMap) and value:
            result += leaves(value, f"{path}{key}.")
        else:
            above = lines[node.lc.key(key)[0] - 1].strip()
            result.append((f"{path}{key}", above.startswith("#")))
    return result


def test_every_value_is_explained_and_known_to_the_schema() -> None:
    values = YAML().load(CHART / "values.yaml")
    schema = YAML(typ="safe").load(CHART / "values.schema.json")

    for path, explained in leaves(values):
        assert explained or path.startswith("resources."), f"values.yaml: {path} has no comment"
        node = schema
        for part in path.split("."):
            if "properties" not in node:
                break
            assert part in node["properties"], f"values.schema.json: {path}"
            node = node["properties"][part]
            assert node["description"], path


def test_the_schema_knows_no_value_that_is_not_there() -> None:
    def walk(schema: Any, values: Any, path: str) -> None:
        for key, child in schema.get("properties", {}).items():
            if path == "" and key == "global":
                continue
            assert key in values, f"{path}{key}"
            walk(child, values[key], f"{path}{key}.")

    walk(
        YAML(typ="safe").load(CHART / "values.schema.json"),
        YAML(typ="safe").load(CHART / "values.yaml"),
        "",
    )


def test_chart_image_and_project_have_one_version() -> None:
    chart = YAML(typ="safe").load(CHART / "Chart.yaml")
    (version,) = re.findall(
        r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )

    assert chart["version"] == chart["appVersion"] == version


@pytest.mark.parametrize("values", [{}, IN_TWO_NAMESPACES], ids=["everywhere", "namespaced"])
def test_the_notes_show_three_commands(values: dict[str, Any], tmp_path: Path) -> None:
    """Without a cluster `helm` shows no notes: they are rendered as the text of an object."""
    chart = shutil.copytree(CHART, tmp_path / "chart")
    notes = (CHART / "templates" / "NOTES.txt").read_text(encoding="utf-8")
    shown = chart / "templates" / "notes.yaml"
    shown.write_text(f"kind: Notes\ntext: |\n{textwrap.indent(notes, '  ')}", encoding="utf-8")

    (told,) = (o["text"] for o in render(chart, **values) if o["kind"] == "Notes")

    commands = [line.split() for line in told.splitlines() if line.startswith("  ")]
    assert [words[0] for words in commands] == ["helm", "kubectl", "kubectl"]
    assert (ROOT / commands[1][3]).is_file()
    assert all(("-n" in words) == bool(values) for words in commands[1:])
