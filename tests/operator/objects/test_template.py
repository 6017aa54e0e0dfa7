"""A template changes what a user may want changed, and nothing that the operator relies on."""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_api import spec_hash
from roll_operator.plan.objects import Manifest
from roll_operator.plan.objects.template import TemplateError, merged
from support.job_objects import CLUSTER, env_of, make_job, pod_of

PLAIN = pod_of(make_job(), "inference")
GPU = pod_of(
    make_job({"spec.roles.inference.gpu": {"count": 1, "products": ["H100"]}}), "inference"
)
KEYS_TO_TRY = [
    *("metadata", "labels", "spec", "containers", "name", "env", "volumes", "volumeMounts"),
    *("ports", "containerPort"),
    *("mountPath", "tolerations", "affinity", "nodeAffinity", "nodeSelectorTerms"),
    *("requiredDuringSchedulingIgnoredDuringExecution", "matchExpressions"),
]


KNOCK = {"tcpSocket": {"port": 7071}}


def with_template(template: dict[str, Any], role: str = "inference") -> Manifest:
    return pod_of(make_job({f"spec.roles.{role}.template": template}), role)


def at(manifest: Any, path: str) -> Any:
    for part in path.split("."):
        manifest = manifest[int(part)] if part.isdigit() else manifest[part]
    return manifest


@pytest.mark.parametrize(
    ("template", "path", "value"),
    [
        ({"metadata": {"labels": {"team": "a"}}}, "metadata.labels.team", "a"),
        ({"metadata": {"annotations": {"note": "b"}}}, "metadata.annotations.note", "b"),
        ({"spec": {"nodeSelector": {"pool": "gpu"}}}, "spec.nodeSelector.pool", "gpu"),
        ({"spec": {"runtimeClassName": "nvidia"}}, "spec.runtimeClassName", "nvidia"),
        ({"spec": {"schedulerName": "mine"}}, "spec.schedulerName", "mine"),
        ({"spec": {"priorityClassName": "high"}}, "spec.priorityClassName", "high"),
        ({"spec": {"securityContext": {"runAsUser": 7}}}, "spec.securityContext.runAsUser", 7),
        (
            {"spec": {"containers": [{"name": "inference", "image": "mine:2"}]}},
            "spec.containers.0.image",
            "mine:2",
        ),
        (
            {"spec": {"containers": [{"name": "inference", "readinessProbe": KNOCK}]}},
            "spec.containers.0.readinessProbe",
            {**KNOCK, "periodSeconds": 5},
        ),
        (
            {"spec": {"containers": [{"name": "inference", "readinessProbe": {"periodSeconds": 9}}]}},
            "spec.containers.0.readinessProbe.exec.command.0",
            "test",
        ),
        (
            {"spec": {"containers": [{"name": "inference", "command": ["sleep", "9"]}]}},
            "spec.containers.0.command",
            ["sleep", "9"],
        ),
        (
            {"spec": {"containers": [{"name": "inference", "resources": {"limits": {"cpu": "2"}}}]}},
            "spec.containers.0.resources",
            {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "2"}},
        ),
        ({"spec": {"containers": [{"name": "log", "image": "l"}]}}, "spec.containers.1.name", "log"),
        ({"spec": {"initContainers": [{"name": "i"}]}}, "spec.initContainers.0.name", "i"),
        ({"spec": {"imagePullSecrets": [{"name": "s"}]}}, "spec.imagePullSecrets", [{"name": "s"}]),
    ],
)  # fmt: skip
def test_a_wish_is_granted(template: dict[str, Any], path: str, value: Any) -> None:
    assert at(with_template(template), path) == value


@pytest.mark.parametrize(
    "template",
    [
        {"metadata": {"name": "other", "namespace": "other", "ownerReferences": []}},
        {"metadata": {"generateName": "x-", "finalizers": ["a/b"], "uid": "1"}},
        {"metadata": {"labels": {"roll.dev/job": "other", "roll.dev/role": "trainer"}}},
        {"metadata": {"annotations": {"roll.dev/spec-hash": "0"}}},
        {"spec": {"hostname": "h", "subdomain": "s", "restartPolicy": "Always"}},
        {"spec": {"serviceAccountName": "admin", "automountServiceAccountToken": True}},
        {"spec": {"terminationGracePeriodSeconds": 0}},
        {"spec": {"containers": [{"name": "inference", "env": [{"name": "ROLL_JOB", "value": "x"}]}]}},
        {"spec": {"containers": [{"name": "inference", "env": [{"name": "ROLL_POD_UID", "value": "x"}]}]}},
        {"spec": {"containers": [{"name": "inference", "volumeMounts": [{"name": "a", "mountPath": "/etc/roll/trust"}]}]}},
        {"spec": {"volumes": [{"name": "roll-token", "emptyDir": {}}]}},
        {"spec": {"containers": None, "volumes": None}},
        {"spec": {"containers": [], "volumes": []}},
        {"metadata": None, "spec": None},
    ],
)  # fmt: skip
def test_what_the_operator_relies_on_stays_as_it_is(template: dict[str, Any]) -> None:
    plain, job = make_job(), make_job({"spec.roles.inference.template": template})
    text = json.dumps(pod_of(job, "inference"))

    # The template is a part of the spec, and so of its hash.
    assert json.loads(text.replace(spec_hash(job), spec_hash(plain))) == PLAIN


NODES = "requiredDuringSchedulingIgnoredDuringExecution"


def on_nodes(given: Any) -> dict[str, Any]:
    return {"spec": {"affinity": {"nodeAffinity": {NODES: given}}}}


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"sepc": {"nodeSelector": {"pool": "gpu"}}}, "sepc"),
        ({"kind": "Deployment", "spec": {}}, "kind"),
        ({"metadata": "x"}, "metadata"),
        ({"metadata": {"labels": ["a"]}}, "metadata.labels"),
        ({"spec": "x"}, "spec"),
        ({"spec": []}, "spec"),
        ({"spec": {"containers": "all of them"}}, "spec.containers"),
        ({"spec": {"containers": ["x"]}}, "spec.containers[0]"),
        ({"spec": {"containers": [{"name": "a"}, {"image": "x"}]}}, "spec.containers[1].name"),
        ({"spec": {"containers": [{"name": {"a": 1}}]}}, "spec.containers[0].name"),
        ({"spec": {"containers": [{"name": "inference", "env": [{"value": "x"}]}]}}, "spec.containers[0].env[0].name"),
        ({"spec": {"containers": [{"name": "inference", "resources": "2"}]}}, "spec.containers[0].resources"),
        ({"spec": {"volumes": {"name": "x"}}}, "spec.volumes"),
        ({"spec": {"tolerations": {"key": "x"}}}, "spec.tolerations"),
        ({"spec": {"affinity": []}}, "spec.affinity"),
        (on_nodes([{"matchFields": []}]), f"spec.affinity.nodeAffinity.{NODES}"),
        (on_nodes({"nodeSelectorTerms": {}}), f"spec.affinity.nodeAffinity.{NODES}.nodeSelectorTerms"),
        (on_nodes({"nodeSelectorTerms": ["x"]}), f"spec.affinity.nodeAffinity.{NODES}.nodeSelectorTerms[0]"),
        (on_nodes({"nodeSelectorTerms": [{"matchExpressions": "x"}]}), f"spec.affinity.nodeAffinity.{NODES}.nodeSelectorTerms[0].matchExpressions"),
        (on_nodes({"nodeSelectorTerms": [{"matchLabels": []}]}), f"spec.affinity.nodeAffinity.{NODES}.nodeSelectorTerms[0].matchLabels"),
    ],
)  # fmt: skip
def test_what_is_no_template_is_an_error_with_its_path(template: dict[str, Any], path: str) -> None:
    job = make_job(
        {
            "spec.roles.inference.gpu": {"count": 1, "products": ["H100"]},
            "spec.roles.inference.template": template,
        }
    )
    with pytest.raises(TemplateError) as error:
        pod_of(job, "inference")
    assert str(error.value).startswith(f"roles.inference.template.{path}: ")


@given(
    st.recursive(
        st.none() | st.text(max_size=3) | st.integers(0, 2),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(st.sampled_from(KEYS_TO_TRY), inner, max_size=3)
        ),
        max_leaves=12,
    )
)
def test_whatever_a_template_is_it_is_merged_or_an_error_of_the_templates(wish: Any) -> None:
    for template in (wish, {"spec": wish}, {"spec": {"affinity": wish, "containers": wish}}):
        if isinstance(template, dict):
            with suppress(TemplateError):
                merged(GPU, template, frozenset({"ROLL_JOB"}))


def test_variables_are_known_by_name_and_replaced_whole() -> None:
    container = {
        "name": "inference",
        "env": [
            {"name": "OMP_NUM_THREADS", "value": "4"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
        ],
    }
    env = with_template({"spec": {"containers": [container]}})["spec"]["containers"][0]["env"]
    names = [variable["name"] for variable in env]
    assert len(names) == len(set(names))
    assert {"name": "OMP_NUM_THREADS", "value": "4"} in env
    assert env[-1]["valueFrom"]["secretKeyRef"]["name"] == "hub"


def test_volumes_are_known_by_name_and_mounts_by_path() -> None:
    template = {
        "spec": {
            "volumes": [
                {"name": "roll-tmp", "emptyDir": {"sizeLimit": "1Gi"}},
                {"name": "models", "persistentVolumeClaim": {"claimName": "models"}},
            ],
            "containers": [
                {
                    "name": "inference",
                    "volumeMounts": [
                        {"name": "models", "mountPath": "/models"},
                        {"name": "models", "mountPath": "/tmp", "subPath": "tmp"},
                    ],
                }
            ],
        }
    }
    spec = with_template(template)["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    assert volumes["roll-tmp"] == {"name": "roll-tmp", "emptyDir": {"sizeLimit": "1Gi"}}
    assert len(volumes) == len(PLAIN["spec"]["volumes"]) + 1
    assert mounts["/models"]["name"] == "models"
    assert mounts["/tmp"] == {"name": "models", "mountPath": "/tmp", "subPath": "tmp"}


def test_tolerations_are_added_to_ours() -> None:
    mine = {"key": "kwok", "operator": "Exists"}
    tolerations = with_template({"spec": {"tolerations": [mine]}})["spec"]["tolerations"]
    assert tolerations == [*PLAIN["spec"]["tolerations"], mine]


def test_pull_secrets_are_added_to_ours() -> None:
    cluster = replace(CLUSTER, pull_secrets=("ours", "both"))
    template = {"spec": {"imagePullSecrets": [{"name": "both"}, {"name": "mine"}]}}
    job = make_job({"spec.roles.inference.template": template})
    secrets = pod_of(job, "inference", cluster)["spec"]["imagePullSecrets"]
    assert [secret["name"] for secret in secrets] == ["ours", "both", "mine"]


def test_ports_are_known_by_their_number() -> None:
    ports = [{"containerPort": 9090, "name": "figures"}, {"containerPort": 8000, "name": "http"}]
    container = {"name": "inference", "ports": ports}
    spec = with_template({"spec": {"containers": [container]}})["spec"]
    names = {port["containerPort"]: port["name"] for port in spec["containers"][0]["ports"]}
    assert names == {7071: "grpc", 9090: "figures", 8000: "http"}


def test_a_spread_of_both_sides_holds_and_the_same_one_is_changed() -> None:
    soft = {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 1}
    wider = {
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "maxSkew": 3,
    }
    job = make_job(
        {
            "spec.roles.inference.placement": {"mode": "Spread"},
            "spec.roles.inference.template": {"spec": {"topologySpreadConstraints": [soft, wider]}},
        }
    )
    ours, added = pod_of(job, "inference")["spec"]["topologySpreadConstraints"]
    assert (ours["topologyKey"], ours["maxSkew"]) == ("kubernetes.io/hostname", 3)
    assert ours["labelSelector"]["matchLabels"]["roll.dev/role"] == "inference"
    assert added == soft


def test_null_removes_what_is_not_relied_on() -> None:
    pod = with_template({"spec": {"securityContext": {"fsGroup": None}}})
    assert "fsGroup" not in pod["spec"]["securityContext"]
    pod = with_template({"spec": {"containers": [{"name": "inference", "ports": None}]}})
    assert "ports" not in pod["spec"]["containers"][0]


def test_node_affinity_of_both_sides_holds() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    rack = {"key": "rack", "operator": "In", "values": ["b"]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = [{"matchExpressions": [zone]}, {"matchExpressions": [rack]}]
    job = make_job(
        {
            "spec.roles.inference.gpu": {"products": ["H100"]},
            "spec.roles.inference.template": {
                "spec": {"affinity": {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}}}
            },
        }
    )
    affinity = pod_of(job, "inference")["spec"]["affinity"]["nodeAffinity"][required]
    product = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["H100"]}
    assert affinity["nodeSelectorTerms"] == [
        {"matchExpressions": [product, zone]},
        {"matchExpressions": [product, rack]},
    ]


def test_pod_affinity_of_both_sides_holds() -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    mine = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}
    job = make_job(
        {
            "spec.roles.inference.placement": {"mode": "Pack"},
            "spec.roles.inference.template": {
                "spec": {"affinity": {"podAffinity": {required: [mine]}}}
            },
        }
    )
    terms = pod_of(job, "inference")["spec"]["affinity"]["podAffinity"][required]
    assert [term["topologyKey"] for term in terms] == ["kubernetes.io/hostname", "zone"]


def test_the_scheduler_has_a_template_too() -> None:
    job = make_job({"spec.scheduler.template": {"spec": {"nodeSelector": {"pool": "cpu"}}}})
    assert pod_of(job, "scheduler")["spec"]["nodeSelector"] == {"pool": "cpu"}
    assert "nodeSelector" not in pod_of(job, "trainer")["spec"]


def test_neither_the_pod_nor_the_template_is_changed_by_the_merge() -> None:
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "x", "env": []}]}}
    template = {"spec": {"containers": [{"name": "x", "env": [{"name": "A", "value": "b"}]}]}}
    result = merged(pod, template, frozenset())
    result["spec"]["containers"][0]["env"][0]["value"] = "changed"
    assert pod["spec"]["containers"][0]["env"] == []  # type: ignore[index]
    assert template["spec"]["containers"][0]["env"] == [{"name": "A", "value": "b"}]


def test_the_path_of_the_schedulers_template_is_its_own() -> None:
    with pytest.raises(TemplateError, match=r"^scheduler\.template\.spec: "):
        pod_of(make_job({"spec.scheduler.template": {"spec": "x"}}), "scheduler")


def test_a_rendezvous_cannot_be_moved_by_a_template() -> None:
    container = {"name": "trainer", "env": [{"name": "MASTER_ADDR", "value": "elsewhere"}]}
    pod = with_template({"spec": {"containers": [container]}}, "trainer")
    assert env_of(pod)["MASTER_ADDR"] == "sums-trainer-0.sums.team.svc"
