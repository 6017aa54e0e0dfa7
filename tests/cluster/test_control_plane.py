"""Jobs whose workers only wait: what the operator, the API server and the cluster make of them."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from roll_cluster import ClusterError
from roll_cluster.project import NAMESPACE as OPERATOR_NAMESPACE
from roll_cluster.settings import NODE
from support.kubernetes import Kubernetes, Manifest, eventually
from support.rljobs import ROLES, Job, operator_pod, waiting

KINDS = (
    "rljobs,pods,services,configmaps,secrets,serviceaccounts,persistentvolumeclaims,"
    "poddisruptionbudgets,networkpolicies,podgroups.scheduling.k8s.io"
)


def node(name: str, **metadata: Any) -> Manifest:
    """A Node object that no kubelet stands behind."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **metadata}}


def report_ready(cluster: Kubernetes, name: str, **resources: str) -> None:
    """What a kubelet says every few seconds. A node of which it is not repeated is lost after 20 s."""
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", **resources}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    ready["lastHeartbeatTime"] = now
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    change = json.dumps({"status": status})
    cluster("patch", "node", name, "--subresource=status", "--type=merge", "-p", change)


@pytest.fixture
def ghost(operator: Kubernetes) -> Iterator[str]:
    name = "ghost"
    operator("delete", "node", name, "--ignore-not-found")
    yield name
    operator("delete", "node", name, "--ignore-not-found")


def test_every_object_of_a_job_is_its_own_and_says_so(operator: Kubernetes, namespace: str) -> None:
    job = Job.apply(operator, namespace, waiting("sums", roles={"inference": {"replicas": 2}}))
    job.until_pods_run(6)
    owner = job.object()["metadata"]["uid"]
    listed = operator.get(KINDS.removeprefix("rljobs,"), "-n", namespace, "-l", "roll.dev/job=sums")
    kinds = {item["kind"] for item in listed["items"]}
    assert kinds == {
        *("Pod", "Service", "ConfigMap", "Secret", "ServiceAccount", "PersistentVolumeClaim"),
        *("PodDisruptionBudget", "NetworkPolicy", "PodGroup"),
    }
    for item in listed["items"]:
        (reference,) = item["metadata"]["ownerReferences"]
        assert (reference["uid"], reference["controller"]) == (owner, True)
        assert item["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "roll-operator"


def test_scale_changes_the_inference_pods(operator: Kubernetes, namespace: str) -> None:
    job = Job.apply(operator, namespace, waiting("sums"))
    job.until_pods_run(5)
    before = {name: pod["metadata"]["uid"] for name, pod in job.pods().items()}
    job.kubectl("scale", "rljob", "sums", "--replicas=3")
    job.until_pods_run(7)
    assert {"sums-inference-1", "sums-inference-2"} == job.pods().keys() - before.keys()
    job.kubectl("scale", "rljob", "sums", "--replicas=1")
    eventually("two are gone", lambda: job.pods().keys() == before.keys())
    assert {name: pod["metadata"]["uid"] for name, pod in job.pods().items()} == before
    scale = json.loads(
        operator(
            "get", "--raw", f"/apis/roll.dev/v1alpha1/namespaces/{namespace}/rljobs/sums/scale"
        )
    )
    assert scale["spec"]["replicas"] == 1
    assert scale["status"]["selector"] == "roll.dev/job=sums,roll.dev/role=inference"


def test_suspend_takes_the_pods_and_resume_brings_others(
    operator: Kubernetes, namespace: str
) -> None:
    job = Job.apply(operator, namespace, waiting("sums"))
    job.until_pods_run(5)
    before = {pod["metadata"]["uid"] for pod in job.pods().values()}
    job.patch({"suspend": True})
    job.until_phase("Suspended")
    assert job.pods() == {}
    job.patch({"suspend": False})
    job.until_pods_run(5)
    assert before.isdisjoint(pod["metadata"]["uid"] for pod in job.pods().values())
    assert job.restarts() == {}


@pytest.fixture
def no_operator(operator: Kubernetes) -> Iterator[None]:
    """Gone once the test asks; there again after it."""
    yield
    operator("scale", "deployment/roll-operator", "-n", OPERATOR_NAMESPACE, "--replicas=1")
    operator("rollout", "status", "deployment/roll-operator", "-n", OPERATOR_NAMESPACE)


def test_deleted_while_the_operator_is_down_it_leaves_nothing(
    operator: Kubernetes, namespace: str, no_operator: None
) -> None:
    job = Job.apply(operator, namespace, waiting("sums", storage={"size": "1Gi"}))
    job.until_pods_run(5)
    name = operator_pod(operator)["metadata"]["name"]
    operator("scale", "deployment/roll-operator", "-n", OPERATOR_NAMESPACE, "--replicas=0")
    operator("wait", "--for=delete", f"pod/{name}", "-n", OPERATOR_NAMESPACE, "--timeout=60s")
    job.kubectl("delete", "rljob", "sums", "--timeout=20s")

    def left() -> list[str]:
        listed = operator.get(KINDS, "-n", namespace)["items"]
        names = [f"{item['kind']}/{item['metadata']['name']}" for item in listed]
        return [n for n in names if n.partition("/")[2].startswith("sums")]

    eventually("nothing is left", lambda: not left() or None, 90)


def test_a_pod_on_a_lost_node_is_fenced_and_replaced(
    operator: Kubernetes, namespace: str, ghost: str
) -> None:
    prefer = {
        "weight": 100,
        "preference": {
            "matchExpressions": [{"key": "test/ghost", "operator": "In", "values": [namespace]}]
        },
    }
    wish = {
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [prefer]}},
        "tolerations": [{"key": "test/ghost", "operator": "Exists"}],
    }
    operator.apply(node(ghost, labels={"test/ghost": namespace}))
    operator("taint", "node", ghost, "test/ghost=:NoSchedule")  # one pod only is to land there
    report_ready(operator, ghost)
    eventually(
        "the ghost takes pods", lambda: len(operator.get("node", ghost)["spec"]["taints"]) == 1
    )
    job = Job.apply(
        operator, namespace, waiting("sums", roles={"reward": {"template": {"spec": wish}}})
    )
    eventually("its pods are placed", lambda: job.pod("reward")["spec"].get("nodeName"))
    assert job.pod("reward")["spec"]["nodeName"] == ghost
    eventually("the ghost is lost", lambda: ready_of(operator.get("node", ghost)) == "Unknown")
    stuck = job.uid("reward")
    with job.watched(".status.record.fenced") as fenced:
        job.kubectl("delete", "pod", "sums-reward-0", "--grace-period=1", "--wait=false")
        assert job.uid("reward") == stuck  # nobody confirms its end
        eventually("it is replaced", lambda: job.uid("reward") not in ("", stuck), 90)
        eventually("on a real node", lambda: job.pod("reward")["spec"].get("nodeName") == NODE)
    assert f'["{stuck}"]' in fenced
    assert (job.role("reward")["attempt"], job.restarts()) == (1, {})


def ready_of(found: Manifest) -> str:
    conditions = found["status"].get("conditions", [])
    return next((str(c["status"]) for c in conditions if c["type"] == "Ready"), "")


H100 = "NVIDIA-H100-80GB-HBM3"
GPU = {"count": 2, "products": [H100], "minMemoryMiB": 80_000}
OTHERS = [role for role in ("scheduler", *ROLES) if role != "inference"]

AddNode = Callable[[str, str, int], None]


@pytest.fixture
def gpu_node(operator: Kubernetes) -> Iterator[AddNode]:
    """Adds a node with eight GPUs, tainted so that nothing else lands there, and Ready until the test ends."""
    names: list[str] = []
    over = threading.Event()

    def report() -> None:
        while not over.wait(3):
            for name in tuple(names):
                with suppress(ClusterError):  # it is said again soon
                    report_ready(operator, name, **{"nvidia.com/gpu": "8"})

    def add(name: str, product: str, memory: int) -> None:
        operator("delete", "node", name, "--ignore-not-found")
        labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": str(memory)}
        operator.apply(node(name, labels=labels))
        operator("taint", "node", name, "nvidia.com/gpu=present:NoSchedule")
        names.append(name)
        eventually(f"{name} takes pods", lambda: takes_gpu_pods(operator, name))

    kubelet = threading.Thread(target=report)
    kubelet.start()
    yield add
    over.set()
    kubelet.join()
    operator("delete", "node", "--ignore-not-found", *names)


def takes_gpu_pods(cluster: Kubernetes, name: str) -> bool:
    """Ready, and with the one taint that a pod with GPUs tolerates."""
    found = cluster.get("node", name)
    taints = [taint["key"] for taint in found["spec"].get("taints", [])]
    return ready_of(found) == "True" and taints == ["nvidia.com/gpu"]


def test_a_job_waits_as_one_for_its_gpus_and_lands_where_they_are(
    operator: Kubernetes, namespace: str, gpu_node: AddNode
) -> None:
    gpu_node("other-product", "NVIDIA-A100-SXM4-80GB", 81_920)
    gpu_node("less-memory", H100, 40_960)
    gpus = {"inference": {"gpu": GPU}}
    gang = Job.apply(operator, namespace, waiting("gang", roles=gpus))
    waits = "Unschedulable: gang-inference-0: 0/3 nodes are available"
    gang.until(waits, lambda status: status.get("pendingReason", "").startswith(waits))

    # The same job without a gang: what becomes of pods that wait for nobody.
    alone = waiting("alone", roles=gpus, scheduling={"gang": "Never"})
    scattered = Job.apply(operator, namespace, alone)
    eventually("those without a gang have nodes", lambda: nodes_of(scattered, *OTHERS) == {NODE})
    assert nodes_of(scattered, "inference") == {None}
    groups = [pod["spec"].get("schedulingGroup") for pod in gang.pods().values()]
    assert groups == [{"podGroupName": "gang.5"}] * 5
    assert nodes_of(gang, "inference", *OTHERS) == {None}, "some of a gang did not wait for all"

    gpu_node("right", H100, 81_559)
    for job in (gang, scattered):
        eventually(
            f"all of {job.name} are placed",
            lambda job=job: None not in nodes_of(job, "inference", *OTHERS),
        )
        assert (nodes_of(job, "inference"), nodes_of(job, *OTHERS)) == ({"right"}, {NODE})
    for decoy in ("other-product", "less-memory"):
        assert takes_gpu_pods(operator, decoy), "it could not have been taken anyhow"


def nodes_of(job: Job, *roles: str) -> set[str | None]:
    """Where the pods of these roles are; None: one has no node yet."""
    pods = job.pods()
    named = [pods.get(f"{job.name}-{role}-0") for role in roles]
    return {pod["spec"].get("nodeName") if pod else None for pod in named}


def test_an_image_that_does_not_exist_is_named(operator: Kubernetes, namespace: str) -> None:
    roles = {role: {"replicas": 1} for role in ROLES}
    manifest = waiting("sums")
    manifest["spec"] |= {"image": "localhost/no-such-image:1", "roles": roles}
    job = Job.apply(operator, namespace, manifest)
    job.until(
        "names the image",
        lambda status: (
            "ImagePull" in status.get("pendingReason", "")
            and "no-such-image" in status["pendingReason"]
        ),
    )
    assert job.status()["phase"] == "Starting"


def test_a_crash_loop_spends_its_budget_and_fails_the_job(
    operator: Kubernetes, namespace: str
) -> None:
    crash = ["bash", "-c", "echo no such scorer >&2; exit 7"]
    policy = {"maxRestarts": 2, "backoffSeconds": 1, "backoffMaxSeconds": 1}
    manifest = waiting("sums", {"reward": crash}, failurePolicy=policy)
    job = Job.apply(operator, namespace, manifest)
    eventually("Failed", lambda: job.status().get("phase") == "Failed", 90)
    eventually("its pods are gone", lambda: not _alive(job))
    status = job.status()
    last = status["roles"]["reward"]["lastFailure"]
    assert status["reason"] == "RestartsExhausted"
    assert "sums-reward-0" in status["message"] and "no such scorer" in status["message"]
    assert (last["exitCode"], last["message"]) == (7, "no such scorer")
    assert job.restarts() == {"reward": 2}
    failed = {c["type"]: c["status"] for c in status["conditions"]}["Failed"]
    assert failed == "True"


def _alive(job: Job) -> list[str]:
    pods = job.pods().items()
    return [n for n, pod in pods if pod["status"]["phase"] not in ("Failed", "Succeeded")]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"steps": 0}, "spec.steps"),
        ({"stepz": 3}, "spec.stepz"),
        ({"model": {}}, "spec.model.path"),
        ({"roles": {"inference": {"replicas": 0}}}, "spec.roles.inference"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_job_is_refused_with_the_fields_name(
    operator: Kubernetes, namespace: str, change: Manifest, field: str
) -> None:
    manifest = waiting("sums")
    manifest["spec"] |= change
    place = f"/apis/roll.dev/v1alpha1/namespaces/{namespace}/rljobs?fieldValidation=Strict"
    with pytest.raises(ClusterError) as refused:  # by the server: kubectl's own words differ
        operator("create", "--raw", place, "-f", "-", stdin=json.dumps(manifest))
    assert field in str(refused.value)


def test_what_may_not_change_while_it_runs_is_refused(operator: Kubernetes, namespace: str) -> None:
    job = Job.apply(operator, namespace, waiting("sums"))
    with pytest.raises(ClusterError) as refused:
        job.patch({"rollout": {"late": "Drop"}})
    assert "spec.rollout" in str(refused.value)
    assert "suspend: true first" in str(refused.value)
