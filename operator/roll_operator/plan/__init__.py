"""Pure decisions of the operator: `plan(job, observed, now, site)` gives actions, status and record."""

from roll_operator.plan.desired import Site, desired_pods
from roll_operator.plan.model import (
    Action,
    FailJob,
    Failure,
    Observed,
    Phase,
    Pod,
    PodPhase,
    Progress,
    Record,
    RemovePod,
    Restarted,
    Scope,
    StartPod,
    StopPod,
)
from roll_operator.plan.reconcile import Plan, next_run, plan
from roll_operator.plan.status import Process, processes

__all__ = [
    "Action",
    "FailJob",
    "Failure",
    "Observed",
    "Phase",
    "Plan",
    "Pod",
    "PodPhase",
    "Process",
    "Progress",
    "Record",
    "RemovePod",
    "Restarted",
    "Scope",
    "Site",
    "StartPod",
    "StopPod",
    "desired_pods",
    "next_run",
    "plan",
    "processes",
]
