"""Jobs and pods as the planner sees them, for tables of what is there and what has to happen."""

from dataclasses import replace

from roll_api import RLJob
from roll_operator.plan import Pod, PodPhase, Progress, Site
from roll_operator.plan.desired import desired_pods, uid_of

SITE = Site("job-uid", "127.0.0.1:7000", "127.0.0.1:7000", "/run/job.json", "/run", "/src", cores=8)
NOW = 10_000.0


def make_job(**changes: object) -> RLJob:
    spec = {
        "steps": 10,
        "model": {"path": "builtin:tiny-qwen2"},
        "data": {"train": {"path": "builtin:largest-of-three"}},
        "rewards": [{"name": "exact", "scorer": {"kind": "exactMatch"}}],
        "roles": {
            "trainer": {"replicas": 2},
            "inference": {"replicas": 2},
            "reward": {"replicas": 1},
            "environment": {"replicas": 1},
        },
        "failurePolicy": {"maxRestarts": 3, "backoffSeconds": 5.0, "backoffMaxSeconds": 300.0},
    } | changes
    return RLJob.parse(
        {
            "apiVersion": "roll.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "sums"},
            "spec": spec,
        }
    )


JOB = make_job()
PLACES = {place.name: place for place in desired_pods(JOB)}


def pod(name: str, attempt: int = 0, **changes: object) -> Pod:
    place = PLACES[name]
    running = Pod(
        name,
        place.role,
        place.index,
        uid_of(SITE.job_uid, name, attempt),
        attempt,
        PodPhase.RUNNING,
        pid=1,
        started_at=NOW - 60,
    )
    return replace(running, **changes)


def exited(name: str, code: int, attempt: int = 0, **changes: object) -> Pod:
    return pod(name, attempt, phase=PodPhase.EXITED, exit_code=code, ended_at=NOW - 10, **changes)


def everything(*instead: Pod) -> tuple[Pod, ...]:
    there = {name: pod(name) for name in PLACES} | {p.name: p for p in instead}
    return tuple(there.values())


def ready(*pods: Pod) -> Progress:
    return Progress(ready=frozenset(p.uid for p in pods if p.phase is PodPhase.RUNNING))


def names(actions: object, kind: type) -> list[str]:
    return [action.name for action in actions if isinstance(action, kind)]  # type: ignore[attr-defined]
