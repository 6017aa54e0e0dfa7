"""The operator and the jobs' schedulers: what it tells them, what it makes of their word."""

import asyncio
import json
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from roll_operator.controller.cluster import links
from roll_operator.controller.cluster.links import LinkPool, Target
from roll_operator.controller.link import SchedulerLink
from roll_operator.plan import Pod, PodPhase
from roll_operator.trust.identity import BadToken
from roll_operator.trust.tokens import Verifier
from roll_wire import control_pb2, control_pb2_grpc
from support.operator_world import ACCOUNT, PLACES, Kubelet, Start, World, eventually


class FakeScheduler(control_pb2_grpc.ControlServicer):
    """The operator's side of a scheduler: remembers what it was told, reports what it is asked to."""

    def __init__(self) -> None:
        self.told: list[control_pb2.Pods] = []
        self.shown = ""
        """The token of the last call."""
        self.finished = False
        self.all_ready = True
        self.step: Callable[[], int] = lambda: 3
        self.last_progress_at: Callable[[], float] = lambda: 0.0
        self.idle_seconds: Callable[[], float | None] = lambda: None
        """Of a scheduler of this release."""

    async def SyncPods(self, request: control_pb2.Pods, context: Any) -> control_pb2.PodsReply:
        self.told.append(request)
        self.shown = dict(context.invocation_metadata()).get("authorization", "")
        return control_pb2.PodsReply()

    async def GetProgress(self, request: Any, context: Any) -> control_pb2.JobProgress:
        current = self.told[-1].current if self.told and self.all_ready else []
        workers = [
            control_pb2.WorkerState(pod=p.name, pod_uid=p.uid, connected=True, ready=True)
            for p in current
        ]
        return control_pb2.JobProgress(
            step=self.step(),
            steps=40,
            checkpoint=-1,
            workers=workers,
            finished=self.finished,
            last_progress_at=self.last_progress_at(),
            idle_seconds=self.idle_seconds(),
        )


async def serve(
    scheduler: FakeScheduler, address: str, trusted: grpc.ServerCredentials | None = None
) -> grpc.aio.Server:
    server = grpc.aio.server()
    control_pb2_grpc.add_ControlServicer_to_server(scheduler, server)
    if trusted is None:
        server.add_insecure_port(address)
    else:
        server.add_secure_port(address, trusted)
    await server.start()
    return server


@contextmanager
def in_background(
    scheduler: FakeScheduler, address: str, trusted: grpc.ServerCredentials
) -> Iterator[None]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(serve(scheduler, address, trusted), loop).result(30)
    yield
    asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # the pool announces changes of the plan only
        await asyncio.sleep(0.005)


def worker(uid: str) -> Pod:
    return Pod(f"sums-reward-{uid}", "reward", 0, uid, 0, PodPhase.RUNNING)


def target(*uids: str, scheduler: str = "s/0", gone: tuple[str, ...] = ()) -> Target:
    pods = tuple(worker(uid) for uid in uids)
    return Target("job", scheduler, "127.0.0.1", "s.sums.ns.svc", b"", pods, gone)


def test_a_scheduler_hears_every_change_and_all_of_it_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        scheduler = FakeScheduler()
        server = await serve(scheduler, "127.0.0.1:17170")
        news: list[str] = []
        pool = LinkPool(news.append, None, lambda: 7, asyncio.get_running_loop().time)
        running = asyncio.create_task(pool.run())

        async def told(count: int) -> control_pb2.Pods:
            await until(lambda: len(scheduler.told) >= count)
            return scheduler.told[count - 1]

        async with asyncio.timeout(30):
            pool.point("ns/sums", target("a", "b"))
            first = await told(1)
            assert [p.uid for p in first.current] == ["a", "b"]
            assert first.authoritative and first.leader == 7
            await until(lambda: pool.progress("ns/sums") is not None)
            pool.point("ns/sums", target("a", gone=("b",)))
            second = await told(2)
            assert [p.uid for p in second.current] == ["a"] and list(second.gone) == ["b"]
            await until(lambda: pool.acknowledged("ns/sums") == {"b"})
            pool.point("ns/sums", target("a", scheduler="s/1", gone=("b",)))
            assert pool.progress("ns/sums") is None, "the word of the one that ended"
            await told(3)
            await until(lambda: pool.progress("ns/sums") is not None)
            await server.stop(0)
            await until(lambda: pool.progress("ns/sums") is None)
        assert "ns/sums" in news
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await pool.close()

    monkeypatch.setattr(links, "PORT", 17170)
    monkeypatch.setattr(links, "POLL_SECONDS", 0.01)
    asyncio.run(scenario())


@pytest.mark.parametrize("all_ready", [True, False])
def test_while_new_jobs_wait_only_those_are_asked_often_that_are_not_ready(
    monkeypatch: pytest.MonkeyPatch, all_ready: bool
) -> None:
    async def scenario() -> None:
        scheduler, asked = FakeScheduler(), 0

        def step() -> int:
            nonlocal asked
            asked += 1
            return 3

        scheduler.step, scheduler.all_ready = step, all_ready
        server = await serve(scheduler, "127.0.0.1:17171")
        clock = asyncio.get_running_loop().time
        pool = LinkPool(lambda key: None, None, lambda: 7, clock, busy=lambda: True)
        running = asyncio.create_task(pool.run())
        pool.point("ns/sums", target("a"))
        async with asyncio.timeout(30):
            await until(lambda: asked > (0 if all_ready else 5))
        await asyncio.sleep(0.3)
        assert asked == 1 or not all_ready
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await pool.close()
        await server.stop(0)

    monkeypatch.setattr(links, "PORT", 17171)
    monkeypatch.setattr(links, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(links, "BUSY_POLLS_PER_SECOND", 0.01)
    asyncio.run(scenario())


def test_a_report_in_which_only_ages_differ_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        scheduler, news, ages = FakeScheduler(), list[str](), list[float]()

        def age() -> float:
            ages.append(float(len(ages)))
            return ages[-1]

        scheduler.idle_seconds = age
        server = await serve(scheduler, "127.0.0.1:17172")
        pool = LinkPool(news.append, None, lambda: 7, asyncio.get_running_loop().time)
        running = asyncio.create_task(pool.run())
        pool.point("ns/sums", target("a"))

        async with asyncio.timeout(30):
            await until(lambda: len(ages) > 3)
            told = len(news)
            await until(lambda: len(ages) > 10)
            assert len(news) == told
            scheduler.step = lambda: 4
            await until(lambda: len(news) > told)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await pool.close()
        await server.stop(0)

    monkeypatch.setattr(links, "PORT", 17172)
    monkeypatch.setattr(links, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(links, "SHOW_SECONDS", 0.0)
    asyncio.run(scenario())


class Pondering(FakeScheduler):
    """Takes its time with every answer."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def GetProgress(self, request: Any, context: Any) -> control_pb2.JobProgress:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


def test_who_asks_a_scheduler_goes_on_when_the_line_is_cut_meanwhile() -> None:
    async def scenario() -> None:
        scheduler = Pondering()
        server = grpc.aio.server()
        control_pb2_grpc.add_ControlServicer_to_server(scheduler, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        link = SchedulerLink(f"127.0.0.1:{port}")
        asking = asyncio.create_task(link.progress())
        await scheduler.asked.wait()

        await link.close()

        await asyncio.wait({asking})
        assert not asking.cancelled(), "a caller of all jobs would be gone with one job's scheduler"
        assert asking.result() is None
        assert await link.progress() is None, "nor does a line that is cut raise anything"
        await server.stop(0)

    asyncio.run(asyncio.wait_for(scenario(), 60))


class Slow(FakeScheduler):
    """The answer to its first question leaves it after that to the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.go = asyncio.Event(), asyncio.Event()

    async def GetProgress(self, request: Any, context: Any) -> control_pb2.JobProgress:
        answer = await super().GetProgress(request, context)
        if not self.first.is_set():
            self.first.set()
            await self.go.wait()
        return answer


def test_what_a_scheduler_said_last_is_not_forgotten_for_an_older_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        scheduler = Slow()
        server = grpc.aio.server()
        control_pb2_grpc.add_ControlServicer_to_server(scheduler, server)
        monkeypatch.setattr(links, "PORT", server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        heard: list[str] = []
        pool = LinkPool(heard.append, None, lambda: 1, time.monotonic)
        calls = asyncio.create_task(pool.run())
        pool.point("ns/sums", target("a"))
        await scheduler.first.wait()  # not finished, and on its way for a while

        scheduler.finished = True
        latest = await pool.last_word("ns/sums")
        assert latest is not None and latest.finished
        assert pool.progress("ns/sums") == latest, "the next look at the job goes by it, too"
        scheduler.go.set()
        await until(lambda: bool(heard))
        known = pool.progress("ns/sums")
        assert known is not None and known.finished, (
            "a job that ended would be shown as it was before"
        )

        calls.cancel()
        await asyncio.wait({calls})
        await pool.close()
        await server.stop(0)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def certificate_of(world: World, namespace: str) -> grpc.ServerCredentials:
    """What the job's scheduler would find in its Secret."""

    def found() -> list[dict[str, str]]:
        return [s["data"] for s in world.all("secrets", namespace) if s["type"].endswith("/tls")]

    (data,) = eventually("its Secret", found)
    key, certificate = b64decode(data["tls.key"]), b64decode(data["tls.crt"])
    return grpc.ssl_server_credentials([(key, certificate)])


def test_a_job_runs_and_ends_by_its_schedulers_word(
    world: World, namespace: str, operator: Start, job: dict[str, Any], tmp_path: Path
) -> None:
    running = operator()
    uid = world.create("rljobs", namespace, job)["metadata"]["uid"]
    scheduler, trusted = FakeScheduler(), certificate_of(world, namespace)
    address = "127.77.0.1"
    with in_background(scheduler, f"{address}:7070", trusted), Kubelet(world, namespace, address):
        eventually("running", lambda: world.job(namespace, "sums")["status"]["phase"] == "Running")
        keys = tmp_path / "jwks.json"
        keys.write_text(json.dumps(world.call("GET", "/openid/v1/jwks")))
        token = scheduler.shown.removeprefix("Bearer ")
        Verifier(keys, uid, ACCOUNT).operator(token)
        with pytest.raises(BadToken, match=r"not for roll\.dev/operator/other"):
            Verifier(keys, "other", ACCOUNT).operator(token)
        uids = {p["metadata"]["uid"] for p in world.all("pods", namespace)}
        assert {p.uid for p in scheduler.told[-1].current} < uids
        assert len(scheduler.told[-1].current) == len(PLACES) - 1
        status = world.job(namespace, "sums")["status"]
        assert status["ready"] == "trainer 1/1, inference 2/2, reward 1/1, environment 1/1"
        code, figures = running.http("/metrics")
        assert code == 200 and 'roll_operator_jobs{phase="Running"} 1.0' in figures

        def step() -> int:
            """Another one is saved when the workers are asked to end."""
            return 3 + (len(world.all("pods", namespace)) == 1)

        scheduler.step = step
        scheduler.finished = True
        eventually(
            "succeeded", lambda: world.job(namespace, "sums")["status"]["phase"] == "Succeeded"
        )
        eventually("no pods", lambda: not world.all("pods", namespace))
        assert world.job(namespace, "sums")["status"]["step"] == 4, "its last word"
    reasons = [e["reason"] for e in world.events(namespace)]
    assert len(reasons) == len(set(reasons)), "one Event for each transition"


def test_a_job_stands_still_only_when_its_scheduler_says_so_now(
    world: World, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    """Its deadline is shorter than the time between two reports."""
    job["spec"]["runPolicy"] = {"progressDeadlineSeconds": 1}
    scheduler = FakeScheduler()
    asked = [0]

    def just_now() -> float:
        asked[0] += 1
        return time.time()

    scheduler.last_progress_at = just_now
    operator()
    world.create("rljobs", namespace, job)
    address, trusted = "127.77.0.2", certificate_of(world, namespace)
    with in_background(scheduler, f"{address}:7070", trusted), Kubelet(world, namespace, address):
        eventually("running", lambda: world.job(namespace, "sums")["status"]["phase"] == "Running")
        asked[0] = 0
        eventually("it was asked many times", lambda: asked[0] > 10)
        assert world.job(namespace, "sums")["status"]["restarts"] == 0
        stopped = time.time()
        scheduler.last_progress_at = lambda: stopped
        eventually("a restart", lambda: world.job(namespace, "sums")["status"]["restarts"] > 0)
