"""Alive is who gets on with the work; ready is who could."""

from dataclasses import dataclass, field

from prometheus_client import REGISTRY
from roll_operator.controller.cluster.health import ANSWER_SECONDS, LONGEST_WAIT, Health
from roll_operator.controller.cluster.proof import WatchProof
from roll_operator.controller.cluster.queue import WorkQueue
from roll_operator.controller.cluster.reading import read_job
from roll_operator.controller.cluster.store import Store
from support.operator_world import JOB


@dataclass
class Process:
    now: float = 1000.0
    leads: bool = True
    answered_at: float = 1000.0
    queue: WorkQueue = field(init=False)

    def __post_init__(self) -> None:
        self.queue = WorkQueue(lambda: self.now)
        self.proof = WatchProof(lambda: self.now)
        self.store = Store(self.queue.add)
        self.health = Health(
            self.queue,
            self.proof,
            self.store,
            lambda: self.leads,
            lambda: self.answered_at,
            lambda: self.now,
        )

    def knows_a_job(self, phase: str) -> None:
        metadata = {"namespace": "ns", "uid": "job", "resourceVersion": "1", "generation": 1}
        manifest = {**JOB, "metadata": JOB["metadata"] | metadata, "status": {"phase": phase}}
        self.store.put_job(read_job(manifest))

    def figure(self, name: str, **labels: str) -> float | None:
        self.health.figures()
        return REGISTRY.get_sample_value(f"roll_operator_{name}", labels)


def test_an_idle_operator_is_alive_however_long() -> None:
    process = Process()
    process.now += 100_000
    assert process.health.problems() == []


def test_a_job_that_no_worker_takes_is_a_problem() -> None:
    process = Process()
    process.health.started = True
    process.queue.add("ns/sums")
    process.now += LONGEST_WAIT - 1
    assert process.health.problems() == []
    process.now += 2
    assert "no worker" in process.health.problems()[0]
    process.leads = False
    assert process.health.problems() == [], "not its work"


def test_a_new_leader_that_still_reads_the_lists_is_alive() -> None:
    process = Process(leads=False)
    process.queue.add("ns/sums")
    process.now += 100_000
    process.leads = True
    assert process.health.problems() == [], "nobody was to take it"
    process.queue.open()
    process.health.started = True
    assert process.health.problems() == []
    assert process.figure("queue_oldest_seconds") == 0
    process.now += LONGEST_WAIT + 1
    assert process.health.problems() != []


def test_a_standby_tells_nothing_of_a_line_that_is_not_its_own_nor_of_jobs() -> None:
    process = Process(leads=False)
    process.knows_a_job("Running")
    process.now += 100_000
    assert process.figure("leader") == 0
    assert process.figure("queue_depth") == 0
    assert process.figure("queue_oldest_seconds") == 0
    assert process.figure("jobs", phase="Running") is None


def test_phases_that_no_job_is_in_are_told_too() -> None:
    process = Process()
    process.health.started = True
    process.knows_a_job("Running")
    assert process.figure("queue_depth") == 1
    assert process.figure("jobs", phase="Running") == 1
    assert process.figure("jobs", phase="Failed") == 0, "or nobody would see the first failure"


def test_a_long_line_that_moves_is_no_problem() -> None:
    process = Process()
    for number in range(10):
        process.queue.add(f"ns/{number}")
    for _ in range(5):
        process.now += LONGEST_WAIT / 2
        process.queue.take()
    assert process.queue.oldest_wait() > LONGEST_WAIT
    assert process.health.problems() == []


def test_a_watch_that_does_not_bring_back_own_writes_is_a_problem() -> None:
    process = Process()
    process.proof.expect("uid", 5)
    process.now += LONGEST_WAIT + 1
    assert "watch" in process.health.problems()[0]
    process.proof.gone("uid")
    assert process.health.problems() == []


def test_a_leader_is_ready_when_it_works_and_another_when_it_could() -> None:
    process = Process(leads=False)
    assert process.health.ready()
    process.leads = True
    assert not process.health.ready()
    process.health.started = True
    assert process.health.ready()
    process.now += ANSWER_SECONDS
    assert not process.health.ready(), "the API server is away"
