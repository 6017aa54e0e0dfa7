"""What a job reports: readiness by role, progress, obstacles, conditions, Events at transitions; all of it bounded."""

import json
from dataclasses import replace

import pytest
from roll_api import JobStatus
from roll_operator.plan import (
    Announce,
    Failure,
    Observed,
    Pod,
    PodPhase,
    Progress,
    Record,
    Scope,
    plan,
    processes,
    read_record,
    ready_count,
    write_record,
)
from support.plans import JOB, NOW, SITE, everything, exited, make_job, pod, ready

GATED = ("SchedulingGated", "scheduling is blocked due to non-empty scheduling gates")
UNSCHEDULABLE = ("Unschedulable", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
PULL = ("ImagePullBackOff", 'Back-off pulling image "nowhere/worker:1"')
VOLUME = ("Volume", 'persistentvolumeclaim "sums-storage" not found')
GANG = ("Unschedulable", "pod group is unschedulable, waiting for minCount pods from a gang")
QUOTA = ("Quota", "exceeded quota: pods=4, used: 4, limited: 4")


def waiting(name: str, pending: tuple[str, str], **changes: object) -> Pod:
    return pod(name, phase=PodPhase.PENDING, pending=pending, **changes)


def conditions(status: JobStatus) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in status.conditions}


def test_readiness_is_told_by_role_and_in_one_figure() -> None:
    pods = everything(pod("sums-inference-1", phase=PodPhase.PENDING))
    observed = Observed(pods, progress=ready(*pods))
    status = plan(JOB, observed, NOW, SITE).status
    assert status.ready == "trainer 2/2, inference 1/2, reward 1/1, environment 1/1"
    assert ready_count(processes(JOB, observed, Record())) == "6/7"


def test_a_role_without_processes_is_not_named() -> None:
    job = make_job(pipeline="SFT", rewards=[], roles={"trainer": {"replicas": 2}})
    assert plan(job, Observed(), NOW, SITE).status.ready == "trainer 0/2"


@pytest.mark.parametrize(
    ("step", "rate", "percent", "eta"),
    [(0, 0.0, 0, None), (3, 25.6, 30, 70), (10, 25.6, 100, 0), (11, 25.6, 100, 0)],
)
def test_progress_has_percent_and_time_left(
    step: int, rate: float, percent: int, eta: int | None
) -> None:
    job = make_job(rollout={"groupsPerStep": 32, "groupSize": 8})
    metrics = {"actor/loss": 0.5, "broken": float("nan")}
    progress = Progress(step=step, samples_per_second=rate, metrics=metrics)
    told = plan(job, Observed(everything(), progress=progress), NOW, SITE).status.progress
    assert (told.step, told.steps, told.percent, told.eta_seconds) == (step, 10, percent, eta)
    assert told.metrics == {"actor/loss": 0.5}


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), 1e-320])
def test_whatever_the_scheduler_reports_the_status_fits_the_contract(broken: float) -> None:
    progress = Progress(
        step=3,
        reward=broken,
        validation=(broken, broken),
        samples_per_second=broken,
        staleness_mean=broken,
        dropped={f"failed.{i}": i for i in range(100)},
        metrics={f"metric {i}": broken for i in range(100)},
        error="x" * 100_000,
        ledger_lost="x" * 100_000,
    )
    result = plan(JOB, Observed(everything(), progress=progress), NOW, SITE)
    told = result.status.model_dump(mode="json", by_alias=True, exclude_none=True)

    text = json.dumps(told | {"record": write_record(result.record)}, allow_nan=False)

    JobStatus.model_validate(json.loads(text))
    assert len(text) < 20_000


def test_figures_stay_while_the_scheduler_does_not_answer() -> None:
    first = plan(JOB, Observed(everything(), progress=Progress(step=3)), NOW, SITE)
    later = plan(JOB, Observed(everything(), first.record, status=first.status), NOW, SITE)
    assert later.status.step == 3
    assert later.status.progress == first.status.progress
    assert conditions(later.status)["SchedulerReachable"] == ("False", "NoAnswer")


@pytest.mark.parametrize(
    ("pods", "refused", "reason"),
    [
        ((), {}, ""),
        (
            (waiting("sums-trainer-0", UNSCHEDULABLE),),
            {},
            f"Unschedulable: sums-trainer-0: {UNSCHEDULABLE[1]}",
        ),
        (
            (waiting("sums-trainer-0", UNSCHEDULABLE), waiting("sums-reward-0", PULL)),
            {},
            f"ImagePullBackOff: sums-reward-0: {PULL[1]}",
        ),
        (
            (waiting("sums-trainer-0", UNSCHEDULABLE),),
            {"sums-reward-0": QUOTA},
            f"Quota: sums-reward-0: {QUOTA[1]}",
        ),
        (
            (waiting("sums-trainer-0", VOLUME),),
            {"sums-reward-0": QUOTA},
            f"Volume: sums-trainer-0: {VOLUME[1]}",
        ),
        (
            (pod("sums-scheduler-0", pending=("CrashLoopBackOff", "back-off 40s")),),
            {"sums-reward-0": QUOTA},
            "CrashLoopBackOff: sums-scheduler-0: back-off 40s",
        ),
        (
            (waiting("sums-reward-0", GANG), waiting("sums-trainer-0", UNSCHEDULABLE)),
            {},
            f"Unschedulable: sums-trainer-0: {UNSCHEDULABLE[1]}",
        ),
        ((waiting("sums-reward-0", ("Unschedulable", "x" * 9999)),), {}, None),
    ],
)
def test_the_worst_obstacle_is_told_in_the_clusters_own_words(
    pods: tuple[Pod, ...], refused: dict[str, tuple[str, str]], reason: str | None
) -> None:
    status = plan(JOB, Observed(everything(*pods), refused=refused), NOW, SITE).status
    if reason is None:
        assert len(status.pending_reason) == 1000
    else:
        assert status.pending_reason == reason


ALL_READY = {
    "Queued": ("False", "Admitted"),
    "PodsScheduled": ("True", "Scheduled"),
    "PodsReady": ("True", "AllReady"),
    "SchedulerReachable": ("True", "Answers"),
    "Running": ("True", "Running"),
    "Stalled": ("False", "Progressing"),
    "Degraded": ("False", "AllServe"),
    "Suspended": ("False", "NotSuspended"),
    "SpecChangePending": ("False", "UpToDate"),
    "LedgerLost": ("False", "LedgerKept"),
    "Complete": ("False", "Running"),
    "Failed": ("False", "NotFailed"),
}
RAN = Record(was_running=True)


@pytest.mark.parametrize(
    ("observed", "told"),
    [
        (Observed(everything(), progress=ready(*everything())), {}),
        (
            Observed(everything(waiting("sums-reward-0", GATED, scheduled=False))),
            {"Queued": ("True", "WaitingForQueue"), "PodsScheduled": ("False", "SchedulingGated")},
        ),
        (
            Observed(everything(waiting("sums-reward-0", UNSCHEDULABLE, scheduled=False))),
            {"PodsScheduled": ("False", "Unschedulable"), "PodsReady": ("False", "NotReady")},
        ),
        (
            Observed(everything(), RAN, ready(*everything()[1:])),
            {"Degraded": ("False", "AllServe"), "Running": ("True", "Running")},
        ),
        (
            Observed(everything(exited("sums-reward-0", 1)), RAN, ready(*everything())),
            {"Degraded": ("True", "PodsMissing"), "Running": ("False", "Recovering")},
        ),
        (Observed((), RAN, suspend=True), {"Suspended": ("True", "Suspended")}),
        (Observed((), RAN, Progress(finished=True)), {"Complete": ("True", "Succeeded")}),
        (
            Observed(everything(exited("sums-reward-0", 2)), RAN),
            {"Failed": ("True", "BadInput"), "Complete": ("False", "Failed")},
        ),
        (
            Observed(
                everything(), RAN, replace(ready(*everything()), ledger_lost="its volume is gone")
            ),
            {"LedgerLost": ("True", "LedgerLost")},
        ),
        (
            Observed(everything(), replace(RAN, stalled=Failure("Stalled", "who"))),
            {"Stalled": ("True", "NoProgress")},
        ),
    ],
)
def test_conditions_have_a_reason_each(
    observed: Observed, told: dict[str, tuple[str, str]]
) -> None:
    found = conditions(plan(JOB, observed, NOW, SITE).status)
    assert found.keys() == ALL_READY.keys()
    assert all(reason for _, reason in found.values())
    assert {kind: found[kind] for kind in told} == told
    if not told:
        assert found == ALL_READY


def test_a_lost_ledger_is_not_forgotten_with_the_next_look() -> None:
    first = plan(
        JOB, Observed(everything(), progress=Progress(ledger_lost="its volume is gone")), NOW, SITE
    )
    later = plan(JOB, Observed(everything(), first.record, status=first.status), NOW, SITE)
    assert conditions(later.status)["LedgerLost"] == ("True", "LedgerLost")


@pytest.mark.parametrize(
    ("storage", "reason"),
    [
        ({"size": "10Gi"}, "LedgerKept"),
        ({"size": "10Gi", "ledger": "EmptyDir"}, "LedgerOnPodDisk"),
        ({"uri": "s3://bucket/prefix"}, "LedgerOnPodDisk"),
        ({"uri": "s3://bucket/prefix", "ledger": "Claim"}, "LedgerKept"),
    ],
)
def test_a_ledger_that_a_lost_pod_takes_along_is_told_before(
    storage: dict[str, str], reason: str
) -> None:
    status = plan(make_job(storage=storage), Observed(everything()), NOW, SITE).status
    (told,) = (c for c in status.conditions if c.type == "LedgerLost")
    assert (told.status, told.reason) == ("False", reason)
    assert ("storage.ledger: Claim" in told.message) == (reason == "LedgerOnPodDisk")


def test_autoscalers_are_told_which_pods_are_inference() -> None:
    status = plan(JOB, Observed(everything()), NOW, SITE).status
    assert status.inference_selector == "roll.dev/job=sums,roll.dev/role=inference"


# Events.


def events(before: Observed, after: Observed) -> list[tuple[str, str]]:
    first = plan(JOB, before, NOW, SITE)
    second = replace(after, status=first.status)
    third = plan(JOB, second, NOW + 1, SITE)
    told = [(a.type, a.reason) for a in third.actions if isinstance(a, Announce)]
    same = plan(JOB, replace(second, record=third.record, status=third.status), NOW + 2, SITE)
    assert [a for a in same.actions if isinstance(a, Announce)] == [], "once"
    return told


PENDING = Observed(everything(*(pod(p.name, phase=PodPhase.PENDING) for p in everything())))
SERVING = Observed(everything(), RAN, ready(*everything()))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (SERVING, SERVING, []),
        (PENDING, SERVING, [("Normal", "Running")]),
        (SERVING, Observed((), RAN, suspend=True), [("Normal", "Suspended")]),
        (Observed((), RAN, suspend=True), Observed((), RAN), [("Normal", "Resumed")]),
        (SERVING, Observed((), RAN, Progress(finished=True)), [("Normal", "Succeeded")]),
        (
            SERVING,
            Observed(everything(exited("sums-reward-0", 2)), RAN, ready(*everything())),
            [("Warning", "BadInput")],
        ),
        (
            SERVING,
            Observed(everything(exited("sums-reward-0", 1)), RAN, ready(*everything())),
            [("Warning", "PodRestart")],
        ),
        (
            SERVING,
            Observed(
                everything(exited("sums-reward-0", 1, disrupted=True)), RAN, ready(*everything())
            ),
            [("Normal", "PodRestart")],
        ),
        (PENDING, replace(PENDING, refused={"sums-reward-0": QUOTA}), [("Warning", "Quota")]),
        (SERVING, replace(SERVING, progress=None), [("Warning", "SchedulerUnreachable")]),
        (
            SERVING,
            replace(SERVING, progress=replace(ready(*everything()), ledger_lost="gone")),
            [("Warning", "LedgerLost")],
        ),
    ],
)
def test_an_event_is_told_once_at_a_transition(
    before: Observed, after: Observed, told: list[tuple[str, str]]
) -> None:
    assert events(before, after) == told


def test_other_words_for_the_same_obstacle_are_no_new_event() -> None:
    other = ("Quota", "exceeded quota: pods=5")
    before = replace(PENDING, refused={"sums-reward-0": QUOTA})
    assert events(before, replace(PENDING, refused={"sums-reward-0": other})) == []


def test_a_kubelet_that_tries_to_pull_and_waits_by_turns_is_told_once() -> None:
    def stuck(kind: str) -> Observed:
        waits = pod("sums-reward-0", phase=PodPhase.PENDING, pending=(kind, "no such image"))
        return replace(PENDING, pods=everything(waits))

    tries, waits = stuck("ErrImagePull"), stuck("ImagePullBackOff")
    assert events(PENDING, tries) == [("Warning", "ErrImagePull")]
    assert events(tries, waits) == events(waits, tries) == []
    assert events(waits, stuck("InvalidImageName")) == [("Warning", "InvalidImageName")]


def test_a_pod_that_somebody_took_is_told() -> None:
    seen = plan(JOB, Observed(everything()), NOW, SITE)
    gone = tuple(p for p in everything() if p.name != "sums-reward-0")
    result = plan(JOB, Observed(gone, seen.record), NOW, SITE)
    assert [(a.reason, a.message) for a in result.actions if isinstance(a, Announce)] == [
        ("PodTaken", "sums-reward-0 was taken away by somebody and is replaced now, uncounted")
    ]


def test_an_event_fits_into_kubernetes_limit() -> None:
    died = exited("sums-reward-0", 1, message="é" * 9000)
    result = plan(JOB, Observed(everything(died)), NOW, SITE)
    told = [a.message for a in result.actions if isinstance(a, Announce)]
    assert told
    assert all(len(message.encode()) <= 1024 for message in told)


# The record.


def test_a_record_survives_the_way_through_the_status() -> None:
    record = Record(
        scopes={"trainer": Scope(2, {"sums-trainer-0": "u"}, 1, NOW), "sums-scheduler-0": Scope()},
        restarts={"trainer": 2},
        recent={"trainer": (NOW - 1, NOW)},
        last_failures={"trainer": Failure("Killed", "words", "sums-trainer-0", "u", 137, NOW, 1)},
        failure=Failure("BadInput", "no"),
        closing=True,
        restart_id="",
        stalled=Failure("Stalled", "who"),
        fenced=("u",),
    )
    assert read_record(write_record(record)) == record
    assert read_record(None) == Record() == read_record(write_record(Record()))
    assert write_record(Record()) == {}
    assert read_record({"ofANewerOperator": 1}) == Record()


def test_the_record_of_the_largest_job_fits_into_an_object() -> None:
    """An etcd object has 1.5 MB, managed fields included."""
    roles = {name: {"replicas": 200} for name in ("inference", "reward", "environment")}
    job = make_job(roles={"trainer": {"replicas": 2}, **roles}, failurePolicy={"maxRestarts": 1000})
    record = Record(
        recent=dict.fromkeys(("inference", "trainer"), (NOW,) * 1000),
        last_failures={"trainer": Failure("x", "y" * 2000)},
    )
    started = plan(job, Observed(record=record), NOW, SITE)
    pods = tuple(
        Pod(a.name, a.role, a.index, a.uid, 0, PodPhase.RUNNING)  # type: ignore[union-attr]
        for a in started.actions
    )
    seen = plan(job, Observed(pods, started.record), NOW, SITE)
    assert len(str(write_record(seen.record))) < 300_000


def test_times_that_the_budget_no_longer_sees_leave_the_record() -> None:
    old = Record(recent={"reward": (NOW - 7200,) * 900})
    result = plan(JOB, Observed(everything(exited("sums-reward-0", 1)), old), NOW, SITE)
    assert result.record.recent == {"reward": (NOW,)}
