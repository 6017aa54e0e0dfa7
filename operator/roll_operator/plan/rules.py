"""What the end of a pod means: the job's own rules, then the built-in ones; the first that fits decides."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from roll_api import RLJob
from roll_api.policy import FailureRule

from roll_operator.plan.model import Pod, PodPhase

BAD_INPUT = 2
"""Exit code of a process that the user has to help: trying again would change nothing."""

DISRUPTION = "DisruptionTarget"
"""The condition of a pod that the cluster takes away: drain, preemption, taint, lost node."""

UNSEEN = frozenset({"Unknown", "ContainerStatusUnknown"})
"""The end of a container that no kubelet saw: its node went down and came back. containerd reports it with exit code
255, the kubelet itself with 137, and neither sets a condition."""

DISRUPTIONS = UNSEEN | frozenset(
    {
        "Evicted",
        "Preempting",
        "Preempted",
        "NodeLost",
        "NodeShutdown",
        "Terminated",  # by a node that shuts down in an orderly way
        "NodeAffinity",
        "UnexpectedAdmissionError",
        "EvictionByEvictionAPI",
        "PreemptionByScheduler",
        "DeletionByTaintManager",
        "DeletionByPodGC",
        "TerminationByKubelet",
    }
)
"""Reasons that say so where there is no condition; a kubelet's `OutOfcpu` and its like come in addition."""

PLAIN = frozenset({"", "Error", "Completed"})
"""Reasons that tell no more than the exit code does."""


class Verdict(StrEnum):
    """What the end of a pod asks for."""

    FAIL_JOB = "FailJob"
    RESTART = "Restart"
    RESTART_ROLE = "RestartRole"
    RESTART_UNCOUNTED = "RestartUncounted"
    IGNORE = "Ignore"
    """Restarted uncounted, and with back-off: it may well happen again."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What is None fits everything."""

    verdict: Verdict
    reason: str
    exit_codes: frozenset[int] | None = None
    disrupted: bool | None = None
    deleted: bool | None = None
    roles: frozenset[str] | None = None
    reasons: frozenset[str] | None = None
    conditions: frozenset[str] | None = None

    def fits(self, pod: Pod) -> bool:
        return (
            (self.disrupted is None or disrupted(pod) == self.disrupted)
            and (self.deleted is None or (pod.deletion_at is not None) == self.deleted)
            and (self.exit_codes is None or pod.exit_code in self.exit_codes)
            and (self.roles is None or pod.role in self.roles)
            and (self.reasons is None or not self.reasons.isdisjoint(pod.reasons))
            and (self.conditions is None or not self.conditions.isdisjoint(pod.conditions))
        )


RULES: tuple[Rule, ...] = (
    Rule(Verdict.RESTART_UNCOUNTED, "Disrupted", disrupted=True),
    Rule(Verdict.FAIL_JOB, "BadInput", exit_codes=frozenset({BAD_INPUT})),
    Rule(Verdict.RESTART_UNCOUNTED, "Deleted", deleted=True),
    Rule(Verdict.RESTART, "EndedEarly", exit_codes=frozenset({0})),
    Rule(Verdict.RESTART, "Refused", exit_codes=frozenset({3})),
    Rule(Verdict.RESTART, "Unreachable", exit_codes=frozenset({4})),
    Rule(Verdict.RESTART, "Killed", exit_codes=frozenset({137})),
    Rule(Verdict.RESTART, "Crashed"),
)

_ACTIONS = {
    "FailJob": Verdict.FAIL_JOB,
    "RestartRole": Verdict.RESTART_ROLE,
    "RestartPod": Verdict.RESTART,
    "Ignore": Verdict.IGNORE,
}


def rules_of(job: RLJob) -> tuple[Rule, ...]:
    return (*(_given(rule) for rule in job.spec.failure_policy.rules), *RULES)


def classify(pod: Pod, rules: Iterable[Rule] = RULES) -> Rule:
    return next(rule for rule in rules if rule.fits(pod))


def disrupted(pod: Pod) -> bool:
    return pod.disrupted or DISRUPTION in pod.conditions or any(map(of_the_cluster, pod.reasons))


def undisturbed(pod: Pod) -> Pod:
    """The pod as it was before somebody wanted to take it away. While it lives, what its container's end is called is
    of before; of one that has ended, it is how it was taken."""
    kept = frozenset() if pod.phase is PodPhase.EXITED else UNSEEN
    return replace(
        pod,
        deletion_at=None,
        disrupted=False,
        conditions=pod.conditions - {DISRUPTION},
        reasons=tuple(r for r in pod.reasons if r in kept or not of_the_cluster(r)),
    )


def of_the_cluster(reason: str) -> bool:
    """Whether it says that the cluster took the pod away."""
    return reason in DISRUPTIONS or reason.startswith("OutOf")


def reason_of(pod: Pod, rule: Rule) -> str:
    """The cluster's word where it tells more than ours: OOMKilled, Evicted, …"""
    if rule not in RULES or rule.verdict is Verdict.FAIL_JOB:
        return rule.reason
    return next((reason for reason in pod.reasons if reason not in PLAIN), rule.reason)


def _given(rule: FailureRule) -> Rule:
    return Rule(
        _ACTIONS[rule.action],
        rule.name,
        exit_codes=frozenset(rule.exit_codes) or None,
        roles=frozenset(rule.roles) or None,
        reasons=frozenset(rule.reasons) or None,
        conditions=frozenset(rule.conditions) or None,
    )
