"""Pure decisions of the operator: `plan(job, observed, now, site)` gives actions, status and record."""

from roll_operator.plan.desired import Site, desired_pods
from roll_operator.plan.model import (
    Action,
    Announce,
    DeleteJob,
    FailJob,
    Failure,
    FencePod,
    ForceDelete,
    Held,
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
from roll_operator.plan.policy import answers_to, doubtful, next_run
from roll_operator.plan.reconcile import Plan, plan
from roll_operator.plan.record import read_record, write_record
from roll_operator.plan.status import Process, processes, ready_count

__all__ = [
    "Action",
    "Announce",
    "DeleteJob",
    "FailJob",
    "Failure",
    "FencePod",
    "ForceDelete",
    "Held",
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
    "answers_to",
    "desired_pods",
    "doubtful",
    "next_run",
    "plan",
    "processes",
    "read_record",
    "ready_count",
    "write_record",
]
