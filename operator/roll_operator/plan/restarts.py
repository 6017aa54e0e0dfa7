"""The restart engine: what follows the end of a pod, and when its restart scope may try again.

Invariants: the end of a pod is judged once (judging raises its scope's attempt, and a pod of an older
attempt is never counted; of a pod that restarts in place, the record knows how many restarts were judged);
the counter is in the record of the same plan that removes the pod; an error of the user's is never retried; who
ended well counts only when a scheduler has said since that the job goes on.
"""

from dataclasses import replace

from roll_api import RLJob

from roll_operator.plan.desired import desired_pods, scope_of
from roll_operator.plan.model import (
    SCHEDULER,
    Action,
    Announce,
    DesiredPod,
    FailJob,
    Failure,
    Observed,
    Pod,
    PodPhase,
    Record,
    Restarted,
    Scope,
)
from roll_operator.plan.rules import (
    BAD_INPUT,
    Rule,
    Verdict,
    classify,
    reason_of,
    rules_of,
    undisturbed,
)

FINISHING_SECONDS = 2.0
"""A pod that ended with 0 is given this long for the scheduler to say that the job is finished. By its node's clock,
which may be wrong by more: such a pod is not waited for."""

HEALTHY_SECONDS = 600.0
"""A pod that ran this long starts a new row of failures, as in a kubelet's crash loop."""

WORDS = 2000
"""Characters of a failure's message that the record keeps: the last ones, where the error is."""

Judged = tuple[Record, list[Action]]


def back_off(job: RLJob, streak: int) -> float:
    """Seconds before the restart after `streak` failures in a row: 0, then b, 2b, 4b, … up to the limit."""
    policy = job.spec.failure_policy
    if streak <= 1:
        return 0.0
    doublings = min(streak - 2, 32)
    return float(min(policy.backoff_seconds * 2**doublings, policy.backoff_max_seconds))


def adopt(observed: Observed, record: Record) -> Record:
    """Every pod that is there is known to the record, so that no later run begins with its attempt again.

    A pod of a newer attempt than the record knows: the record was lost, and the pod is right.
    """
    for pod in observed.pods:
        key = scope_of(pod.role, pod.name)
        known = record.scopes.get(key)
        scope = known if known and known.attempt >= pod.attempt else Scope(pod.attempt)
        if scope.attempt == pod.attempt and pod.name not in scope.started:
            scope = replace(scope, started={**scope.started, pod.name: pod.uid})
        if scope != known:
            record = replace(record, scopes={**record.scopes, key: scope})
    return record


def judge(
    job: RLJob, observed: Observed, record: Record, now: float
) -> tuple[Record, tuple[Action, ...], float | None]:
    """The record after every new end of a pod, what to announce, and when an open case must be seen again."""
    announcements: list[Action] = []
    look_again: float | None = None
    places = {place.name: place for place in desired_pods(job)}
    rules = rules_of(job)
    for pod in sorted(observed.pods, key=_decisive_first):
        if record.failure is not None:
            break  # what else ended is no longer of any consequence
        place = places.get(pod.name)
        if place is None:
            continue
        record, announced = _in_place(job, record, place, pod, rules, now)
        announcements.extend(announced)
        if pod.phase is not PodPhase.EXITED or record.failure is not None:
            continue
        rule = classify(pod, rules)
        if pod.attempt != record.scope(place.scope).attempt:
            # It was judged, or told to go. Only the user's error is news: it caused the crash of another rank.
            if pod.exit_code != BAD_INPUT or rule.verdict is not Verdict.FAIL_JOB:
                continue
        elif _ended_well(pod, rule) and pod.role != SCHEDULER and observed.progress is None:
            continue  # the next plan hears whether the job is finished
        elif _ended_well(pod, rule) and abs(now - pod.ended_at) < FINISHING_SECONDS:
            look_again = _earlier(look_again, pod.ended_at + FINISHING_SECONDS)
            continue
        record, announced = settle(job, record, place, pod, rule, now)
        announcements.extend(announced)
    record, announced = _vanished(job, observed, record, places, now)
    announcements.extend(announced)
    return record, tuple(announcements), look_again


def settle(
    job: RLJob, record: Record, place: DesiredPod, pod: Pod, rule: Rule, now: float
) -> Judged:
    """Carries a verdict into the record."""
    failure = failure_of(pod, rule)
    scope = record.scope(place.scope)
    if rule.verdict is Verdict.FAIL_JOB:
        return _fail(record, pod.role, failure, failure)
    ran_well = pod.ran and pod.ended_at - pod.started_at >= HEALTHY_SECONDS
    streak = 1 if ran_well else scope.streak + 1
    wait = back_off(job, streak)
    if rule.verdict is Verdict.RESTART_UNCOUNTED:
        # Nobody's failure. But one that is taken away again and again waits as well, or it would spin.
        record = _raise(record, place.scope, streak, now + wait)
        return record, [Restarted(failure, pod.role, counted=False, wait=wait)]

    counted = rule.verdict in (Verdict.RESTART, Verdict.RESTART_ROLE)
    if counted:
        record, spent = _count(job, record, pod, failure, now, 1)
        if spent is not None:
            return _fail(record, pod.role, failure, spent)
        record = _add(record, pod.role, 1)
    record = replace(record, last_failures={**record.last_failures, pod.role: failure})
    keys = [place.scope]
    if rule.verdict is Verdict.RESTART_ROLE:
        keys = sorted({p.scope for p in desired_pods(job) if p.role == pod.role})
    for key in keys:
        mine = streak if key == place.scope else record.scope(key).streak
        record = _raise(record, key, mine, now + wait)
    return record, [Restarted(failure, pod.role, counted=counted, wait=wait)]


def failure_of(pod: Pod, rule: Rule) -> Failure:
    return Failure(
        reason=reason_of(pod, rule),
        message=(pod.message or describe_exit(pod.exit_code))[-WORDS:],
        pod=pod.name,
        uid=pod.uid,
        exit_code=pod.exit_code,
        at=pod.ended_at,
        attempt=pod.attempt,
    )


def describe_exit(code: int | None) -> str:
    if code is None:
        return "ended"
    if code > 128:
        return f"killed by signal {code - 128}"
    return f"ended with exit code {code}"


def _in_place(
    job: RLJob,
    record: Record,
    place: DesiredPod,
    pod: Pod,
    rules: tuple[Rule, ...],
    now: float,
) -> Judged:
    """A kubelet restarted the container within its pod: that happened already, and is only counted."""
    scope = record.scope(place.scope)
    started = scope.started.get(pod.name, pod.uid)
    fresh = pod.restarts - scope.in_place
    if pod.attempt != scope.attempt or started != pod.uid or fresh <= 0:
        return record, []
    ended = undisturbed(pod)  # that it is taken away is not why its container ended before
    rule = classify(ended, rules)
    failure = failure_of(ended, rule)
    known = {**scope.started, pod.name: pod.uid}
    scope = replace(scope, started=known, in_place=pod.restarts)
    record = replace(record, scopes={**record.scopes, place.scope: scope})
    if rule.verdict is Verdict.RESTART_UNCOUNTED:
        return record, [Restarted(failure, pod.role, counted=False, wait=0.0)]
    record = replace(record, last_failures={**record.last_failures, pod.role: failure})
    if rule.verdict is Verdict.FAIL_JOB:
        return _fail(record, pod.role, failure, failure)
    counted = rule.verdict in (Verdict.RESTART, Verdict.RESTART_ROLE)
    if counted:
        record, spent = _count(job, record, pod, failure, now, fresh)
        record = _add(record, pod.role, fresh)
        if spent is not None:
            return _fail(record, pod.role, failure, spent)
    return record, [Restarted(failure, pod.role, counted=counted, wait=0.0)]


def _count(
    job: RLJob, record: Record, pod: Pod, failure: Failure, now: float, times: int
) -> tuple[Record, Failure | None]:
    """The record with the budget's window moved on, and why the job fails if the budget is spent."""
    policy = job.spec.failure_policy
    recent = tuple(at for at in record.recent.get(pod.role, ()) if at > now - policy.window_seconds)
    if len(recent) + times > policy.max_restarts:
        spent = replace(
            failure,
            reason="RestartsExhausted",
            message=f"{pod.name} failed and the role {pod.role} has used up its "
            f"{policy.max_restarts} restarts (failurePolicy.maxRestarts): {failure.message}",
        )
        return record, spent
    return replace(record, recent={**record.recent, pod.role: (*recent, *[now] * times)}), None


def _add(record: Record, role: str, times: int) -> Record:
    return replace(record, restarts={**record.restarts, role: record.restarts.get(role, 0) + times})


def _fail(record: Record, role: str, last: Failure, why: Failure) -> Judged:
    failures = {**record.last_failures, role: last}
    return replace(record, failure=why, last_failures=failures), [FailJob(why)]


def _raise(record: Record, key: str, streak: int, not_before: float) -> Record:
    scope = Scope(record.scope(key).attempt + 1, {}, streak, not_before)
    return replace(record, scopes={**record.scopes, key: scope})


def _vanished(
    job: RLJob, observed: Observed, record: Record, places: dict[str, DesiredPod], now: float
) -> Judged:
    """A pod that was seen and is not there any more was taken by somebody: a new attempt, uncounted.

    How long it ran nobody can tell any more; not longer than since its attempt was free to start.
    """
    announced: list[Action] = []
    present = {pod.uid for pod in observed.pods}
    for key in sorted({place.scope for place in places.values()}):
        scope = record.scope(key)
        taken = [n for n, uid in scope.started.items() if n in places and uid not in present]
        if taken:
            ran_well = now - scope.not_before >= HEALTHY_SECONDS
            streak = 1 if ran_well else scope.streak + 1
            wait = back_off(job, streak)
            record = _raise(record, key, streak, now + wait)
            when = f"in {wait:.0f} s" if wait else "now"
            what = f"{', '.join(sorted(taken))} was taken away by somebody and is replaced {when}, uncounted"
            announced.append(Announce("Normal", "PodTaken", what))
    return _unwanted(record, places), announced


def _unwanted(record: Record, places: dict[str, DesiredPod]) -> Record:
    """Whoever fills a place that the job no longer has is sent away, by us: should the place return, its next pod is
    another attempt, and nobody is told of the last one's end."""
    wanted = {place.scope for place in places.values()}
    for key, scope in record.scopes.items():
        if key not in wanted and scope.started:
            record = _raise(record, key, scope.streak, scope.not_before)
    return record


def _ended_well(pod: Pod, rule: Rule) -> bool:
    """It may have been sent home, whatever a rule says of its end. Who was taken away is replaced uncounted at once."""
    return pod.exit_code == 0 and rule.verdict is not Verdict.RESTART_UNCOUNTED


def _decisive_first(pod: Pod) -> tuple[bool, float]:
    """The user's error before the crashes that it caused elsewhere; then the earliest end."""
    return (pod.exit_code != BAD_INPUT, pod.ended_at)


def _earlier(a: float | None, b: float) -> float:
    return b if a is None else min(a, b)
