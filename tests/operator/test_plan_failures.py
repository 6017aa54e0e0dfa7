"""What the end of a pod leads to on a cluster: the job's own rules, disruptions, restarts in place, last words."""

from dataclasses import replace

import pytest
from roll_api import RLJob
from roll_operator.plan import (
    FailJob,
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
    plan,
)
from roll_operator.plan.rules import classify, rules_of
from support.plans import JOB, NOW, PLACES, SITE, everything, exited, make_job, names, pod

SCHEDULER = "sums-scheduler-0"


def job_with(*rules: dict[str, object], budget: int = 3) -> RLJob:
    return make_job(failurePolicy={"maxRestarts": budget, "rules": list(rules)})


RULES = [
    {"name": "oom", "roles": ["trainer"], "reasons": ["OOMKilled"], "action": "FailJob"},
    {"name": "poison", "exitCodes": [42], "action": "RestartRole"},
    {"name": "licence", "exitCodes": [2, 7], "roles": ["reward"], "action": "Ignore"},
    {"name": "spot", "conditions": ["DisruptionTarget"], "action": "RestartPod"},
    {"name": "never", "exitCodes": [42], "action": "FailJob"},
]


@pytest.mark.parametrize(
    ("died", "verdict", "reason"),
    [
        (exited("sums-trainer-0", 137, reasons=("OOMKilled",)), "FailJob", "oom"),
        (exited("sums-inference-0", 137, reasons=("OOMKilled",)), "Restart", "Killed"),
        (exited("sums-inference-0", 42), "RestartRole", "poison"),
        (exited("sums-reward-0", 7), "Ignore", "licence"),
        (exited("sums-reward-0", 2), "Ignore", "licence"),
        (exited("sums-environment-0", 2), "FailJob", "BadInput"),
        (
            exited("sums-reward-0", 143, conditions=frozenset({"DisruptionTarget"})),
            "Restart",
            "spot",
        ),
        (exited("sums-reward-0", 1), "Restart", "Crashed"),
    ],
)
def test_the_first_rule_that_fits_decides_and_the_jobs_own_come_first(
    died: Pod, verdict: str, reason: str
) -> None:
    rule = classify(died, rules_of(job_with(*RULES)))
    assert (rule.verdict, rule.reason) == (verdict, reason)


@pytest.mark.parametrize(
    "changes",
    [
        {"disrupted": True},
        {"conditions": frozenset({"DisruptionTarget"})},
        {"reasons": ("Evicted",)},
        {"reasons": ("Preempting",)},
        {"reasons": ("NodeLost",)},
        {"reasons": ("Error", "DeletionByTaintManager")},
        {"reasons": ("OutOfnvidia.com/gpu",)},
        {"reasons": ("Unknown",), "exit_code": 255},
        {"reasons": ("ContainerStatusUnknown",)},
        {"deletion_at": NOW},
    ],
)
def test_what_the_cluster_or_somebody_took_is_replaced_and_not_counted(
    changes: dict[str, object],
) -> None:
    name = "sums-inference-0"
    taken = replace(exited(name, 137), **changes)
    result = plan(JOB, Observed(everything(taken)), NOW, SITE)
    assert result.record.restarts == {}
    assert result.record.last_failures == {}
    assert result.record.scope(name).attempt == 1
    assert names(result.actions, RemovePod) == [name]
    assert [a.counted for a in result.actions if isinstance(a, Restarted)] == [False]


def test_a_pod_that_nodes_keep_turning_away_backs_off_uncounted() -> None:
    name = "sums-inference-0"
    record = Record(scopes={name: Scope(attempt=1, streak=1)})
    turned_away = replace(
        exited(name, 0, attempt=1, reasons=("OutOfcpu",), ran=False, started_at=0.0),
        exit_code=None,
    )
    result = plan(JOB, Observed(everything(turned_away), record), NOW, SITE)
    assert result.record.restarts == {}
    assert result.record.scope(name).not_before == NOW + 5


def test_a_process_that_never_starts_backs_off_however_long_its_pod_was_there() -> None:
    name = "sums-inference-0"
    record = Record(scopes={name: Scope(attempt=1, streak=1)})
    died = exited(name, 128, attempt=1, reasons=("StartError",), ran=False, started_at=0.0)
    result = plan(JOB, Observed(everything(died), record), NOW, SITE)
    assert result.record.restarts == {"inference": 1}
    assert result.record.scope(name).not_before == NOW + 5


def test_a_failed_job_rule_names_the_rule_and_the_last_words() -> None:
    died = exited("sums-trainer-0", 137, reasons=("OOMKilled",), message="loading 70B")
    result = plan(job_with(*RULES), Observed(everything(died)), NOW, SITE)
    assert (result.status.phase, result.status.reason) == ("Failed", "oom")
    assert result.status.message == "loading 70B"
    assert len([a for a in result.actions if isinstance(a, FailJob)]) == 1


@pytest.mark.parametrize("action", ["FailJob", "RestartRole", "RestartPod", "Ignore"])
def test_no_rule_of_the_jobs_judges_who_ended_well_before_a_scheduler_says_that_the_job_goes_on(
    action: str,
) -> None:
    job = job_with({"name": "any", "roles": ["reward"], "action": action})
    sent_home = Observed(everything(exited("sums-reward-0", 0)))
    silent = plan(job, sent_home, NOW + 60, SITE)
    assert silent.actions == ()
    assert silent.record.failure is None
    finished = replace(sent_home, record=silent.record, progress=Progress(finished=True))
    assert plan(job, finished, NOW + 61, SITE).status.phase == "Succeeded"
    goes_on = plan(job, replace(sent_home, progress=Progress()), NOW + 61, SITE)
    assert (goes_on.status.reason == "any") == (action == "FailJob")
    assert names(goes_on.actions, RemovePod)


def test_restarting_the_role_stops_its_other_pods_and_counts_once() -> None:
    died = exited("sums-inference-0", 42)
    result = plan(job_with(*RULES), Observed(everything(died)), NOW, SITE)
    assert names(result.actions, RemovePod) == ["sums-inference-0"]
    assert names(result.actions, StopPod) == ["sums-inference-1"]
    assert result.record.restarts == {"inference": 1}


def test_ignoring_restarts_without_counting_but_with_back_off() -> None:
    name = "sums-reward-0"
    record = Record(scopes={name: Scope(attempt=2, streak=2)}, recent={"reward": (NOW,) * 3})
    died = exited(name, 7, attempt=2, message="no licence")
    job = job_with(*RULES)
    result = plan(job, Observed(everything(died), record), NOW, SITE)
    assert result.record.failure is None
    assert result.record.restarts == {}
    assert result.record.scope(name).not_before == NOW + 10
    assert result.record.last_failures["reward"].message == "no licence"


def test_a_rule_does_not_judge_a_pod_that_the_operator_itself_stopped() -> None:
    job = job_with({"name": "terminated", "exitCodes": [143], "action": "FailJob"})
    record = Record(scopes={"trainer": Scope(attempt=1)})
    stopped = [exited(f"sums-trainer-{i}", 143, deletion_at=NOW) for i in (0, 1)]
    result = plan(job, Observed(everything(*stopped), record), NOW, SITE)
    assert result.record.failure is None
    assert result.record.restarts == {}


@pytest.mark.parametrize(
    ("seen", "restarts", "counted"), [(0, 0, 0), (0, 1, 1), (1, 1, 0), (1, 3, 2)]
)
def test_restarts_in_place_are_counted_once_each(seen: int, restarts: int, counted: int) -> None:
    uid = pod(SCHEDULER).uid
    record = Record(scopes={SCHEDULER: Scope(0, {SCHEDULER: uid}, in_place=seen)})
    crashed = pod(SCHEDULER, restarts=restarts, exit_code=1, message="disk full")
    result = plan(JOB, Observed(everything(crashed), record), NOW, SITE)
    assert result.record.restarts.get("scheduler", 0) == counted
    assert result.record.scope(SCHEDULER).attempt == 0
    assert names(result.actions, StopPod) == names(result.actions, StartPod) == []
    again = plan(JOB, Observed(everything(crashed), result.record), NOW + 1, SITE)
    assert again.record.restarts.get("scheduler", 0) == counted


def test_restarts_in_place_of_a_new_pod_are_counted_from_nothing() -> None:
    old = pod(SCHEDULER, restarts=2, exit_code=1)
    first = plan(JOB, Observed(everything(old)), NOW, SITE)
    assert first.record.restarts == {"scheduler": 2}
    gone = tuple(p for p in everything() if p.name != SCHEDULER)
    second = plan(JOB, Observed(gone, first.record), NOW, SITE)
    new = pod(SCHEDULER, attempt=1, restarts=1, exit_code=1)
    third = plan(JOB, Observed(everything(new), second.record), NOW, SITE)
    assert third.record.restarts == {"scheduler": 3}


def test_a_crash_loop_in_place_reaches_the_budget_and_tells_the_error() -> None:
    looping = pod(SCHEDULER, restarts=4, exit_code=1, message="ledger.sqlite is read-only")
    result = plan(JOB, Observed(everything(looping)), NOW, SITE)
    assert (result.status.phase, result.status.reason) == ("Failed", "RestartsExhausted")
    assert "ledger.sqlite is read-only" in result.status.message
    assert result.record.restarts == {"scheduler": 4}


@pytest.mark.parametrize(
    "taken",
    [
        pod(SCHEDULER, restarts=1, exit_code=1, phase=PodPhase.STOPPING, deletion_at=NOW),
        exited(SCHEDULER, 137, restarts=1, reasons=("Evicted",)),
        exited(SCHEDULER, 137, restarts=1, reasons=("ContainerStatusUnknown",)),
        exited(SCHEDULER, 137, restarts=1, conditions=frozenset({"DisruptionTarget"})),
    ],
)
def test_a_crash_before_the_pod_was_taken_away_counts_and_the_taking_does_not(taken: Pod) -> None:
    assert plan(JOB, Observed(everything(taken)), NOW, SITE).record.restarts == {"scheduler": 1}


@pytest.mark.parametrize(("code", "reason"), [(255, "Unknown"), (137, "ContainerStatusUnknown")])
def test_a_scheduler_that_came_back_with_its_node_has_not_failed(code: int, reason: str) -> None:
    """Five reboots would otherwise spend the budget of a job in which nothing ever went wrong."""
    rebooted = pod(SCHEDULER, restarts=5, exit_code=code, reasons=(reason,))
    result = plan(JOB, Observed(everything(rebooted)), NOW, SITE)
    assert result.record.failure is None
    assert result.record.restarts == result.record.last_failures == {}
    assert [a.counted for a in result.actions if isinstance(a, Restarted)] == [False]
    again = plan(JOB, Observed(everything(rebooted), result.record), NOW + 1, SITE)
    assert not [a for a in again.actions if isinstance(a, Restarted)], "one end is told once"


def test_all_pods_of_a_node_that_restarted_are_replaced_uncounted() -> None:
    job = job_with(budget=1)
    lost = [exited(name, 255, reasons=("Unknown",)) for name in PLACES if name != SCHEDULER]
    result = plan(job, Observed(everything(*lost)), NOW, SITE)
    assert result.record.failure is None
    assert result.record.restarts == {}


@pytest.mark.parametrize(
    ("streak", "ran", "wait"), [(0, 5.0, 0), (1, 5.0, 5), (3, 5.0, 20), (3, 600.0, 0)]
)
def test_a_pod_that_vanishes_again_and_again_waits_ever_longer_uncounted(
    streak: int, ran: float, wait: float
) -> None:
    name = "sums-inference-0"
    seen = Scope(1, {name: pod(name, attempt=1).uid}, streak, not_before=NOW - ran)
    gone = tuple(p for p in everything() if p.name != name)
    result = plan(JOB, Observed(gone, Record(scopes={name: seen})), NOW, SITE)
    assert result.record.restarts == {}
    assert result.record.scope(name).attempt == 2
    assert result.record.scope(name).not_before == NOW + wait
    assert names(result.actions, StartPod) == ([] if wait else [name])
    assert result.wake_at == (NOW + wait if wait else None)


def test_the_first_pod_that_vanishes_is_replaced_at_once() -> None:
    name = "sums-inference-0"
    seen = plan(JOB, Observed(everything()), NOW, SITE)
    gone = tuple(p for p in everything() if p.name != name)
    assert names(plan(JOB, Observed(gone, seen.record), NOW, SITE).actions, StartPod) == [name]


@pytest.mark.parametrize("ahead", [600.0, 3.0, -3.0])
def test_a_node_whose_clock_is_wrong_does_not_put_off_the_judgement(ahead: float) -> None:
    early = replace(exited("sums-reward-0", 0), ended_at=NOW + ahead)
    result = plan(JOB, Observed(everything(early), progress=Progress()), NOW, SITE)
    assert names(result.actions, RemovePod) == ["sums-reward-0"]
    assert result.record.restarts == {"reward": 1}


def test_a_rank_that_crashed_because_another_was_taken_away_does_not_count() -> None:
    drained = replace(exited("sums-trainer-0", 0), ended_at=NOW - 1, deletion_at=NOW)
    crashed = replace(exited("sums-trainer-1", 1), ended_at=NOW)
    result = plan(JOB, Observed(everything(drained, crashed), progress=Progress()), NOW, SITE)
    assert result.record.restarts == {}
    assert result.record.scope("trainer").attempt == 1


def test_bad_input_in_place_fails_the_job() -> None:
    bad = pod(SCHEDULER, restarts=1, exit_code=2, message="the ledger is of another job")
    result = plan(JOB, Observed(everything(bad)), NOW, SITE)
    assert (result.status.phase, result.status.reason) == ("Failed", "BadInput")


@pytest.mark.parametrize(
    ("reasons", "reason"),
    [((), "Killed"), (("Error",), "Killed"), (("OOMKilled",), "OOMKilled")],
)
def test_the_last_failure_of_a_role_stands_in_the_status(
    reasons: tuple[str, ...], reason: str
) -> None:
    died = exited("sums-reward-0", 137, reasons=reasons, message="line 1\nline 2")
    status = plan(JOB, Observed(everything(died)), NOW, SITE).status
    last = status.roles.reward.last_failure
    assert last is not None
    assert (last.uid, last.pod, last.exit_code) == (died.uid, "sums-reward-0", 137)
    assert (last.reason, last.message) == (reason, "line 1\nline 2")
    assert last.time == "1970-01-01T02:46:30Z"


def test_of_long_last_words_the_end_is_kept() -> None:
    died = exited("sums-reward-0", 1, message="x" * 100_000 + "the error")
    result = plan(JOB, Observed(everything(died)), NOW, SITE)
    kept = result.record.last_failures["reward"].message
    assert len(kept) == 2000
    assert kept.endswith("the error")


def test_a_record_that_was_lost_is_made_good_from_the_pods() -> None:
    pods = tuple(replace(p, attempt=5) for p in everything())
    result = plan(JOB, Observed(pods), NOW, SITE)
    assert names(result.actions, StopPod) == []
    assert result.record.scope("trainer").attempt == 5


def test_a_pod_that_does_not_run_yet_is_stopped_like_one_that_does() -> None:
    record = Record(scopes={"sums-reward-0": Scope(attempt=1)})
    waiting = pod("sums-reward-0", phase=PodPhase.PENDING)
    result = plan(JOB, Observed(everything(waiting), record), NOW, SITE)
    assert names(result.actions, StopPod) == ["sums-reward-0"]
