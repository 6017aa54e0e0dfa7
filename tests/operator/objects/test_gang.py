"""Gangs and queues: who waits for whom."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from roll_api import RLJob
from roll_operator.plan.objects import Manifest, gang, support
from support.job_objects import CLUSTER, everything, make_job, pods

IN_TREE = ("scheduling.k8s.io/v1alpha2", "scheduling.k8s.io/v1alpha3", "scheduling.k8s.io/v1beta1")
COSCHEDULING = "scheduling.x-k8s.io/v1alpha1"
VOLCANO = "scheduling.volcano.sh/v1beta1"
EVERY = (*IN_TREE, COSCHEDULING, VOLCANO)

RANKS = {"spec.roles.trainer": {"replicas": 2}, "spec.storage": {"claim": "shared"}}


def sizes(job: RLJob, api: str) -> dict[str, int]:
    groups = [
        o for o in support(job, replace(CLUSTER, pod_group_api=api)) if o["kind"] == "PodGroup"
    ]
    assert all(group["apiVersion"] == api for group in groups)
    return {group["metadata"]["name"]: size(group["spec"]) for group in groups}


def size(spec: dict[str, Any]) -> int:
    count: int = (
        spec["minMember"] if "minMember" in spec else spec["schedulingPolicy"]["gang"]["minCount"]
    )
    return count


def group_of(pod: Manifest) -> str | None:
    """By the field, label or annotation of whichever scheduler."""
    found = [
        pod["spec"].get("schedulingGroup", {}).get("podGroupName"),
        pod["metadata"]["labels"].get("scheduling.x-k8s.io/pod-group"),
        pod["metadata"]["annotations"].get("scheduling.k8s.io/group-name"),
    ]
    names = [name for name in found if name]
    assert len(names) <= 1
    return names[0] if names else None


def members(job: RLJob, api: str, *, starting: bool) -> Counter[str | None]:
    there = pods(job, replace(CLUSTER, pod_group_api=api), starting=starting)
    return Counter(group_of(pod) for pod in there.values())


@pytest.mark.parametrize("api", EVERY)
@pytest.mark.parametrize("change", [{}, {"spec.roles.inference.replicas": 5}, RANKS])
def test_a_run_starts_as_one_gang_of_all_its_pods(api: str, change: dict[str, Any]) -> None:
    job = make_job(change)
    (together,) = members(job, api, starting=True).items()
    assert together == (next(iter(sizes(job, api))), len(pods(job)))
    assert sizes(job, api)[together[0] or ""] == len(pods(job))


@pytest.mark.parametrize("api", EVERY)
def test_a_pod_that_is_replaced_in_a_running_job_waits_for_nobody(api: str) -> None:
    assert members(make_job(), api, starting=False) == {None: 6}


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ((), True),
        (((False, "sums.6"), (False, "sums.6")), True),  # the operator was cut off in between
        (((True, "sums.6"), (False, "sums.6")), False),  # the gang has its nodes
        (((False, "sums.5"),) * 5, False),  # a gang of another size waits
        (((True, ""),), False),
    ],
)
def test_who_comes_after_the_start_waits_for_nobody(
    others: tuple[tuple[bool, str], ...], expected: bool
) -> None:
    cluster = replace(CLUSTER, pod_group_api=IN_TREE[0])
    assert gang.gathers(make_job(), cluster, others) is expected


@pytest.mark.parametrize("api", EVERY)
def test_a_pod_tells_its_group(api: str) -> None:
    there = pods(make_job(), replace(CLUSTER, pod_group_api=api), starting=True)
    assert {gang.group_of(pod) for pod in there.values()} == set(sizes(make_job(), api))


@pytest.mark.parametrize("api", EVERY)
def test_ranks_that_restart_together_are_a_gang_again(api: str) -> None:
    job = make_job(RANKS)
    found = members(job, api, starting=False)
    (name,) = (group for group in found if group)
    assert found == {name: 2, None: 5}
    assert sizes(job, api)[name] == 2


@pytest.mark.parametrize("api", EVERY)
def test_a_job_that_scales_changes_the_size_of_its_gang(api: str) -> None:
    small, large = (
        sizes(make_job({"spec.roles.inference.replicas": replicas}), api) for replicas in (2, 3)
    )
    assert list(small.values()) == [6]
    assert list(large.values()) == [7]
    # What cannot be changed is another object.
    assert (small.keys() == large.keys()) is (api != "scheduling.k8s.io/v1alpha2")


@pytest.mark.parametrize("api", EVERY)
def test_gangs_of_jobs_with_similar_names_are_different_objects(api: str) -> None:
    one = sizes(make_job(RANKS), api)
    other = sizes(make_job(RANKS | {"metadata.name": "sums-trainer"}), api)
    assert not one.keys() & other.keys()


@pytest.mark.parametrize("job", [make_job({"spec.scheduling.gang": "Never"}), make_job(RANKS | {"spec.scheduling.gang": "Never"})])  # fmt: skip
def test_a_job_may_do_without(job: RLJob) -> None:
    assert sizes(job, IN_TREE[0]) == {}
    assert members(job, IN_TREE[0], starting=True) == {None: len(pods(job))}


@pytest.mark.parametrize("api", [None, "scheduling.example/v1"])
def test_a_cluster_without_gangs_gets_none(api: str | None) -> None:
    objects = everything(make_job(), replace(CLUSTER, pod_group_api=api))
    assert not [o for o in objects if o["kind"] == "PodGroup"]
    assert not [o for o in objects if o["kind"] == "Pod" and (group_of(o) or "schedulerName" in o["spec"])]  # fmt: skip


@pytest.mark.parametrize(
    ("api", "given", "scheduler"),
    [
        (IN_TREE[0], None, None),
        (COSCHEDULING, None, "scheduler-plugins-scheduler"),
        (COSCHEDULING, "default-scheduler", "default-scheduler"),
        (VOLCANO, None, "volcano"),
    ],
)
def test_members_go_to_the_scheduler_that_reads_their_group(
    api: str, given: str | None, scheduler: str | None
) -> None:
    cluster = replace(CLUSTER, pod_group_api=api, pod_group_scheduler=given)
    for starting in (True, False):
        for pod in pods(make_job(), cluster, starting=starting).values():
            assert pod["spec"].get("schedulerName") == scheduler


QUEUED = make_job(RANKS | {"spec.scheduling.queue": "team-a"})


def test_kueue_finds_the_same_queue_group_and_size_on_every_pod() -> None:
    there = pods(QUEUED)
    seen = {
        (
            pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"],
            pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"],
            pod["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"],
        )
        for pod in there.values()
    }
    assert seen == {("team-a", "sums", str(len(there)))}


def test_a_replacement_belongs_to_the_same_group_of_kueue() -> None:
    def marks(pod: Manifest) -> dict[str, str]:
        marked = pod["metadata"]["labels"] | pod["metadata"]["annotations"]
        return {key: value for key, value in marked.items() if key.startswith("kueue")}

    first, later = pods(QUEUED), pods(QUEUED, starting=False, attempt=4)
    assert all(marks(first[name]) == marks(later[name]) for name in first)


def test_kueue_counts_each_role_for_itself() -> None:
    counts = Counter(
        pod["metadata"]["annotations"]["kueue.x-k8s.io/role-hash"] for pod in pods(QUEUED).values()
    )
    assert counts == {"scheduler": 1, "trainer": 2, "inference": 2, "reward": 1, "environment": 1}
    assert len(counts) <= 8  # more pod sets Kueue does not take


def test_a_group_can_be_replaced_pod_by_pod_and_is_never_judged_by_its_first_pod() -> None:
    for pod in pods(QUEUED).values():
        assert "kueue.x-k8s.io/retriable-in-group" not in pod["metadata"]["annotations"]
        assert "kueue.x-k8s.io/pod-group-fast-admission" not in pod["metadata"]["annotations"]


def test_without_a_queue_kueue_has_no_part_in_it() -> None:
    assert "kueue" not in str(everything(make_job()))
