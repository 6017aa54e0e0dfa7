"""A template changes what a user may want changed, and nothing that the operator relies on."""

import json
from typing import Any

import pytest
from roll_api import spec_hash
from roll_operator.plan.objects import Manifest
from roll_operator.plan.objects.template import merged
from support.job_objects import env_of, make_job, pod_of

PLAIN = pod_of(make_job(), "inference")


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
        {"spec": {"containers": "all of them", "volumes": {"name": "x"}}},
        {"spec": {"containers": ["not an object", {"image": "without a name"}]}},
        {"metadata": None, "spec": None},
        {"metadata": "x", "spec": []},
        {"kind": "Deployment", "status": {"phase": "Running"}},
    ],
)  # fmt: skip
def test_what_the_operator_relies_on_stays_as_it_is(template: dict[str, Any]) -> None:
    plain, job = make_job(), make_job({"spec.roles.inference.template": template})
    text = json.dumps(pod_of(job, "inference"))

    # The template is a part of the spec, and so of its hash.
    assert json.loads(text.replace(spec_hash(job), spec_hash(plain))) == PLAIN


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


def test_null_removes_what_is_not_relied_on() -> None:
    pod = with_template({"spec": {"securityContext": {"fsGroup": None}}})
    assert "fsGroup" not in pod["spec"]["securityContext"]


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


def test_a_rendezvous_cannot_be_moved_by_a_template() -> None:
    container = {"name": "trainer", "env": [{"name": "MASTER_ADDR", "value": "elsewhere"}]}
    pod = with_template({"spec": {"containers": [container]}}, "trainer")
    assert env_of(pod)["MASTER_ADDR"] == "sums-trainer-0.sums.team.svc"
