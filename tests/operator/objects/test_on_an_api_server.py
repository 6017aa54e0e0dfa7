"""The API server's own judgement: every object is created for real, in a namespace that enforces *restricted*."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from roll_api import RLJob
from roll_cluster import ApiServer, ClusterError
from roll_operator.plan.objects import Manifest, support
from support.job_objects import CLUSTER, FULL, everything, find, make_job

pytestmark = pytest.mark.api_server

GANGS = replace(CLUSTER, pod_group_api="scheduling.k8s.io/v1alpha2")
ENFORCE = "pod-security.kubernetes.io/enforce"
THERE_ALREADY: list[Manifest] = [
    {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "team", "labels": {ENFORCE: "restricted"}},
    },
    {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high"},
        "value": 1000,
    },
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("api")) as server:
        write(server, "create", THERE_ALREADY)
        yield server


def write(api: ApiServer, verb: str, objects: list[Manifest]) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": objects}
    api.kubectl(verb, "--validate=strict", "-f", "-", stdin=json.dumps(listed))


@pytest.mark.parametrize("job", [make_job(), FULL], ids=["plain", "full"])
def test_every_object_is_admitted(api: ApiServer, job: RLJob) -> None:
    objects = everything(job, GANGS)
    write(api, "create", objects)

    mine = f"roll.dev/job={job.name}"
    found = json.loads(api.kubectl("get", "pods", "-n", "team", "-l", mine, "-o", "json"))["items"]
    wanted = {o["metadata"]["name"]: o for o in objects if o["kind"] == "Pod"}
    assert {pod["metadata"]["name"] for pod in found} == set(wanted)
    for pod in found:
        assert find(objects, "PodGroup", pod["spec"]["schedulingGroup"]["podGroupName"])
        # No token was added to those that the pod asks for.
        assert len(pod["spec"]["volumes"]) == len(
            wanted[pod["metadata"]["name"]]["spec"]["volumes"]
        )


def test_a_job_that_scales_is_applied_over_itself(api: ApiServer) -> None:
    """No object that is there already stands in the way of a change that a running job may make."""
    for replicas in (2, 5, 3):
        job = make_job({"metadata.name": "grows", "spec.roles.inference.replicas": replicas})
        write(api, "apply", support(job, GANGS))
    budget = json.loads(api.kubectl("get", "pdb", "-n", "team", "grows-inference", "-o", "json"))
    assert budget["spec"]["minAvailable"] == 2
    groups = json.loads(
        api.kubectl("get", "podgroups.scheduling.k8s.io", "-n", "team", "-o", "json")
    )["items"]
    sizes = {
        group["metadata"]["name"]: group["spec"]["schedulingPolicy"]["gang"]["minCount"]
        for group in groups
        if group["metadata"]["labels"]["roll.dev/job"] == "grows"
    }
    assert sizes == {"grows.6": 6, "grows.9": 9, "grows.7": 7}


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ({"hostNetwork": True}, 'violates PodSecurity "restricted'),
        ({"nodeSelektor": {"a": "b"}}, "unknown field"),
        ({"containers": [{"name": "sidecar", "image": "a"}]}, 'violates PodSecurity "restricted'),
    ],
)
def test_what_a_template_does_wrong_is_refused_with_its_reason(
    api: ApiServer, template: dict[str, Any], why: str
) -> None:
    job = make_job({"metadata.name": "wrong", "spec.roles.reward.template": {"spec": template}})
    write(api, "apply", support(job, CLUSTER))
    pod = find(everything(job), "Pod", "wrong-reward-0")
    with pytest.raises(ClusterError, match=why):
        write(api, "create", [pod])
