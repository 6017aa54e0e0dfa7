"""What the chart repeats is what the project says: CRD, rights, metrics."""

import importlib
import json
import re
from typing import Any

import pytest
from prometheus_client import REGISTRY
from roll_api import crd
from ruamel.yaml import YAML
from support.chart import CHART, ROOT, Manifest, render

RIGHTS = ROOT / "operator/roll_operator/controller/cluster/rbac.yaml"
RULES = CHART / "files" / "rules.yaml"
DASHBOARD = CHART / "files" / "dashboard.json"
METRICS = ("roll_operator.controller.cluster.metrics", "roll_workers.runtime.metrics")


def of_kind(objects: list[Manifest], *kinds: str) -> list[Manifest]:
    return [o for o in objects if o["kind"] in kinds]


def test_the_chart_installs_the_crd_of_this_project() -> None:
    (installed,) = of_kind(render(), "CustomResourceDefinition")
    metadata = installed.pop("metadata")
    source = YAML(typ="safe", pure=True).load(crd.TARGET)

    assert installed | {"metadata": {"name": metadata["name"]}} == source, "run: make generate"


def test_the_crd_and_all_jobs_outlive_the_release() -> None:
    (installed,) = of_kind(render(), "CustomResourceDefinition")

    assert installed["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert not of_kind(render(**{"crd.install": False}), "CustomResourceDefinition")


def roles(objects: list[Manifest]) -> list[Manifest]:
    return of_kind(objects, "Role", "ClusterRole")


def own(source: Manifest, account: str = "roll-operator") -> list[Manifest]:
    return [*source["own"], *(rule | {"resourceNames": [account]} for rule in source["account"])]


def test_the_operator_makes_tokens_of_its_own_account_alone() -> None:
    objects = render(**{"serviceAccount.name": "trainer-in-chief"})
    source = YAML(typ="safe").load(RIGHTS)
    (granted,) = (
        r["rules"] for r in roles(objects) if r["metadata"]["name"] == "roll-operator-leader"
    )

    assert granted == own(source, "trainer-in-chief")


def test_the_chart_grants_what_the_operator_uses() -> None:
    copied = (CHART / "files" / "rbac.yaml").read_text(encoding="utf-8")
    source = YAML(typ="safe").load(RIGHTS)
    granted = {r["metadata"]["name"]: r["rules"] for r in roles(render())}
    with_issuer = roles(
        render(**{"operator.certManagerIssuer": "ca", "operator.certManagerCA": "authority"})
    )

    assert copied == RIGHTS.read_text(encoding="utf-8"), "run: make generate"
    assert granted["roll-operator"] == source["cluster"] + source["jobs"]
    assert granted["roll-operator-leader"] == own(source)
    (wider,) = (r["rules"] for r in with_issuer if r["metadata"]["name"] == "roll-operator")
    assert wider == granted["roll-operator"] + source["certManager"]


@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["blue"]}])
def test_no_right_is_a_wildcard(values: dict[str, Any]) -> None:
    for role in roles(render(**values)):
        assert "*" not in json.dumps(role["rules"]), role["metadata"]["name"]


def test_of_secrets_the_operator_may_only_create() -> None:
    granted = [
        rule["verbs"]
        for role in roles(render())
        for rule in role["rules"]
        if "secrets" in rule.get("resources", [])
    ]

    assert granted == [["create"]]


def test_a_namespaced_install_has_no_cluster_wide_right() -> None:
    objects = render(watchNamespaces=["blue", "green"], **{"rbac.aggregate": False})
    source = YAML(typ="safe").load(RIGHTS)

    assert not of_kind(objects, "ClusterRole", "ClusterRoleBinding")
    granted = {
        (r["metadata"]["namespace"], r["metadata"]["name"]): r["rules"] for r in roles(objects)
    }
    assert granted == {
        ("blue", "roll-operator"): source["jobs"],
        ("green", "roll-operator"): source["jobs"],
        ("roll-system", "roll-operator-leader"): own(source),
    }


@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["blue"]}])
def test_every_role_is_bound_to_the_operator(values: dict[str, Any]) -> None:
    objects = render(**values, **{"rbac.aggregate": False})
    bound = set()
    for binding in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
        (subject,) = binding["subjects"]
        assert (subject["namespace"], subject["name"]) == ("roll-system", "roll-operator")
        bound.add((binding["roleRef"]["kind"], binding["roleRef"]["name"]))

    assert bound == {(role["kind"], role["metadata"]["name"]) for role in roles(objects)}


def test_viewers_see_and_editors_change() -> None:
    by_name = {r["metadata"]["name"]: r for r in roles(render())}
    seen = by_name["roll-operator-view"]
    changed = by_name["roll-operator-edit"]

    assert seen["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert {v for rule in seen["rules"] for v in rule["verbs"]} == {"get", "list", "watch"}
    assert changed["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert not any("rljobs/status" in rule["resources"] for rule in changed["rules"])


def exposed() -> set[str]:
    """Every series that our code can expose."""
    for module in METRICS:
        importlib.import_module(module)
    suffixes = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
    return {
        f"{family.name}{suffix}"
        for family in REGISTRY.collect()
        for suffix in suffixes.get(family.type, ())
    }


def asked_for(text: str) -> set[str]:
    return set(re.findall(r"\broll_(?:operator|worker|scheduler)_[a-z0-9_]+", text))


@pytest.mark.parametrize("path", [RULES, DASHBOARD], ids=["rules", "dashboard"])
def test_every_metric_that_is_asked_for_exists(path: Any) -> None:
    asked = asked_for(path.read_text(encoding="utf-8"))

    assert len(asked) > 5
    assert asked <= exposed()


def test_every_metric_of_ours_is_on_the_dashboard() -> None:
    shown = asked_for(DASHBOARD.read_text(encoding="utf-8"))
    families = {name.removesuffix("_bucket") for name in shown}
    ours = {
        name.removesuffix("_bucket")
        for name in exposed()
        if name.startswith("roll_") and not name.endswith(("_sum", "_count"))
    }

    assert ours <= families


def test_every_label_that_is_asked_for_exists() -> None:
    for module in METRICS:
        importlib.import_module(module)
    known = {"le", "namespace", "roll_dev_job", "roll_dev_role"}
    for collector in set(REGISTRY._collector_to_names):
        known |= set(getattr(collector, "_labelnames", ()))
    queries = [
        target["expr"]
        for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
        for target in panel.get("targets", [])
    ]
    groups = YAML(typ="safe").load(RULES)["groups"]
    queries += [rule["expr"] for group in groups for rule in group["rules"]]

    for query in queries:
        asked = set(re.findall(r"[{,]\s*(\w+)\s*[=!]", query))
        for listed in re.findall(r"\bby \(([^)]*)\)", query):
            asked |= {label.strip() for label in listed.split(",")}
        assert asked <= known, query


def test_what_only_the_leader_tells_is_read_by_the_largest() -> None:
    """While another takes over, both tell it for a moment; and the new one's series has just begun."""
    asked = [
        found
        for path in (RULES, DASHBOARD)
        for found in re.findall(
            r"(\w+)(?: by \(\w+\) )?\(roll_operator_(?:jobs|pods|queue_\w+)",
            path.read_text("utf-8"),
        )
    ]

    assert len(asked) > 5
    assert set(asked) == {"max"}


def test_the_dashboard_is_one_that_grafana_can_lay_out() -> None:
    values = {"metrics.dashboard.enabled": True}
    (config,) = of_kind(render(**values), "ConfigMap")
    board = json.loads(config["data"]["roll.json"])
    numbers = [panel["id"] for panel in board["panels"]]
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]

    assert len(set(numbers)) == len(numbers)
    assert len(set(places)) == len(places)
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert all(panel.get("targets") for panel in board["panels"] if panel["type"] != "row")


def test_the_image_locks_hold_the_versions_that_were_tested() -> None:
    def pins(name: str) -> set[str]:
        text = (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8")
        return set(re.findall(r"^([a-z0-9.-]+==\S+)", text, re.MULTILINE))

    assert pins("operator") <= pins("dev"), "run: make lock"
    assert pins("worker-cpu") < pins("worker") <= pins("dev"), "run: make lock"
    assert not any(pin.startswith(("torch==", "numpy==")) for pin in pins("operator"))
