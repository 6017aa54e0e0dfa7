"""The planner, row by row: what is there, what has to happen."""

from dataclasses import replace

import pytest
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
    next_run,
    plan,
    processes,
)
from roll_operator.plan.desired import desired_pods, environment, threads, uid_of
from roll_operator.plan.restarts import HEALTHY_SECONDS, back_off
from roll_operator.plan.rules import classify
from support.plans import JOB, NOW, PLACES, SITE, everything, exited, make_job, names, pod, ready


def test_a_new_job_starts_the_scheduler_and_every_replica_under_stable_names() -> None:
    result = plan(JOB, Observed(), NOW, SITE)
    assert names(result.actions, StartPod) == [
        "sums-scheduler-0",
        "sums-trainer-0",
        "sums-trainer-1",
        "sums-inference-0",
        "sums-inference-1",
        "sums-reward-0",
        "sums-environment-0",
    ]
    assert result.status.phase == "Pending"
    assert not result.done


def test_the_same_facts_give_the_same_plan() -> None:
    observed = Observed(pods=everything(exited("sums-reward-0", 1)))
    assert plan(JOB, observed, NOW, SITE) == plan(JOB, observed, NOW, SITE)


def test_a_complete_job_needs_nothing() -> None:
    pods = everything()
    result = plan(JOB, Observed(pods, progress=ready(*pods)), NOW, SITE)
    assert result.actions == ()
    assert result.status.phase == "Running"
    assert result.status.ready == "trainer 2/2, inference 2/2, reward 1/1, environment 1/1"


@pytest.mark.parametrize(
    ("name", "role", "removed", "stopped"),
    [
        ("sums-inference-1", "inference", ["sums-inference-1"], []),
        ("sums-reward-0", "reward", ["sums-reward-0"], []),
        ("sums-environment-0", "environment", ["sums-environment-0"], []),
        ("sums-scheduler-0", "scheduler", ["sums-scheduler-0"], []),
        ("sums-trainer-1", "trainer", ["sums-trainer-1"], ["sums-trainer-0"]),
    ],
)
def test_a_death_restarts_its_scope_only_and_is_counted_in_the_same_plan(
    name: str, role: str, removed: list[str], stopped: list[str]
) -> None:
    pods = everything(exited(name, 137))
    result = plan(JOB, Observed(pods), NOW, SITE)
    assert names(result.actions, RemovePod) == removed
    assert names(result.actions, StopPod) == stopped
    assert names(result.actions, StartPod) == []
    assert result.record.restarts == {role: 1}
    assert getattr(result.status.roles, role).restarts == 1
    assert [a.role for a in result.actions if isinstance(a, Restarted)] == [role]

    # The operator dies here and comes back: the record is written, the pods are as they were.
    again = plan(JOB, Observed(pods, result.record), NOW + 1, SITE)
    assert again.record.restarts == {role: 1}
    assert names(again.actions, RemovePod) == removed

    gone = tuple(p for p in pods if p.name not in [*removed, *stopped])
    after = plan(JOB, Observed(gone, again.record), NOW + 2, SITE)
    assert sorted(names(after.actions, StartPod)) == sorted([*removed, *stopped])
    assert {a.attempt for a in after.actions if isinstance(a, StartPod)} == {1}
    assert after.record.restarts == {role: 1}


def test_two_ranks_that_die_of_the_same_cause_count_once() -> None:
    pods = everything(exited("sums-trainer-0", 1), exited("sums-trainer-1", 1))
    result = plan(JOB, Observed(pods), NOW, SITE)
    assert result.record.restarts == {"trainer": 1}
    later = plan(JOB, Observed(pods, result.record), NOW, SITE)
    assert later.record.restarts == {"trainer": 1}


def test_a_new_attempt_of_the_trainer_waits_for_the_last_rank_of_the_old_one() -> None:
    record = Record(scopes={"trainer": Scope(attempt=1)})
    stopping = pod("sums-trainer-0", phase=PodPhase.STOPPING)
    pods = tuple(p for p in everything(stopping) if p.name != "sums-trainer-1")
    assert names(plan(JOB, Observed(pods, record), NOW, SITE).actions, StartPod) == []


@pytest.mark.parametrize(
    ("code", "disrupted", "verdict"),
    [
        (2, False, "FailJob"),
        (0, False, "Restart"),
        (1, False, "Restart"),
        (3, False, "Restart"),
        (137, False, "Restart"),
        (139, False, "Restart"),
        (137, True, "RestartUncounted"),
        (2, True, "RestartUncounted"),
    ],
)
def test_what_an_exit_means(code: int, disrupted: bool, verdict: str) -> None:
    assert classify(exited("sums-reward-0", code, disrupted=disrupted)).verdict == verdict


def test_bad_input_fails_the_job_with_the_words_of_the_process() -> None:
    bad = exited("sums-environment-0", 2, message="train.jsonl:7 is not JSON")
    result = plan(JOB, Observed(everything(bad)), NOW, SITE)
    failed = [a for a in result.actions if isinstance(a, FailJob)]
    assert [f.failure.message for f in failed] == ["train.jsonl:7 is not JSON"]
    assert result.status.phase == "Failed"
    assert result.status.message == "train.jsonl:7 is not JSON"
    assert result.record.restarts == {}
    again = plan(JOB, Observed(everything(bad), result.record), NOW, SITE)
    assert not [a for a in again.actions if isinstance(a, FailJob)]


def test_a_job_that_fails_restarts_nothing_that_ended_together_with_it() -> None:
    bad, crash = exited("sums-environment-0", 2, message="no rows"), exited("sums-reward-0", 1)
    result = plan(JOB, Observed(everything(crash, bad)), NOW, SITE)
    assert [type(a) for a in result.actions if isinstance(a, FailJob | Restarted)] == [FailJob]
    assert result.record.restarts == {}


def test_the_users_error_wins_over_the_crash_that_it_caused_in_another_rank() -> None:
    crash = exited("sums-trainer-1", 1)
    first = plan(JOB, Observed(everything(crash)), NOW, SITE)
    bad = exited("sums-trainer-0", 2, message="no such model")
    second = plan(JOB, Observed(everything(crash, bad), first.record), NOW, SITE)
    assert second.status.phase == "Failed"
    assert second.status.message == "no such model"


def test_a_process_that_ended_well_is_given_time_for_the_news_that_the_job_is_finished() -> None:
    done = replace(exited("sums-trainer-0", 0), ended_at=NOW)
    waiting = plan(JOB, Observed(everything(done), progress=Progress()), NOW, SITE)
    assert waiting.actions == ()
    assert waiting.wake_at is not None
    assert waiting.wake_at > NOW

    def told(progress: Progress | None) -> Record:
        observed = Observed(everything(done), waiting.record, progress)
        return plan(JOB, observed, NOW + 60, SITE).record

    assert told(Progress()).restarts == {"trainer": 1}
    assert told(Progress(finished=True)).restarts == {}
    # The scheduler that sent it home may be gone before it told anybody else.
    assert (told(None).restarts, told(None).scope("trainer").attempt) == ({}, 0)


def test_a_scheduler_that_ended_well_needs_nobody_to_say_that_the_job_goes_on() -> None:
    done = replace(exited("sums-scheduler-0", 0), ended_at=NOW)
    early = plan(JOB, Observed(everything(done)), NOW + 60, SITE)
    assert early.record.restarts == {"scheduler": 1}


@pytest.mark.parametrize(
    ("streak", "seconds"), [(1, 0), (2, 5), (3, 10), (4, 20), (8, 300), (400, 300)]
)
def test_the_first_restart_is_immediate_and_each_further_one_waits_twice_as_long(
    streak: int, seconds: float
) -> None:
    assert back_off(JOB, streak) == seconds


def test_a_restart_that_backs_off_is_started_when_its_time_has_come() -> None:
    name = "sums-inference-0"
    record = Record(scopes={name: Scope(attempt=1, streak=1)})
    died = plan(JOB, Observed(everything(exited(name, 1, attempt=1)), record), NOW, SITE)
    assert died.record.scope(name).not_before == NOW + 5
    gone = tuple(p for p in everything() if p.name != name)
    waits = plan(JOB, Observed(gone, died.record), NOW + 4.9, SITE)
    assert names(waits.actions, StartPod) == []
    assert waits.wake_at == NOW + 5
    assert names(plan(JOB, Observed(gone, died.record), NOW + 5, SITE).actions, StartPod) == [name]


def test_a_long_healthy_run_ends_the_row_of_failures() -> None:
    name = "sums-inference-0"
    record = Record(scopes={name: Scope(attempt=4, streak=4)})
    died = exited(name, 1, attempt=4, started_at=NOW - 10_000)
    result = plan(JOB, Observed(everything(died), record), NOW, SITE)
    assert result.record.scope(name).not_before == NOW


def test_the_budget_of_a_role_ends_the_job_and_names_the_last_error() -> None:
    recent = {"reward": (NOW - 30, NOW - 20, NOW - 10)}
    died = exited("sums-reward-0", 1, message="ZeroDivisionError: division by zero")
    result = plan(JOB, Observed(everything(died), Record(recent=recent)), NOW, SITE)
    assert result.status.phase == "Failed"
    assert result.status.reason == "RestartsExhausted"
    assert "maxRestarts" in result.status.message
    assert "division by zero" in result.status.message


def test_restarts_outside_the_window_do_not_count_against_the_budget() -> None:
    recent = {"reward": (NOW - 9000, NOW - 8000, NOW - 7000)}
    died = exited("sums-reward-0", 1)
    result = plan(JOB, Observed(everything(died), Record(recent=recent)), NOW, SITE)
    assert result.record.failure is None
    assert result.record.recent == {"reward": (NOW,)}


def test_a_disruption_restarts_at_once_and_is_not_counted() -> None:
    name = "sums-inference-0"
    taken = exited(name, 137, disrupted=True)
    result = plan(JOB, Observed(everything(taken)), NOW, SITE)
    assert result.record.restarts == {}
    assert result.record.scope(name).attempt == 1
    assert result.record.scope(name).not_before == NOW


def test_a_pod_that_is_taken_away_again_and_again_waits_longer_each_time() -> None:
    name, record, waited = "sums-inference-0", Record(), []
    for attempt in range(5):
        short = exited(name, 137, attempt=attempt, disrupted=True)
        record = plan(JOB, Observed(everything(short), record), NOW, SITE).record
        waited.append(record.scope(name).not_before - NOW)
    assert waited == [0, 5, 10, 20, 40]
    assert record.restarts == {} and record.failure is None
    long = exited(name, 137, attempt=5, disrupted=True, started_at=NOW - 10 - HEALTHY_SECONDS)
    record = plan(JOB, Observed(everything(long), record), NOW, SITE).record
    assert record.scope(name).not_before == NOW


def test_a_pod_that_somebody_removed_is_replaced_as_a_new_attempt_uncounted() -> None:
    seen = plan(JOB, Observed(everything()), NOW, SITE)
    gone = tuple(p for p in everything() if p.name != "sums-inference-1")
    result = plan(JOB, Observed(gone, seen.record), NOW, SITE)
    started = [a for a in result.actions if isinstance(a, StartPod)]
    assert [(a.name, a.attempt) for a in started] == [("sums-inference-1", 1)]
    assert result.record.restarts == {}


def test_fewer_replicas_stop_the_surplus_and_more_start_what_lacks() -> None:
    roles = JOB.spec.roles.model_dump()
    fewer = make_job(roles={**roles, "inference": {"replicas": 1}})
    assert names(plan(fewer, Observed(everything()), NOW, SITE).actions, StopPod) == [
        "sums-inference-1"
    ]
    more = make_job(roles={**roles, "inference": {"replicas": 3}})
    assert names(plan(more, Observed(everything()), NOW, SITE).actions, StartPod) == [
        "sums-inference-2"
    ]


@pytest.mark.parametrize(
    ("observed", "phase"),
    [
        (Observed(progress=Progress(finished=True)), "Succeeded"),
        (Observed(suspend=True), "Suspended"),
        (Observed(progress=Progress(error="the filter's budget is spent")), "Failed"),
    ],
)
def test_at_the_end_workers_stop_first_and_the_scheduler_last(
    observed: Observed, phase: str
) -> None:
    first = plan(JOB, replace(observed, pods=everything()), NOW, SITE)
    stopped = names(first.actions, StopPod)
    assert len(stopped) == 6
    assert "sums-scheduler-0" not in stopped
    dead = tuple(exited(n, 0) for n in PLACES if n != "sums-scheduler-0")
    rest = replace(observed, pods=(pod("sums-scheduler-0"), *dead), record=first.record)
    second = plan(JOB, rest, NOW, SITE)
    assert names(second.actions, StopPod) == ["sums-scheduler-0"]
    assert len(names(second.actions, RemovePod)) == 6
    assert not second.done
    last = plan(JOB, replace(observed, record=second.record), NOW, SITE)
    assert last.done
    assert last.status.phase == phase


def test_a_death_while_the_job_ends_is_not_counted() -> None:
    pods = everything(exited("sums-inference-0", 137))
    result = plan(JOB, Observed(pods, suspend=True), NOW, SITE)
    assert result.record.restarts == {}


def test_a_stopping_pod_is_not_asked_twice() -> None:
    pods = tuple(pod(n, phase=PodPhase.STOPPING) for n in PLACES)
    assert plan(JOB, Observed(pods, suspend=True), NOW, SITE).actions == ()


def test_the_next_run_is_a_new_attempt_of_everything_and_forgives() -> None:
    bad = exited("sums-environment-0", 2, message="no data")
    failed = plan(JOB, Observed(everything(bad)), NOW, SITE)
    fresh = plan(JOB, Observed(record=next_run(failed.record)), NOW, SITE)
    started = [a for a in fresh.actions if isinstance(a, StartPod)]
    assert len(started) == 7
    assert {a.attempt for a in started} == {1}
    assert fresh.status.phase == "Pending"


@pytest.mark.parametrize(
    ("pods", "was_running", "phase"),
    [
        ((), False, "Pending"),
        (everything(), False, "Starting"),
        (everything(), True, "Recovering"),
    ],
)
def test_the_phase_of_a_job_that_is_not_ready(
    pods: tuple[Pod, ...], was_running: bool, phase: str
) -> None:
    observed = Observed(pods, Record(was_running=was_running))
    assert plan(JOB, observed, NOW, SITE).status.phase == phase


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    first = plan(JOB, Observed(everything()), NOW, SITE)
    same = plan(JOB, Observed(everything(), first.record, status=first.status), NOW + 60, SITE)
    assert same.status.conditions == first.status.conditions
    pods = everything()
    changed = plan(
        JOB, Observed(pods, same.record, ready(*pods), status=same.status), NOW + 90, SITE
    )
    old = {c.type: c for c in same.status.conditions}
    new = {c.type: c for c in changed.status.conditions}
    assert new["PodsReady"].status == "True"
    assert new["PodsReady"].last_transition_time != old["PodsReady"].last_transition_time
    assert new["Failed"] == old["Failed"]


def test_every_place_is_listed_with_what_its_process_does() -> None:
    pods = tuple(
        p
        for p in everything(
            exited("sums-reward-0", 1), pod("sums-trainer-1", phase=PodPhase.STOPPING)
        )
        if p.name != "sums-inference-0"
    )
    progress = Progress(ready=frozenset({pod("sums-environment-0").uid}))
    states = {p.name: p.state for p in processes(JOB, Observed(pods, progress=progress), Record())}
    assert states == {
        "sums-scheduler-0": "ready",
        "sums-trainer-0": "starting",
        "sums-trainer-1": "stopping",
        "sums-inference-0": "waiting",
        "sums-inference-1": "starting",
        "sums-reward-0": "exited",
        "sums-environment-0": "ready",
    }


def test_a_process_is_told_who_it_is() -> None:
    env = environment(JOB, PLACES["sums-trainer-1"], 3, SITE)
    assert env["ROLL_POD"] == "sums-trainer-1"
    assert env["ROLL_ATTEMPT"] == "3"
    assert env["ROLL_POD_UID"] == uid_of("job-uid", "sums-trainer-1", 3)
    assert (env["RANK"], env["WORLD_SIZE"]) == ("1", "2")
    assert env["ROLL_SCHEDULER"] == "127.0.0.1:7000"
    scheduler = environment(JOB, PLACES["sums-scheduler-0"], 0, SITE)
    assert scheduler["ROLL_LISTEN"] == "127.0.0.1:7000"


def test_the_users_variables_reach_the_role_but_not_over_ours() -> None:
    roles = JOB.spec.roles.model_dump()
    job = make_job(roles={**roles, "reward": {"env": {"TOKEN": "x", "ROLL_JOB": "evil"}}})
    place = next(p for p in desired_pods(job) if p.role == "reward")
    env = environment(job, place, 0, SITE)
    assert (env["TOKEN"], env["ROLL_JOB"]) == ("x", "sums")


@pytest.mark.parametrize(
    ("own", "expected"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")]
)
def test_threads_without_work_leave_the_core_to_others_unless_the_job_says_otherwise(
    own: dict[str, str], expected: str
) -> None:
    job = make_job(roles={**JOB.spec.roles.model_dump(), "reward": {"env": own}})
    place = next(p for p in desired_pods(job) if p.role == "reward")
    assert environment(job, place, 0, SITE)["OMP_WAIT_POLICY"] == expected


@pytest.mark.parametrize(
    ("given", "cores", "expected"), [(None, 8, 2), (None, 2, 1), (6, 8, 6), (1, 64, 1)]
)
def test_cores_are_shared_by_what_computes_unless_the_job_says_otherwise(
    given: int | None, cores: int, expected: int
) -> None:
    inference = {"replicas": 2} | ({"threads": given} if given else {})
    roles = {"trainer": {"replicas": 2}, "inference": inference, "reward": {}, "environment": {}}
    assert threads(make_job(roles=roles), "inference", cores) == expected
