"""Who reaches whom, by the rules of NetworkPolicy; a CNI that enforces them is not needed here."""

from dataclasses import replace

import pytest
from roll_operator.plan.objects import support
from support.job_objects import CLUSTER, find, make_job, pods
from support.network_policy import End, connects, matches

JOB = make_job()
OTHER = make_job({"metadata.name": "other"})
NAMESAKE = make_job({"metadata.namespace": "elsewhere"})
POLICIES = [find(support(job, CLUSTER), "NetworkPolicy") for job in (JOB, OTHER, NAMESAKE)]


def end(job: object, role: str) -> End:
    manifest = pods(job)[f"{job.name}-{role}-0"]  # type: ignore[arg-type, attr-defined]
    return End(manifest["metadata"]["namespace"], manifest["metadata"]["labels"])


SCHEDULER, TRAINER, INFERENCE, REWARD, ENVIRONMENT = (
    end(JOB, role) for role in ("scheduler", "trainer", "inference", "reward", "environment")
)
OPERATOR = End("roll-system", dict(CLUSTER.operator_labels))
DNS = End("kube-system", {"k8s-app": "kube-dns"})
STRANGER = End("team", {"app": "notebook"})
OUTSIDE = End(address="93.184.216.34")
NODE_DNS = End(address="169.254.20.10")
API_SERVER = End(address="10.96.0.1")


@pytest.mark.parametrize(
    ("source", "target", "port", "protocol", "allowed"),
    [
        *((role, SCHEDULER, 7070, "TCP", True) for role in (TRAINER, INFERENCE, REWARD, ENVIRONMENT)),
        pytest.param(INFERENCE, TRAINER, 7071, "TCP", True, id="weights"),
        pytest.param(TRAINER, TRAINER, 29500, "TCP", True, id="rendezvous"),
        pytest.param(TRAINER, TRAINER, 43117, "TCP", True, id="collectives choose their ports"),
        pytest.param(REWARD, DNS, 53, "UDP", True, id="DNS"),
        pytest.param(REWARD, DNS, 53, "TCP", True, id="DNS, long answers"),
        pytest.param(REWARD, NODE_DNS, 53, "UDP", True, id="DNS on the node"),
        pytest.param(REWARD, DNS, 443, "TCP", False, id="the DNS server by another port"),
        pytest.param(REWARD, NODE_DNS, 80, "TCP", False, id="a cloud's metadata service"),
        pytest.param(REWARD, OUTSIDE, 443, "TCP", False, id="the world"),
        pytest.param(REWARD, OUTSIDE, 53, "UDP", False, id="somebody else's DNS"),
        pytest.param(REWARD, API_SERVER, 443, "TCP", False, id="the API server"),
        pytest.param(REWARD, OPERATOR, 8080, "TCP", False, id="the operator"),
        pytest.param(REWARD, STRANGER, 80, "TCP", False, id="a stranger in the namespace"),
        pytest.param(STRANGER, SCHEDULER, 7070, "TCP", False, id="a stranger to the scheduler"),
        pytest.param(STRANGER, INFERENCE, 7071, "TCP", False, id="a stranger to a worker"),
        pytest.param(OUTSIDE, SCHEDULER, 7070, "TCP", False, id="the world to the scheduler"),
        pytest.param(OPERATOR, SCHEDULER, 7070, "TCP", True, id="the operator to the scheduler"),
        pytest.param(OPERATOR, SCHEDULER, 9090, "TCP", False, id="the operator elsewhere"),
        pytest.param(
            replace(OPERATOR, namespace="team"), SCHEDULER, 7070, "TCP", False, id="a false operator"
        ),
        pytest.param(end(OTHER, "reward"), SCHEDULER, 7070, "TCP", False, id="another job"),
        pytest.param(REWARD, end(OTHER, "scheduler"), 7070, "TCP", False, id="to another job"),
        pytest.param(end(NAMESAKE, "reward"), SCHEDULER, 7070, "TCP", False, id="a namesake"),
    ],
)  # fmt: skip
def test_a_role_reaches_its_own_job_and_the_dns_and_nobody_else(
    source: End, target: End, port: int, protocol: str, allowed: bool
) -> None:
    assert connects(POLICIES, source, target, port, protocol) is allowed


def test_metrics_are_for_the_namespaces_that_were_named() -> None:
    scraper = End("monitoring", {"app": "prometheus"})
    assert not connects(POLICIES, scraper, REWARD, 9090)
    told = replace(CLUSTER, metrics_namespaces=("monitoring",))
    policies = [find(support(JOB, told), "NetworkPolicy")]
    assert connects(policies, scraper, REWARD, 9090)
    assert not connects(policies, scraper, REWARD, 7071)


def test_the_service_names_all_pods_of_the_job_and_no_others() -> None:
    service = find(support(JOB, CLUSTER), "Service")["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    selector = {"matchLabels": service["selector"]}
    assert all(matches(selector, pod["metadata"]["labels"]) for pod in pods(JOB).values())
    assert not any(matches(selector, pod["metadata"]["labels"]) for pod in pods(OTHER).values())


def test_the_budget_covers_inference_alone_and_follows_its_scale() -> None:
    def budget(replicas: int) -> list[object]:
        job = make_job({"spec.roles.inference.replicas": replicas})
        found = [o for o in support(job, CLUSTER) if o["kind"] == "PodDisruptionBudget"]
        covered = [
            name
            for name, pod in pods(job).items()
            if found and matches(found[0]["spec"]["selector"], pod["metadata"]["labels"])
        ]
        return [*(o["spec"]["minAvailable"] for o in found), len(covered)]

    assert budget(1) == [0]
    assert budget(2) == [1, 2]
    assert budget(5) == [4, 5]
