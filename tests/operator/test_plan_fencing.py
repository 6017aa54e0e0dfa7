"""Pods on lost nodes: first fenced, then force-deleted, then replaced; never before it is safe."""

import pytest
from roll_operator.plan import (
    FencePod,
    ForceDelete,
    Observed,
    Pod,
    PodPhase,
    Record,
    StartPod,
    StopPod,
    plan,
)
from support.plans import JOB, NOW, SITE, everything, names, pod

NAME = "sums-inference-0"


def stuck(name: str = NAME, overdue: float = 30.0, **changes: object) -> Pod:
    known = {"phase": PodPhase.STOPPING, "deletion_at": NOW - overdue, "node_ready": False}
    return pod(name, **(known | changes))


@pytest.mark.parametrize(
    ("taken", "fenced"),
    [
        (stuck(), True),
        (stuck(overdue=29.9), False),
        (stuck(node_ready=True), False),
        (stuck(phase=PodPhase.RUNNING, deletion_at=None), False),
        (stuck(phase=PodPhase.EXITED, exit_code=0, ended_at=NOW), True),
    ],
)
def test_only_what_is_overdue_on_a_lost_node_is_fenced(taken: Pod, fenced: bool) -> None:
    result = plan(JOB, Observed(everything(taken)), NOW, SITE)
    assert names(result.actions, FencePod) == ([NAME] if fenced else [])
    assert result.record.fenced == ((taken.uid,) if fenced else ())
    assert names(result.actions, ForceDelete) == []


def test_a_pod_that_is_not_overdue_yet_is_looked_at_when_it_is() -> None:
    assert plan(JOB, Observed(everything(stuck(overdue=10))), NOW, SITE).wake_at == NOW + 20


def test_force_comes_in_a_later_plan_when_the_scheduler_confirmed_the_fence() -> None:
    lost = stuck()
    first = plan(JOB, Observed(everything(lost)), NOW, SITE)
    waits = plan(JOB, Observed(everything(lost), first.record), NOW + 1, SITE)
    assert names(waits.actions, ForceDelete) == []
    assert names(waits.actions, FencePod) == [NAME]
    heard = Observed(everything(lost), first.record, fenced=frozenset({lost.uid}))
    forced = plan(JOB, heard, NOW + 2, SITE)
    assert names(forced.actions, ForceDelete) == [NAME]
    assert names(forced.actions, StartPod) == []
    gone = tuple(p for p in everything() if p.name != NAME)
    replaced = plan(JOB, Observed(gone, forced.record), NOW + 3, SITE)
    assert names(replaced.actions, StartPod) == [NAME]
    assert replaced.record.fenced == ()
    assert replaced.record.restarts == {}


@pytest.mark.parametrize(
    "scheduler",
    [
        None,
        stuck("sums-scheduler-0"),
        pod("sums-scheduler-0", node_ready=False),
        pod("sums-scheduler-0", phase=PodPhase.PENDING),
    ],
)
def test_where_no_scheduler_listens_none_has_to_confirm(scheduler: Pod | None) -> None:
    lost = stuck()
    others = [p for p in everything(lost) if p.name != "sums-scheduler-0"]
    pods = tuple(others) if scheduler is None else (*others, scheduler)
    result = plan(JOB, Observed(pods, Record(fenced=(lost.uid,))), NOW, SITE)
    assert NAME in names(result.actions, ForceDelete)


def test_a_lost_pod_does_not_keep_a_job_from_being_suspended() -> None:
    lost = stuck()
    observed = Observed((lost,), Record(fenced=(lost.uid,)), suspend=True)
    assert names(plan(JOB, observed, NOW, SITE).actions, ForceDelete) == [NAME]
    assert names(plan(JOB, observed, NOW, SITE).actions, StopPod) == []


def test_a_fence_outlives_the_return_of_the_node() -> None:
    back = stuck(node_ready=True)
    result = plan(JOB, Observed(everything(back), Record(fenced=(back.uid,))), NOW, SITE)
    assert result.record.fenced == (back.uid,)
    assert names(result.actions, ForceDelete) == []
