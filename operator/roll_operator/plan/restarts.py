"""The restart engine: what the end of a pod means, and when its restart scope may try again.

Invariants: the end of a pod is judged once (judging raises its scope's attempt, and a pod of an older
attempt is never counted); the counter is in the record of the same plan that removes the pod; an error of
the user's is never retried.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from roll_api import RLJob

from roll_operator.plan.desired import desired_pods
from roll_operator.plan.model import (
    Action,
    FailJob,
    Failure,
    Observed,
    Pod,
    PodPhase,
    Record,
    Restarted,
    Scope,
)

BAD_INPUT = 2
"""Exit code of a process that the user has to help: trying again would change nothing."""

FINISHING_SECONDS = 2.0
"""A pod that ended with 0 is given this long for the scheduler to say that the job is finished."""

HEALTHY_SECONDS = 600.0
"""A pod that ran this long starts a new row of failures, as in a kubelet's crash loop."""


class Verdict(StrEnum):
    """What the end of a pod asks for."""

    FAIL_JOB = "FailJob"
    RESTART = "Restart"
    RESTART_UNCOUNTED = "RestartUncounted"


@dataclass(frozen=True, slots=True)
class Rule:
    """The first rule that fits decides."""

    verdict: Verdict
    reason: str
    exit_codes: frozenset[int] | None = None
    """None: any."""
    disrupted: bool | None = None

    def fits(self, pod: Pod) -> bool:
        if self.disrupted is not None and pod.disrupted != self.disrupted:
            return False
        return self.exit_codes is None or pod.exit_code in self.exit_codes


RULES: tuple[Rule, ...] = (
    Rule(Verdict.RESTART_UNCOUNTED, "Disrupted", disrupted=True),
    Rule(Verdict.FAIL_JOB, "BadInput", exit_codes=frozenset({BAD_INPUT})),
    Rule(Verdict.RESTART, "EndedEarly", exit_codes=frozenset({0})),
    Rule(Verdict.RESTART, "Refused", exit_codes=frozenset({3})),
    Rule(Verdict.RESTART, "Killed", exit_codes=frozenset({137})),
    Rule(Verdict.RESTART, "Crashed"),
)


def classify(pod: Pod, rules: Iterable[Rule] = RULES) -> Rule:
    return next(rule for rule in rules if rule.fits(pod))


def back_off(job: RLJob, streak: int) -> float:
    """Seconds before the restart after `streak` failures in a row: 0, then b, 2b, 4b, … up to the limit."""
    policy = job.spec.failure_policy
    if streak <= 1:
        return 0.0
    doublings = min(streak - 2, 32)
    return float(min(policy.backoff_seconds * 2**doublings, policy.backoff_max_seconds))


def judge(
    job: RLJob, observed: Observed, record: Record, now: float
) -> tuple[Record, tuple[Action, ...], float | None]:
    """The record after every new end of a pod, what to announce, and when an open case must be seen again."""
    announcements: list[Action] = []
    look_again: float | None = None
    scopes = {pod.name: pod.scope for pod in desired_pods(job)}
    for pod in sorted(observed.pods, key=_decisive_first):
        if record.failure is not None:
            break  # what else ended is no longer of any consequence
        if pod.name not in scopes or pod.phase is not PodPhase.EXITED:
            continue
        key = scopes[pod.name]
        scope = record.scope(key)
        rule = classify(pod)
        if rule.verdict is Verdict.FAIL_JOB:
            failure = _failure(pod, rule)
            record = replace(
                record,
                failure=failure,
                last_failures={**record.last_failures, pod.role: failure},
            )
            announcements.append(FailJob(failure))
            continue
        if pod.attempt != scope.attempt:
            continue
        if pod.exit_code == 0 and now < pod.ended_at + FINISHING_SECONDS:
            look_again = _earlier(look_again, pod.ended_at + FINISHING_SECONDS)
            continue
        record, announced = _restart(job, record, key, scope, pod, rule, now)
        announcements.extend(announced)
    record = _vanished(observed, record, scopes)
    return record, tuple(announcements), look_again


def _restart(
    job: RLJob, record: Record, key: str, scope: Scope, pod: Pod, rule: Rule, now: float
) -> tuple[Record, list[Action]]:
    failure = _failure(pod, rule)
    counted = rule.verdict is Verdict.RESTART
    if not counted:
        fresh = Scope(scope.attempt + 1, {}, scope.streak, scope.not_before)
        record = replace(record, scopes={**record.scopes, key: fresh})
        return record, [Restarted(failure, pod.role, counted=False, wait=0.0)]

    policy = job.spec.failure_policy
    recent = tuple(at for at in record.recent.get(pod.role, ()) if at > now - policy.window_seconds)
    streak = 1 if pod.ended_at - pod.started_at >= HEALTHY_SECONDS else scope.streak + 1
    wait = back_off(job, streak)
    if len(recent) >= policy.max_restarts:
        spent = replace(
            failure,
            reason="RestartsExhausted",
            message=f"{pod.name} failed and the role {pod.role} has used up its "
            f"{policy.max_restarts} restarts (failurePolicy.maxRestarts): {failure.message}",
        )
        record = replace(
            record,
            failure=spent,
            last_failures={**record.last_failures, pod.role: failure},
        )
        return record, [FailJob(spent)]
    record = replace(
        record,
        scopes={**record.scopes, key: Scope(scope.attempt + 1, {}, streak, now + wait)},
        restarts={**record.restarts, pod.role: record.restarts.get(pod.role, 0) + 1},
        recent={**record.recent, pod.role: (*recent, now)},
        last_failures={**record.last_failures, pod.role: failure},
    )
    return record, [Restarted(failure, pod.role, counted=True, wait=wait)]


def _vanished(observed: Observed, record: Record, scopes: dict[str, str]) -> Record:
    """A pod that was seen and is not there any more was taken by somebody: a new attempt, uncounted."""
    present = {pod.uid for pod in observed.pods}
    for key in set(scopes.values()):
        scope = record.scope(key)
        seen = {
            pod.name: pod.uid
            for pod in observed.pods
            if scopes.get(pod.name) == key and pod.attempt == scope.attempt
        }
        if any(name in scopes and uid not in present for name, uid in scope.started.items()):
            scope = Scope(scope.attempt + 1, {}, scope.streak, scope.not_before)
            record = replace(record, scopes={**record.scopes, key: scope})
        elif seen != scope.started:
            record = replace(record, scopes={**record.scopes, key: replace(scope, started=seen)})
    return record


def _failure(pod: Pod, rule: Rule) -> Failure:
    return Failure(
        reason=rule.reason,
        message=pod.message or describe_exit(pod.exit_code),
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


def _decisive_first(pod: Pod) -> tuple[bool, float]:
    """The user's error before the crashes that it caused elsewhere; then the earliest end."""
    return (pod.exit_code != BAD_INPUT, pod.ended_at)


def _earlier(a: float | None, b: float) -> float:
    return b if a is None else min(a, b)
