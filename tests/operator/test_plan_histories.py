"""Random lives of a job on a cluster: whatever happens to pods, nodes and the operator, counters and places stay right.

The world is an API server, kubelets, nodes and a scheduler, reduced to what a planner can see. The operator may die
between the write of its record and any of its acts.
"""

from collections import Counter
from dataclasses import replace
from functools import cache

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from roll_api import RLJob, spec_hash
from roll_operator.plan import (
    FencePod,
    ForceDelete,
    Observed,
    Plan,
    Pod,
    PodPhase,
    Progress,
    Record,
    RemovePod,
    Site,
    StartPod,
    StopPod,
    desired_pods,
    plan,
    read_record,
    write_record,
)
from roll_operator.plan.model import SCHEDULER
from support.plans import make_job

SITE = Site("u", "s:7070", "[::]:7070", "/job.json", "/data", "/src", keeps_ended=True)
OWN_ENDS = (1, 3, 137)
TAKEN = ("kubelet", "turned away", "reboot", "api", "user", "node")
ROUNDS = 200


@cache
def _job(steps: int, restart_id: str, replicas: int, template: int, budget: int) -> RLJob:
    return make_job(
        steps=steps,
        restart={"id": restart_id},
        roles={
            "trainer": {"replicas": 2},
            "inference": {"replicas": replicas, "template": {"v": template}},
            "reward": {},
            "environment": {},
        },
        failurePolicy={"maxRestarts": budget},
    )


class Cluster(RuleBasedStateMachine):
    @initialize(budget=st.sampled_from([3, 1000]), runs=st.booleans())
    def begin(self, budget: int, runs: bool) -> None:
        self.now, self.uids = 1_000_000.0, 0
        self.budget, self.replicas, self.steps, self.template = budget, 2, 10, 0
        self.suspend, self.restart_id, self.version = False, "", 1
        self.complete = False
        self.pods: dict[str, Pod] = {}
        self.record = Record()
        self.records = [self.record]
        self.specs: dict[str, RLJob] = {}
        self.told: tuple[tuple[str, int], frozenset[str]] = (("", 0), frozenset())
        self.own_failures: set[str] = set()
        self.filled: set[tuple[str, int]] = set()
        self.must_count: Counter[str] = Counter()
        self.in_place: dict[str, int] = {}
        self.judged_trainers: set[int] = set()
        self.last: Plan | None = None
        if runs:
            self._reconcile(acts=None, hears=True)
            for pod in self._in(PodPhase.PENDING):
                self._put(replace(pod, phase=PodPhase.RUNNING, started_at=self.now))
            self._reconcile(acts=None, hears=True)

    # What a user does.

    @rule(replicas=st.integers(1, 4))
    def scale(self, replicas: int) -> None:
        self.replicas = replicas

    @rule()
    def suspend_or_resume(self) -> None:
        self.suspend = not self.suspend

    @rule(again=st.sampled_from(["", "a", "b"]))
    def restart(self, again: str) -> None:
        self.restart_id = again

    @rule(steps=st.integers(10, 12), template=st.integers(0, 1))
    def edit(self, steps: int, template: int) -> None:
        self.steps, self.template = steps, template

    # What a cluster does.

    @precondition(lambda self: self._in(PodPhase.PENDING))
    @rule(data=st.data(), all_of_them=st.booleans())
    def containers_start(self, data: st.DataObject, all_of_them: bool) -> None:
        waiting = self._in(PodPhase.PENDING)
        for pod in waiting if all_of_them else [data.draw(st.sampled_from(waiting))]:
            self._put(replace(pod, phase=PodPhase.RUNNING, started_at=self.now))

    @precondition(lambda self: self._in(PodPhase.RUNNING))
    @rule(data=st.data(), code=st.sampled_from(OWN_ENDS), beside_others=st.booleans())
    def process_ends(self, data: st.DataObject, code: int, beside_others: bool) -> None:
        pod = data.draw(st.sampled_from(self._in(PodPhase.RUNNING)))
        if pod.role == SCHEDULER:
            self._put(replace(pod, restarts=pod.restarts + 1, exit_code=code, ended_at=self.now))
        else:
            self.own_failures.add(pod.uid)
            ended = replace(pod, phase=PodPhase.EXITED, exit_code=code, ended_at=self.now)
            self._put(replace(ended, lingers=beside_others))

    @precondition(lambda self: self._scheduler())
    @rule(data=st.data(), is_taken=st.booleans())
    def last_step_is_trained(self, data: st.DataObject, is_taken: bool) -> None:
        """From now on the scheduler says so, and has sent workers home; it may be taken away at this very moment."""
        self.complete = True
        workers = [p for p in self._in(PodPhase.RUNNING) if p.role != SCHEDULER]
        for pod in data.draw(st.sets(st.sampled_from(workers))) if workers else ():
            self._put(replace(pod, phase=PodPhase.EXITED, exit_code=0, ended_at=self.now))
        if is_taken and (scheduler := self._scheduler()) is not None:
            self._put(replace(scheduler, phase=PodPhase.STOPPING, deletion_at=self.now + 15))

    @precondition(lambda self: self._alive())
    @rule(data=st.data(), how=st.sampled_from(TAKEN))
    def pod_is_taken(self, data: st.DataObject, how: str) -> None:
        pod = data.draw(st.sampled_from(self._alive()))
        ended = replace(pod, phase=PodPhase.EXITED, exit_code=137, ended_at=self.now)
        leaves = replace(pod, phase=PodPhase.STOPPING, deletion_at=self.now + 15)
        target = frozenset({"DisruptionTarget"})
        match how:
            case "kubelet":
                self._put(replace(ended, reasons=("Evicted",)))
            case "turned away":
                self._put(replace(ended, exit_code=None, reasons=("OutOfcpu",), ran=False))
            case "reboot":
                self._put(replace(ended, exit_code=255, reasons=("Unknown",)))
            case "api":
                self._put(replace(leaves, conditions=target))
            case "user":
                self._put(leaves)
            case "node":
                self._put(replace(leaves, conditions=target, node_ready=False))

    @precondition(lambda self: self._stopping())
    @rule(data=st.data(), code=st.sampled_from([0, 1, 137, 143]), shown=st.booleans())
    def kubelet_finishes(self, data: st.DataObject, code: int, shown: bool) -> None:
        pod = data.draw(st.sampled_from(self._stopping()))
        if shown:
            self._put(replace(pod, phase=PodPhase.EXITED, exit_code=code, ended_at=self.now))
        else:
            del self.pods[pod.name]

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def object_vanishes(self, data: st.DataObject) -> None:
        pod = data.draw(st.sampled_from(sorted(self.pods.values(), key=lambda p: p.name)))
        del self.pods[pod.name]

    @rule(data=st.data())
    def node_comes_back(self, data: st.DataObject) -> None:
        lost = sorted(p.name for p in self.pods.values() if not p.node_ready)
        if lost:
            name = data.draw(st.sampled_from(lost))
            self._put(replace(self.pods[name], node_ready=True))

    @rule(seconds=st.sampled_from([0.1, 4.0, 60.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    # What the operator does.

    @rule()
    def operator_is_upgraded(self) -> None:
        self.version += 1

    @rule(looks=st.integers(1, 4))
    def reconcile(self, looks: int) -> None:
        for _ in range(looks):
            self._reconcile(acts=None, hears=True)

    @rule(acts=st.integers(0, 6), hears=st.booleans())
    def operator_dies_on_the_way(self, acts: int, hears: bool) -> None:
        self._reconcile(acts, hears)

    @rule(data=st.data())
    def plan_from_an_old_record_is_refused(self, data: st.DataObject) -> None:
        """Its status write names an old resourceVersion: nothing follows, but nothing may break either."""
        old = data.draw(st.sampled_from(self.records))
        plan(self._job(), self._observed(old), self.now, self._site())

    def _reconcile(self, acts: int | None, hears: bool) -> None:
        before = self.record
        observed = self._observed(before)
        result = plan(self._job(), observed, self.now, self._site())
        again = plan(self._job(), observed, self.now, self._site())
        assert result == again
        self._expect(observed, before, result)
        self.record = read_record(write_record(result.record))
        assert self.record == result.record
        self.records = [*self.records[-5:], self.record]
        assert result.job is not None
        assert spec_hash(result.job) == result.record.spec_hash
        self.specs[result.record.spec_hash] = result.job
        self.last = result
        self.filled |= {(p.name, p.attempt) for p in observed.pods}
        for action in result.actions[:acts]:
            self._act(action)
        if hears and (scheduler := self._scheduler()) is not None:
            self.told = ((scheduler.uid, scheduler.restarts), frozenset(self.record.fenced))

    def _act(self, action: object) -> None:
        match action:
            case StartPod():
                self._start(action)
            case StopPod(uid=uid, name=name, grace=grace):
                if (pod := self.pods.get(name)) and pod.uid == uid and pod.deletion_at is None:
                    if pod.phase is PodPhase.EXITED:
                        del self.pods[name]
                    else:
                        self._put(
                            replace(pod, phase=PodPhase.STOPPING, deletion_at=self.now + grace)
                        )
            case RemovePod(uid=uid, name=name):
                pod = self.pods[name]
                assert pod.uid == uid
                assert pod.phase is PodPhase.EXITED
                if uid in self.own_failures and self._lives():
                    place = next((p for p in desired_pods(self._job()) if p.name == name), None)
                    assert place is None or self.record.scope(place.scope).attempt > pod.attempt
                if pod.node_ready:
                    del self.pods[name]
            case FencePod(uid=uid):
                assert uid in self.record.fenced
            case ForceDelete(uid=uid, name=name):
                self._force(uid, name)

    def _start(self, action: StartPod) -> None:
        assert action.name not in self.pods, "two pods in one place"
        assert (action.name, action.attempt) not in self.filled, "an attempt that was seen, again"
        place = next(p for p in desired_pods(self._job()) if p.name == action.name)
        assert self.record.scope(place.scope).attempt == action.attempt
        if action.role == "trainer":
            others = {p.attempt for p in self.pods.values() if p.role == "trainer"}
            assert others <= {action.attempt}, "ranks of two attempts"
        self.uids += 1
        self._put(
            Pod(
                action.name,
                action.role,
                action.index,
                f"uid-{self.uids}",
                action.attempt,
                PodPhase.PENDING,
                spec_hash=self.record.spec_hash,
                image=action.image,
            )
        )
        versions = {p.image.partition(":")[2] for p in self.pods.values()}
        assert len(versions) == 1, "images of two operators in one run"

    def _force(self, uid: str, name: str) -> None:
        pod = self.pods[name]
        assert pod.uid == uid
        assert not pod.node_ready
        assert pod.deletion_at is not None
        assert self.now >= pod.deletion_at + 30
        assert uid in self.record.fenced
        scheduler = self._scheduler()
        if scheduler is not None and pod.role != SCHEDULER:
            source, gone = self.told
            assert source == (scheduler.uid, scheduler.restarts)
            assert uid in gone, "the scheduler would still listen to it"
        del self.pods[name]

    # What has to be true.

    def _expect(self, observed: Observed, before: Record, result: Plan) -> None:
        """Adds up, from the world's side, what this plan has to count."""
        ends = result.record.finished or result.record.failure or result.record.closing
        judged = not ends or (result.record.failure and not before.failure)
        if not judged:
            return
        wanted = {p.name: p for p in desired_pods(self._job())}
        for pod in observed.pods:
            known = before.scope(pod.name)
            if (
                pod.role == SCHEDULER
                and pod.attempt >= known.attempt
                and pod.uid == known.started.get(pod.name, pod.uid)
            ):
                self.in_place[pod.uid] = max(self.in_place.get(pod.uid, 0), pod.restarts)
        if result.record.failure is None:
            for role in ("inference", "reward", "environment"):
                fresh = [
                    p
                    for p in observed.pods
                    if p.role == role
                    and p.name in wanted
                    and p.uid in self.own_failures
                    and p.phase is PodPhase.EXITED
                    and p.attempt >= before.scope(p.name).attempt
                ]
                self.must_count[role] += len(fresh)
            attempt = before.scope("trainer").attempt
            ranks = [p for p in observed.pods if p.role == "trainer" and p.attempt >= attempt]
            attempt = max((p.attempt for p in ranks), default=attempt)
            ended = sorted(
                (p for p in ranks if p.phase is PodPhase.EXITED and p.attempt == attempt),
                key=lambda p: p.ended_at,
            )
            if ended and ended[0].uid in self.own_failures:
                assert attempt not in self.judged_trainers, "one attempt counted twice"
                self.judged_trainers.add(attempt)
                self.must_count["trainer"] += 1

    @invariant()
    def counters_equal_what_happened(self) -> None:
        if self.record.failure is not None:
            return
        counted = Counter(self.record.restarts)
        for role in ("trainer", "inference", "reward", "environment"):
            assert counted[role] == self.must_count[role], role
        assert counted[SCHEDULER] == sum(self.in_place.values())

    @invariant()
    def the_record_stays_small(self) -> None:
        assert len(str(write_record(self.record))) < 20_000
        assert len(self.record.fenced) <= len(desired_pods(self._job())) + 4

    def teardown(self) -> None:
        """From here on everybody does their duty: the job is suspended, comes to run, or has ended."""
        if not hasattr(self, "pods"):
            return
        if self.suspend:
            last = self._come_to_rest()
            assert last.status.phase in ("Suspended", "Failed", "Succeeded")
            assert last.status.phase != "Suspended" or not self.pods
        self.suspend = False
        last = self._come_to_rest()
        assert last.status.phase in ("Succeeded" if self.complete else "Running", "Failed")
        if last.status.phase == "Failed":
            assert last.status.reason == "RestartsExhausted"
        elif not self.complete:
            assert {p.spec_hash for p in self._in(PodPhase.RUNNING) if p.role == "trainer"} == {
                self.record.spec_hash
            }

    def _come_to_rest(self) -> Plan:
        for _ in range(ROUNDS):
            self._reconcile(acts=None, hears=True)
            last = self.last
            assert last is not None
            runs = last.status.phase == "Running" and not last.actions and not self.suspend
            wanted = {place.name for place in desired_pods(self._job())}
            if last.done or (runs and set(self.pods) == wanted):
                return last
            for pod in list(self.pods.values()):
                if pod.phase is PodPhase.PENDING:
                    self._put(replace(pod, phase=PodPhase.RUNNING, started_at=self.now))
                elif pod.deletion_at is not None and pod.node_ready:
                    del self.pods[pod.name]
            wake = last.wake_at
            self.now = max(self.now + 5.0, min(wake, self.now + 300.0) if wake else 0.0)
        raise AssertionError(f"never came to rest: {self.last}")

    # The world as the operator is shown it.

    def _job(self) -> RLJob:
        return _job(self.steps, self.restart_id, self.replicas, self.template, self.budget)

    def _site(self) -> Site:
        images = {"scheduler_image": f"s:{self.version}", "worker_image": f"w:{self.version}"}
        return replace(SITE, **images)

    def _observed(self, record: Record) -> Observed:
        scheduler = self._scheduler()
        source, gone = self.told
        heard = scheduler is not None and source == (scheduler.uid, scheduler.restarts)
        serving = frozenset(p.uid for p in self._in(PodPhase.RUNNING))
        return Observed(
            pods=tuple(self.pods.values()),
            record=record,
            progress=Progress(ready=serving, finished=self.complete) if scheduler else None,
            suspend=self.suspend,
            status=self.last.status if self.last else None,
            job_of_record=self.specs.get(record.spec_hash),
            fenced=gone if heard else frozenset(),
        )

    def _scheduler(self) -> Pod | None:
        running = self._in(PodPhase.RUNNING)
        return next((p for p in running if p.role == SCHEDULER and p.node_ready), None)

    def _lives(self) -> bool:
        record = self.record
        return not (record.closing or record.finished or record.failure)

    def _in(self, phase: PodPhase) -> list[Pod]:
        found = [p for p in getattr(self, "pods", {}).values() if p.phase is phase]
        return sorted(found, key=lambda p: p.name)

    def _alive(self) -> list[Pod]:
        return [*self._in(PodPhase.PENDING), *self._in(PodPhase.RUNNING)]

    def _stopping(self) -> list[Pod]:
        return [p for p in self._in(PodPhase.STOPPING) if p.node_ready]

    def _put(self, pod: Pod) -> None:
        self.pods[pod.name] = pod


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
