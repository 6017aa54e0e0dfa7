"""Runs of a job: suspend and resume, restart.id, deadlines, stalls, the spec of record, and what is left at the end."""

from dataclasses import replace

import pytest
from roll_api import RLJob, spec_hash
from roll_api import job as job_module
from roll_operator.plan import (
    Announce,
    DeleteJob,
    Held,
    Observed,
    Pod,
    PodPhase,
    Progress,
    Record,
    RemovePod,
    Restarted,
    Scope,
    StartPod,
    StopPod,
    doubtful,
    plan,
)
from support.plans import JOB, NOW, PLACES, SITE, everything, exited, make_job, names, pod, ready

CLUSTER = replace(SITE, keeps_ended=True)
WORKERS = [name for name in PLACES if name != "sums-scheduler-0"]


def with_policy(**policy: object) -> RLJob:
    return make_job(runPolicy=policy)


def test_a_job_of_another_controller_is_left_alone() -> None:
    job = make_job(managedBy="kueue.x-k8s.io/multikueue")
    result = plan(job, Observed(everything(exited("sums-reward-0", 1))), NOW, SITE)
    assert result.actions == ()
    assert result.record == Record()
    ours = make_job(managedBy="roll.dev/operator")
    assert len(names(plan(ours, Observed(), NOW, SITE).actions, StartPod)) == 7


# Suspend, resume, begin again.


def test_a_resumed_job_begins_a_new_run_that_forgives() -> None:
    ran = Record(
        scopes={"trainer": Scope(3, streak=4, not_before=NOW + 300)},
        restarts={"trainer": 3},
        recent={"trainer": (NOW, NOW, NOW)},
        was_running=True,
        started_at=NOW - 500,
    )
    suspended = plan(JOB, Observed((), ran, suspend=True), NOW, SITE)
    assert suspended.status.phase == "Suspended"
    assert suspended.done
    resumed = plan(JOB, Observed((), suspended.record, status=suspended.status), NOW + 9, SITE)
    assert len(names(resumed.actions, StartPod)) == 7
    assert resumed.record.scope("trainer") == Scope(4)
    assert resumed.record.restarts == {"trainer": 3}
    assert resumed.record.recent == {}
    assert resumed.record.started_at == NOW + 9
    assert resumed.status.phase == "Pending"


def test_a_suspend_that_is_taken_back_too_late_lets_all_pods_go_first() -> None:
    began = plan(JOB, Observed(everything(), suspend=True), NOW, SITE)
    some = tuple(p for p in everything() if p.role in ("scheduler", "trainer"))
    back = plan(JOB, Observed(some, began.record), NOW + 1, SITE)
    assert names(back.actions, StartPod) == []
    assert names(back.actions, StopPod) == ["sums-trainer-0", "sums-trainer-1"]
    fresh = plan(JOB, Observed((), back.record), NOW + 2, SITE)
    assert {a.attempt for a in fresh.actions if isinstance(a, StartPod)} == {1}


@pytest.mark.parametrize("policy", ["Running", "All", "None"])
def test_a_suspended_job_gives_back_every_pod_whatever_the_clean_up(policy: str) -> None:
    pods = everything(*(exited(name, 0) for name in WORKERS))
    job = with_policy(cleanPodPolicy=policy)
    result = plan(job, Observed(pods, suspend=True), NOW, CLUSTER)
    assert names(result.actions, RemovePod) == WORKERS
    assert names(result.actions, StopPod) == ["sums-scheduler-0"]
    assert not result.done


def test_an_ended_job_stays_ended_when_suspended_and_resumed() -> None:
    ended = Record(finished=True, restart_id="")
    suspended = plan(JOB, Observed((), ended, suspend=True), NOW, SITE)
    assert suspended.status.phase == "Succeeded"
    resumed = plan(JOB, Observed((), suspended.record), NOW, SITE)
    assert resumed.status.phase == "Succeeded"
    assert names(resumed.actions, StartPod) == []


def test_a_job_that_finishes_while_it_is_being_suspended_has_ended_for_good() -> None:
    job = with_policy(ttlSecondsAfterFinished=60)
    stopping = plan(job, Observed(everything(), suspend=True), NOW, CLUSTER)
    last_word = Observed(everything(), stopping.record, Progress(finished=True), suspend=True)
    finished = plan(job, last_word, NOW + 1, CLUSTER)
    assert (finished.status.phase, finished.record.closing) == ("Succeeded", False)
    resumed = plan(job, Observed((), finished.record), NOW + 9, CLUSTER)
    assert (resumed.status.phase, resumed.actions) == ("Succeeded", ())
    later = plan(job, Observed((), finished.record, suspend=True), NOW + 61, CLUSTER)
    assert [type(action) for action in later.actions] == [DeleteJob]


def test_a_job_that_finishes_while_it_is_being_restarted_begins_again() -> None:
    job = make_job(restart={"id": "again"})
    began = plan(JOB, Observed(everything()), NOW, SITE)
    last_word = Observed(everything(), began.record, Progress(finished=True))
    stopping = plan(job, last_word, NOW, SITE)
    fresh = plan(job, Observed((), stopping.record), NOW + 1, SITE)
    assert {a.attempt for a in fresh.actions if isinstance(a, StartPod)} == {1}


@pytest.mark.parametrize(
    "ended", [{}, {"finished": True}, {"failure": {"reason": "BadInput", "message": "no"}}]
)
def test_another_restart_id_begins_again_whatever_has_become_of_the_job(
    ended: dict[str, object],
) -> None:
    job = make_job(restart={"id": "again"})
    record = replace(plan(JOB, Observed(everything()), NOW, SITE).record, was_running=True)
    if "failure" in ended:
        bad = exited("sums-reward-0", 2)
        record = plan(JOB, Observed(everything(bad), record), NOW, SITE).record
    record = replace(record, finished="finished" in ended)
    progress = Progress(finished="finished" in ended)
    first = plan(job, Observed(everything(), record, progress), NOW, CLUSTER)
    assert sorted(names(first.actions, StopPod)) == sorted(WORKERS)
    assert {a.grace for a in first.actions if isinstance(a, StopPod)} == {15.0, 60.0}
    fresh = plan(job, Observed((), first.record, progress), NOW, CLUSTER)
    assert {a.attempt for a in fresh.actions if isinstance(a, StartPod)} == {1}
    assert fresh.status.phase == "Pending"
    settled = plan(job, Observed((), fresh.record), NOW, CLUSTER)
    assert {a.attempt for a in settled.actions if isinstance(a, StartPod)} == {1}


def test_a_job_that_is_made_with_a_restart_id_is_not_restarted() -> None:
    job = make_job(restart={"id": "first"})
    first = plan(job, Observed(), NOW, SITE)
    assert {a.attempt for a in first.actions if isinstance(a, StartPod)} == {0}
    assert plan(job, Observed(everything(), first.record), NOW, SITE).actions == ()


# Images.

FIRST = replace(CLUSTER, scheduler_image="operator:1", worker_image="worker:1")
UPGRADED = replace(CLUSTER, scheduler_image="operator:2", worker_image="worker:2")


def run(tag: str, *gone: str) -> tuple[Pod, ...]:
    """All pods with the images of one operator, but for those that are gone."""
    kinds = {True: f"operator:{tag}", False: f"worker:{tag}"}
    there = (p for p in everything() if p.name not in gone)
    return tuple(replace(p, image=kinds[p.role == "scheduler"]) for p in there)


def images(actions: object) -> dict[str, str]:
    return {a.name: a.image for a in actions if isinstance(a, StartPod)}  # type: ignore[attr-defined]


def test_a_run_keeps_its_images_and_the_next_one_takes_up_the_operators() -> None:
    began = plan(JOB, Observed(), NOW, FIRST)
    assert images(began.actions) == {p.name: p.image for p in run("1")}
    left = run("1", "sums-reward-0", "sums-scheduler-0")
    later = plan(JOB, Observed(left, began.record), NOW, UPGRADED)
    assert images(later.actions) == {
        "sums-scheduler-0": "operator:1",
        "sums-reward-0": "worker:1",
    }
    suspended = plan(JOB, Observed((), later.record, suspend=True), NOW, UPGRADED)
    resumed = plan(JOB, Observed((), suspended.record), NOW, UPGRADED)
    assert images(resumed.actions) == {p.name: p.image for p in run("2")}
    job = make_job(restart={"id": "again"})
    again = plan(job, Observed((), later.record), NOW, UPGRADED)
    assert images(again.actions) == {p.name: p.image for p in run("2")}


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        (["sums-reward-0"], {"sums-reward-0": "worker:1"}),
        (["sums-scheduler-0"], {"sums-scheduler-0": "operator:2"}),
        (
            [name for name in WORKERS if name != "sums-reward-0"],
            {name: "worker:1" for name in WORKERS if name != "sums-reward-0"},
        ),
        (WORKERS, dict.fromkeys(WORKERS, "worker:2")),
    ],
)
def test_where_no_images_are_recorded_those_of_the_pods_that_are_there_are_the_runs(
    gone: list[str], expected: dict[str, str]
) -> None:
    result = plan(JOB, Observed(run("1", *gone), Record()), NOW, UPGRADED)
    assert images(result.actions) == expected


def test_an_image_that_a_role_has_from_its_template_is_not_for_other_roles() -> None:
    template = {"spec": {"containers": [{"name": "environment", "image": "games:7"}]}}
    roles = {"trainer": {}, "inference": {"replicas": 2}, "reward": {}}
    job = make_job(roles=roles | {"environment": {"template": template}})
    others = [p for p in run("1") if p.role in ("scheduler", "inference")]
    games = replace(pod("sums-environment-0"), image="games:7")
    result = plan(job, Observed((games, *others)), NOW, UPGRADED)
    assert images(result.actions) == {"sums-trainer-0": "worker:1", "sums-reward-0": "worker:1"}


def test_a_job_with_an_image_of_its_own_keeps_it_while_it_runs() -> None:
    mine = make_job(image="mine:1")
    began = plan(mine, Observed(), NOW, FIRST)
    assert {i for n, i in images(began.actions).items() if n in WORKERS} == {"mine:1"}
    changed = make_job(image="mine:2")
    left = run("1", "sums-reward-0")
    later = plan(changed, Observed(left, began.record, job_of_record=mine), NOW, UPGRADED)
    assert images(later.actions) == {"sums-reward-0": "mine:1"}


def test_no_images_are_recorded_of_a_job_that_has_ended() -> None:
    ended = Record(finished=True, restart_id="", ended_at=NOW)
    assert plan(JOB, Observed((), ended), NOW, UPGRADED).record.scheduler_image == ""


# Deadlines.


@pytest.mark.parametrize(
    ("policy", "was_running", "late", "reason"),
    [
        ({"activeDeadlineSeconds": 60}, True, 60, "DeadlineExceeded"),
        ({"activeDeadlineSeconds": 60}, False, 60, "DeadlineExceeded"),
        ({"activeDeadlineSeconds": 60}, True, 59, None),
        ({"preRunningDeadlineSeconds": 60}, False, 60, "NotReadyInTime"),
        ({"preRunningDeadlineSeconds": 60}, False, 59, None),
        ({"preRunningDeadlineSeconds": 60}, True, 9999, None),
        ({}, True, 9999, None),
    ],
)
def test_a_run_that_outlasts_its_deadline_fails(
    policy: dict[str, object], was_running: bool, late: float, reason: str | None
) -> None:
    record = Record(started_at=NOW - late, was_running=was_running)
    result = plan(with_policy(**policy), Observed(everything(), record), NOW, SITE)
    assert result.status.reason == (reason or "")
    assert (result.status.phase == "Failed") == (reason is not None)
    if reason is None and policy and not was_running:
        assert result.wake_at == NOW - late + 60


@pytest.mark.parametrize(
    "policy", [{"activeDeadlineSeconds": 60}, {"preRunningDeadlineSeconds": 60}]
)
def test_no_deadline_runs_while_a_queue_holds_all_pods_back(policy: dict[str, object]) -> None:
    job = with_policy(**policy)
    gated = tuple(
        replace(p, phase=PodPhase.PENDING, pending=("SchedulingGated", "")) for p in everything()
    )
    first = plan(job, Observed(), NOW, SITE)
    waits = plan(job, Observed(gated, first.record), NOW + 3600, SITE)
    assert waits.status.phase == "Starting"
    assert waits.wake_at is None
    admitted = (replace(gated[0], pending=None), *gated[1:])
    begins = plan(job, Observed(admitted, waits.record), NOW + 7200, SITE)
    assert begins.wake_at == NOW + 7260
    late = plan(job, Observed(admitted, begins.record), NOW + 7260, SITE)
    assert late.status.phase == "Failed"


def test_a_job_that_was_not_ready_in_time_tells_what_it_waited_for() -> None:
    stuck = pod("sums-reward-0", phase=PodPhase.PENDING, pending=("ErrImagePull", "no such image"))
    job = with_policy(preRunningDeadlineSeconds=60)
    result = plan(job, Observed(everything(stuck), Record(started_at=NOW - 60)), NOW, SITE)
    assert "runPolicy.preRunningDeadlineSeconds" in result.status.message
    assert "ErrImagePull: sums-reward-0: no such image" in result.status.message


@pytest.mark.parametrize(
    ("end", "progress", "doubt"),
    [
        (exited("sums-reward-0", 0), Progress(), True),
        (exited("sums-reward-0", 0), Progress(finished=True), False),
        (exited("sums-reward-0", 0), None, False),
        (exited("sums-reward-0", 1), Progress(), False),
        (pod("sums-reward-0"), Progress(), False),
    ],
)
def test_who_ended_well_may_know_more_than_the_last_report(
    end: Pod, progress: Progress | None, doubt: bool
) -> None:
    """The scheduler tells its workers at once that the job is over, the operator with its next report."""
    assert doubtful(everything(end), progress) is doubt


# Stalls.

STALL = with_policy(progressDeadlineSeconds=100)
HELD = Held("sums-inference-1", "12/3", "generate@policy", 130.0)


def silent(**changes: object) -> Observed:
    pods = everything()
    progress = replace(ready(*pods), last_progress_at=NOW - 100, held=HELD)
    record = Record(ready_since=NOW - 100, was_running=True)
    return replace(Observed(pods, record, progress), **changes)


def test_a_stalled_job_names_role_pod_and_sample_and_restarts_what_holds_it_up() -> None:
    result = plan(STALL, silent(), NOW, SITE)
    stalled = next(c for c in result.status.conditions if c.type == "Stalled")
    assert stalled.status == "True"
    assert "inference pod sums-inference-1" in stalled.message
    assert "sample 12/3" in stalled.message
    assert names(result.actions, StopPod) == ["sums-inference-1"]
    assert result.record.restarts == {"inference": 1}
    assert result.status.roles.inference.last_failure is not None
    assert result.status.roles.inference.last_failure.reason == "Stalled"


def test_a_stall_without_a_leased_sample_is_the_trainers() -> None:
    progress = silent().progress
    assert progress is not None
    result = plan(STALL, silent(progress=replace(progress, held=None)), NOW, SITE)
    assert names(result.actions, StopPod) == ["sums-trainer-0", "sums-trainer-1"]
    assert result.record.restarts == {"trainer": 1}


def test_a_process_that_stands_still_and_does_not_end_is_a_stall_too() -> None:
    """Stopped by a signal, or in a dead lock: its pod runs, its stream is gone, and so is what it held."""
    frozen = pod("sums-inference-0", started_at=NOW - 100)
    heard = ready(*(p for p in everything() if p.name != frozen.name))
    progress = replace(heard, last_progress_at=NOW - 100)
    result = plan(
        STALL,
        silent(pods=everything(frozen), record=Record(was_running=True), progress=progress),
        NOW,
        SITE,
    )
    assert names(result.actions, StopPod) == ["sums-inference-0"]
    assert result.record.stalled is not None
    assert (
        "pod sums-inference-0 runs, and the scheduler hears nothing"
        in result.record.stalled.message
    )
    loads = everything(pod("sums-inference-0", started_at=NOW - 99))
    earlier = silent(pods=loads, record=Record(was_running=True), progress=progress)
    assert plan(STALL, earlier, NOW, SITE).record.stalled is None


@pytest.mark.parametrize(
    "observed",
    [
        silent(progress=None),
        silent(record=Record(ready_since=NOW - 99, was_running=True)),
        silent(progress=replace(ready(*everything()), last_progress_at=NOW - 99)),
        silent(pods=everything(pod("sums-reward-0", phase=PodPhase.PENDING))),
    ],
)
def test_what_is_no_stall(observed: Observed) -> None:
    """The scheduler is away, pods came back a moment ago, something happened, or a pod is missing."""
    result = plan(STALL, observed, NOW, SITE)
    assert result.record.restarts == {}
    assert result.record.stalled is None


def test_a_stall_is_over_with_the_next_progress_and_its_clock_starts_anew() -> None:
    first = plan(STALL, silent(), NOW, SITE)
    same = plan(STALL, silent(record=first.record), NOW + 99, SITE)
    assert same.record.restarts == {"inference": 1}
    progress = replace(ready(*everything()), last_progress_at=NOW + 10)
    over = plan(STALL, silent(record=first.record, progress=progress), NOW + 11, SITE)
    assert over.record.stalled is None
    stalled = next(c for c in over.status.conditions if c.type == "Stalled")
    assert stalled.status == "False"


def test_a_rule_may_let_a_stalled_job_fail() -> None:
    rule = {"name": "stuck", "reasons": ["Stalled"], "action": "FailJob"}
    job = make_job(runPolicy={"progressDeadlineSeconds": 100}, failurePolicy={"rules": [rule]})
    result = plan(job, silent(), NOW, SITE)
    assert (result.status.phase, result.status.reason) == ("Failed", "stuck")
    assert not [a for a in result.actions if isinstance(a, Restarted)]


# The spec of record.


def edited(**changes: object) -> RLJob:
    roles = JOB.spec.roles.model_dump()
    inference = {**roles["inference"], **changes}
    return make_job(roles={**roles, "inference": inference})


def running(job: RLJob = JOB) -> Observed:
    pods = tuple(replace(p, spec_hash=spec_hash(job)) for p in everything())
    record = plan(job, Observed(pods), NOW, SITE).record
    return Observed(pods, record, ready(*pods), job_of_record=job)


def condition(observed: Observed, job: RLJob, kind: str) -> str:
    conditions = plan(job, observed, NOW, SITE).status.conditions
    return next(c.status for c in conditions if c.type == kind)


def test_a_template_that_changes_while_the_job_runs_alters_no_pod_and_says_suspend_first() -> None:
    changed = edited(template={"spec": {"priority": 1}})
    observed = running()
    result = plan(changed, observed, NOW, SITE)
    assert [a for a in result.actions if isinstance(a, StartPod | StopPod | RemovePod)] == []
    assert condition(observed, changed, "SpecChangePending") == "True"
    assert result.record.spec_hash == spec_hash(JOB)
    lost = tuple(p for p in observed.pods if p.name != "sums-inference-0")
    replaced = plan(changed, replace(observed, pods=lost), NOW, SITE)
    assert names(replaced.actions, StartPod) == ["sums-inference-0"]
    assert replaced.job is not None
    assert replaced.job.spec.roles.inference.template == {}


def test_a_suspended_and_resumed_job_takes_up_the_whole_spec() -> None:
    changed = edited(template={"spec": {"priority": 1}})
    observed = replace(running(), suspend=True, pods=())
    suspended = plan(changed, observed, NOW, SITE)
    assert condition(observed, changed, "SpecChangePending") == "False"
    resumed = plan(changed, Observed((), suspended.record, job_of_record=JOB), NOW, SITE)
    assert resumed.record.spec_hash == spec_hash(changed)
    assert resumed.job == changed


def test_replicas_take_effect_beside_a_change_that_is_pending() -> None:
    changed = edited(replicas=3, template={"spec": {"priority": 1}})
    result = plan(changed, running(), NOW, SITE)
    assert names(result.actions, StartPod) == ["sums-inference-2"]
    assert result.record.spec_hash == spec_hash(JOB)


def test_budgets_take_effect_at_once_and_leave_the_pods_alone() -> None:
    changed = make_job(failurePolicy={"maxRestarts": 0})
    observed = running()
    assert plan(changed, observed, NOW, SITE).actions == ()
    assert condition(observed, changed, "SpecChangePending") == "False"
    pods = tuple(replace(p, phase=PodPhase.EXITED, exit_code=1) if p.role == "reward" else p
                 for p in observed.pods)  # fmt: skip
    assert plan(changed, replace(observed, pods=pods), NOW, SITE).status.phase == "Failed"


def test_other_steps_replace_the_trainers_and_then_the_scheduler_uncounted() -> None:
    more = make_job(steps=20)
    observed = running()
    first = plan(more, observed, NOW, SITE)
    assert names(first.actions, StopPod) == ["sums-trainer-0", "sums-trainer-1"]
    assert {a.grace for a in first.actions if isinstance(a, StopPod)} == {60.0}
    assert first.record.spec_hash == spec_hash(more)
    without = tuple(p for p in observed.pods if p.role != "trainer")
    second = plan(more, replace(observed, pods=without, record=first.record), NOW, SITE)
    assert names(second.actions, StopPod) == ["sums-scheduler-0"]
    assert names(second.actions, StartPod) == []
    workers = tuple(p for p in without if p.role != "scheduler")
    third = plan(more, replace(observed, pods=workers, record=second.record), NOW, SITE)
    assert names(third.actions, StartPod) == [
        "sums-scheduler-0",
        "sums-trainer-0",
        "sums-trainer-1",
    ]
    assert third.record.restarts == {}


def test_an_inference_place_that_is_scaled_away_and_back_is_a_new_attempt() -> None:
    observed = running()
    fewer = edited(replicas=1)
    first = plan(fewer, observed, NOW, SITE)
    assert names(first.actions, StopPod) == ["sums-inference-1"]
    left = tuple(p for p in observed.pods if p.name != "sums-inference-1")
    second = plan(fewer, replace(observed, pods=left, record=first.record), NOW, SITE)
    assert second.actions == ()
    assert second.status.ready == "trainer 2/2, inference 1/1, reward 1/1, environment 1/1"
    third = plan(JOB, replace(observed, pods=left, record=second.record), NOW, SITE)
    started = [(a.name, a.attempt) for a in third.actions if isinstance(a, StartPod)]
    assert started == [("sums-inference-1", 1)]
    assert third.record.restarts == {}
    assert not [a for a in third.actions if isinstance(a, Announce)], "nobody took it"


def test_a_place_that_returns_while_its_last_pod_still_leaves_is_filled_when_it_is_gone() -> None:
    observed = running()
    first = plan(edited(replicas=1), observed, NOW, SITE)
    leaves = pod("sums-inference-1", phase=PodPhase.STOPPING, deletion_at=NOW + 15)
    meanwhile = replace(observed, pods=everything(leaves), record=first.record)
    second = plan(JOB, meanwhile, NOW + 1, SITE)
    assert second.actions == ()
    left = tuple(p for p in observed.pods if p.name != "sums-inference-1")
    third = plan(JOB, replace(observed, pods=left, record=second.record), NOW + 2, SITE)
    assert names(third.actions, StartPod) == ["sums-inference-1"]
    assert not [a for a in third.actions if isinstance(a, Announce)], "nobody took it"


# The end.

ENDED = Progress(finished=True)


@pytest.mark.parametrize(
    ("policy", "stopped", "removed"),
    [
        ("Running", [n for n in WORKERS if n != "sums-reward-0"], []),
        ("All", [n for n in WORKERS if n != "sums-reward-0"], ["sums-reward-0"]),
        ("None", [], []),
    ],
)
def test_what_is_removed_at_the_end(policy: str, stopped: list[str], removed: list[str]) -> None:
    pods = everything(exited("sums-reward-0", 0))
    result = plan(with_policy(cleanPodPolicy=policy), Observed(pods, progress=ENDED), NOW, CLUSTER)
    assert names(result.actions, StopPod) == stopped
    assert names(result.actions, RemovePod) == removed
    assert result.done == (policy == "None")


def test_ended_pods_that_are_kept_for_their_logs_do_not_hold_up_the_end() -> None:
    pods: tuple[Pod, ...] = tuple(exited(name, 0) for name in WORKERS)
    result = plan(JOB, Observed(pods, progress=ENDED), NOW, CLUSTER)
    assert result.done
    assert result.status.completion_time is not None
    assert result.actions == ()


@pytest.mark.parametrize(("ttl", "passed", "deleted"), [(60, 60, 1), (60, 59, 0), (0, 0, 1)])
def test_an_ended_job_is_deleted_when_its_time_is_over(
    ttl: int, passed: float, deleted: int
) -> None:
    job = with_policy(ttlSecondsAfterFinished=ttl)
    record = Record(finished=True, ended_at=NOW - passed)
    result = plan(job, Observed((), record), NOW, CLUSTER)
    assert len([a for a in result.actions if isinstance(a, DeleteJob)]) == deleted
    if not deleted:
        assert result.wake_at == NOW + 1


@pytest.mark.parametrize("policy", ["Running", "All"])
def test_side_cars_do_not_outlive_the_job(policy: str) -> None:
    job = with_policy(cleanPodPolicy=policy)
    pods = everything(*(exited(name, 0, lingers=True) for name in WORKERS))
    result = plan(job, Observed(pods, Record(finished=True)), NOW, CLUSTER)
    assert sorted(names(result.actions, StopPod)) == sorted(PLACES)
    assert not result.done


@pytest.mark.parametrize("record", [Record(), Record(closing=True)])
def test_a_job_that_has_not_ended_is_never_deleted(record: Record) -> None:
    job = with_policy(ttlSecondsAfterFinished=0)
    result = plan(job, Observed((), record, suspend=True), NOW, CLUSTER)
    assert [a for a in result.actions if isinstance(a, DeleteJob)] == []


def test_a_pod_that_was_surplus_when_it_was_first_seen_is_not_begun_again() -> None:
    fewer = edited(replicas=1)
    first = plan(fewer, Observed(everything()), NOW, SITE)
    left = tuple(p for p in everything() if p.name != "sums-inference-1")
    more = plan(JOB, Observed(left, first.record), NOW, SITE)
    assert [a.attempt for a in more.actions if isinstance(a, StartPod)] == [1]


def test_a_newer_operator_that_names_the_same_spec_otherwise_restarts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = tuple(replace(p, spec_hash=spec_hash(JOB)) for p in everything())
    record = plan(JOB, Observed(older), NOW, SITE).record
    told_spec = job_module.told_spec
    monkeypatch.setattr(job_module, "told_spec", lambda job: told_spec(job) | {"new": "default"})
    job, of_record = JOB.model_copy(), JOB.model_copy()
    assert spec_hash(job) != spec_hash(JOB)

    one_is_new = (replace(older[0], spec_hash=spec_hash(job)), *older[1:])
    for pods in (older, one_is_new):
        result = plan(job, Observed(pods, record, job_of_record=of_record), NOW, SITE)
        assert not [a for a in result.actions if isinstance(a, StopPod)]
        assert result.record.spec_hash == record.spec_hash, "their ConfigMap has this name"
