"""GPUs and placement, as the cluster's scheduler reads them."""

from typing import Any

import pytest
from roll_operator.plan.objects import Manifest
from support.job_objects import make_job, pod_of
from support.network_policy import matches

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def with_gpu(gpu: dict[str, Any] | None) -> Manifest:
    return pod_of(make_job({"spec.roles.inference.gpu": gpu}), "inference")["spec"]


def node_fits(spec: Manifest, labels: dict[str, str]) -> bool:
    """Required node affinity, as the scheduler judges it."""
    affinity = spec.get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED)
    if affinity is None:
        return True

    def holds(expression: dict[str, Any]) -> bool:
        if expression["operator"] == "Gt":
            value = labels.get(expression["key"], "")
            return value.isdigit() and int(value) > int(expression["values"][0])
        return matches({"matchExpressions": [expression]}, labels)

    return any(all(map(holds, t["matchExpressions"])) for t in affinity["nodeSelectorTerms"])


@pytest.mark.parametrize(
    ("gpu", "product", "memory", "fits"),
    [
        ({"count": 1}, "NVIDIA-A10", "24000", True),
        ({"products": ["NVIDIA-A10", "NVIDIA-L4"]}, "NVIDIA-L4", "24000", True),
        ({"products": ["NVIDIA-A10", "NVIDIA-L4"]}, "NVIDIA-T4", "16000", False),
        ({"minMemoryMiB": 24000}, "NVIDIA-L4", "24000", True),
        ({"minMemoryMiB": 24000}, "NVIDIA-L4", "23999", False),
        ({"products": ["NVIDIA-L4"], "minMemoryMiB": 24000}, "NVIDIA-L4", "24001", True),
        ({"products": ["NVIDIA-L4"], "minMemoryMiB": 24000}, "NVIDIA-T4", "24001", False),
    ],
)
def test_a_gpu_role_lands_on_the_right_nodes(
    gpu: dict[str, Any], product: str, memory: str, fits: bool
) -> None:
    labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": memory}
    assert node_fits(with_gpu(gpu), labels) is fits


def test_gpus_are_limits_and_their_taint_is_tolerated() -> None:
    spec = with_gpu({"count": 8})
    assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in spec["tolerations"]
    mounts = [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]]
    assert "/dev/shm" in mounts


def test_a_role_without_gpus_asks_for_nothing_of_the_kind() -> None:
    spec = with_gpu(None)
    assert "affinity" not in spec
    assert "nvidia" not in str(spec)


def test_a_lost_node_is_given_up_after_half_a_minute() -> None:
    seconds = {
        toleration["key"]: toleration["tolerationSeconds"]
        for toleration in with_gpu(None)["tolerations"]
    }
    assert seconds == {
        "node.kubernetes.io/not-ready": 30,
        "node.kubernetes.io/unreachable": 30,
    }


def placed(placement: dict[str, Any]) -> Manifest:
    return pod_of(make_job({"spec.roles.inference.placement": placement}), "inference")["spec"]


def test_spread_keeps_the_replicas_of_the_role_apart() -> None:
    spec = placed({"mode": "Spread", "topologyKey": "rack"})
    (constraint,) = spec["topologySpreadConstraints"]
    assert (constraint["topologyKey"], constraint["maxSkew"]) == ("rack", 1)
    assert constraint["whenUnsatisfiable"] == "DoNotSchedule"
    same = {"roll.dev/job": "sums", "roll.dev/role": "inference"}
    assert matches(constraint["labelSelector"], same)
    assert not matches(constraint["labelSelector"], same | {"roll.dev/role": "trainer"})
    assert not matches(constraint["labelSelector"], same | {"roll.dev/job": "other"})


@pytest.mark.parametrize("placement", [{}, {"topologyKey": "rack"}])
def test_without_a_mode_the_cluster_places_as_it_likes(placement: dict[str, Any]) -> None:
    assert not placed(placement).keys() & {"topologySpreadConstraints", "affinity"}


def test_pack_puts_the_replicas_of_the_role_into_one_place() -> None:
    spec = placed({"mode": "Pack", "topologyKey": "rack"})
    (term,) = spec["affinity"]["podAffinity"][REQUIRED]
    assert term["topologyKey"] == "rack"
    assert term["labelSelector"]["matchLabels"] == {
        "roll.dev/job": "sums",
        "roll.dev/role": "inference",
    }
    assert "topologySpreadConstraints" not in spec


@pytest.mark.parametrize(
    ("namespace", "labels", "kept_out"),
    [
        ("team", {"roll.dev/job": "sums"}, False),
        ("team", {"roll.dev/job": "other"}, True),
        ("team", {"app": "web"}, False),
        ("elsewhere", {"roll.dev/job": "sums"}, True),
        ("elsewhere", {"roll.dev/job": "other"}, True),
        ("elsewhere", {"app": "web"}, False),
    ],
)
def test_exclusive_keeps_pods_of_other_jobs_out(
    namespace: str, labels: dict[str, str], kept_out: bool
) -> None:
    terms = placed({"exclusive": True})["affinity"]["podAntiAffinity"][REQUIRED]

    def repels(term: dict[str, Any]) -> bool:
        selector = term.get("namespaceSelector")
        names = {"kubernetes.io/metadata.name": namespace}
        there = matches(selector, names) if selector else namespace == "team"
        return there and matches(term["labelSelector"], labels)

    assert any(map(repels, terms)) is kept_out
    assert {term["topologyKey"] for term in terms} == {"kubernetes.io/hostname"}


def test_gpus_and_placement_go_together() -> None:
    job = make_job(
        {
            "spec.roles.inference.gpu": {"products": ["NVIDIA-L4"]},
            "spec.roles.inference.placement": {"mode": "Pack", "exclusive": True},
        }
    )
    affinity = pod_of(job, "inference")["spec"]["affinity"]
    assert set(affinity) == {"nodeAffinity", "podAffinity", "podAntiAffinity"}
    assert "affinity" not in pod_of(job, "scheduler")["spec"]
