"""The scheduler's process behind TLS: who gets in, who does not, and what both sides are told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from roll_operator.controller.link import SchedulerLink
from roll_wire import PROTOCOL, credentials, session_pb2_grpc, trainer_pb2
from roll_wire.control_pb2 import Pod, Pods, ProgressRequest
from roll_wire.control_pb2_grpc import ControlStub
from roll_wire.session_pb2 import FromWorker, Hello
from roll_wire.trainer_pb2_grpc import TrainerStub
from support.minted import JOB_UID, OPERATOR, Issuer, Pki, write_keys
from support.scheduler_process import SECONDS, Peer, Scheduler

PLAIN = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]


@dataclass
class Door(Scheduler):
    """A scheduler as it is started in a pod."""

    pki: Pki = field(init=False)

    def __post_init__(self) -> None:
        self.pki = Pki(self.folder / "pki")
        self.env = {
            "ROLL_LISTEN": f"[::]:{self.port}",
            "ROLL_TRUST": str(self.pki.trust),
            "ROLL_TLS": str(self.pki.tls),
            "ROLL_OPERATOR": OPERATOR,
            "ROLL_SOCKET": str(self.folder / "roll.sock"),
        }

    def channel(self) -> grpc.Channel:
        """The operator's."""
        token = self.pki.token("operator", self.pki.issuer.operator())
        return self.keep(credentials.client(self.pki.roots, token))

    def keep(self, trusting: grpc.ChannelCredentials) -> grpc.Channel:
        options = [*PLAIN, ("grpc.initial_reconnect_backoff_ms", 50)]
        channel = grpc.secure_channel(f"localhost:{self.port}", trusting, options)
        self.channels.append(channel)
        return channel

    def announce(self, leader: int = 1, **pods: str) -> None:
        """uid=role: the operator's whole truth."""
        current = [Pod(name=uid, uid=uid, role=role) for uid, role in pods.items()]
        self.control.SyncPods(
            Pods(job_uid=JOB_UID, current=current, authoritative=True, leader=leader),
            timeout=SECONDS,
        )

    def log(self) -> str:
        """All it said; it is stopped for it."""
        assert self.process
        self.process.terminate()
        return self.process.communicate(timeout=SECONDS)[1]


@dataclass
class Caller:
    """Somebody with a token, or with none; serves as a `Peer`'s scheduler."""

    door: Door
    token: str | None

    def channel(self) -> grpc.Channel:
        path = None if self.token is None else self.door.pki.token(str(id(self)), self.token)
        return self.door.keep(credentials.client(self.door.pki.roots, path))

    def peer(self, uid: str, role: str) -> Peer:
        return Peer(self, role, pod=uid, pod_uid=uid)  # type: ignore[arg-type]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    made = Door(tmp_path)
    made.start()
    yield made
    made.close()


def pod(door: Door, uid: str) -> Caller:
    return Caller(door, door.pki.issuer.pod(uid))


def session(channel: grpc.Channel, **said: Any) -> None:
    hello = {"job_uid": JOB_UID, "role": "reward", "pool": "reward", "pod_uid": "uid-reward"}
    stub = session_pb2_grpc.SessionStub(channel)
    next(
        stub.Open(
            iter([FromWorker(hello=Hello(**(hello | said), protocol=PROTOCOL))]), timeout=SECONDS
        )
    )


def trainer(channel: grpc.Channel) -> None:
    TrainerStub(channel).GetPosition(trainer_pb2.PositionRequest(), timeout=SECONDS)


def shard(channel: grpc.Channel) -> None:
    list(TrainerStub(channel).FetchShard(trainer_pb2.ShardRequest(step=1), timeout=SECONDS))


def control(channel: grpc.Channel) -> None:
    ControlStub(channel).GetProgress(ProgressRequest(), timeout=SECONDS)


def sync(channel: grpc.Channel) -> None:
    ControlStub(channel).SyncPods(Pods(job_uid=JOB_UID, authoritative=True), timeout=SECONDS)


def says(**said: Any) -> Any:
    return lambda channel: session(channel, **said)


def test_the_operators_line_shows_its_token_as_it_is_now(door: Door) -> None:
    async def history() -> None:
        issuer = door.pki.issuer
        shown = issuer.pod("uid-reward")

        async def token() -> str:
            return shown

        link = SchedulerLink(f"127.0.0.1:{door.port}", door.pki.roots, "localhost", token)
        assert await link.progress() is None, "a pod's token opens no door of the operator's"
        shown = issuer.operator()
        assert await link.progress() is not None
        shown = issuer.operator(job="other")
        assert await link.progress() is None, "what another job's scheduler was shown"
        shown = ""
        assert await link.progress() is None, "without a token nobody is called"
        await link.close()

    asyncio.run(asyncio.wait_for(history(), SECONDS))


MINE, STRANGER = Issuer(), Issuer("stranger")
POD = MINE.pod("uid-reward")
TRAINER = MINE.pod("uid-trainer")

REFUSED: list[tuple[str, str | None, Any, str, str]] = [
    ("no token", None, session, "UNAUTHENTICATED", "no token"),
    ("no token", None, trainer, "UNAUTHENTICATED", "no token"),
    ("no token", None, shard, "UNAUTHENTICATED", "no token"),
    ("no token", None, control, "UNAUTHENTICATED", "no token"),
    ("expired", MINE.pod("uid-reward", seconds=-60), session, "UNAUTHENTICATED", "has expired"),
    ("expired", MINE.pod("uid-trainer", seconds=-60), trainer, "UNAUTHENTICATED", "has expired"),
    (
        "another job's pod", MINE.pod("uid-reward", job="other"), session,
        "UNAUTHENTICATED", "the token is for roll.dev/other, not for roll.dev/job-uid",
    ),
    ("another cluster's pod", STRANGER.pod("uid-reward"), session, "UNAUTHENTICATED", "stranger"),
    ("the operator as a worker", MINE.operator(), session, "UNAUTHENTICATED", "roll.dev/operator"),
    (
        "the operator's token for another job", MINE.operator(job="other"), control,
        "UNAUTHENTICATED", "is for roll.dev/operator/other, not for roll.dev/operator/job-uid",
    ),
    (
        "the operator's token for another job", MINE.operator(job="other"), sync,
        "UNAUTHENTICATED", "is for roll.dev/operator/other, not for roll.dev/operator/job-uid",
    ),
    (
        "the operator's token for no job", MINE.sign(aud=["roll.dev/operator"], sub=OPERATOR), sync,
        "UNAUTHENTICATED", "is for roll.dev/operator, not for roll.dev/operator/job-uid",
    ),
    ("for nobody", MINE.sign(sub=OPERATOR), control, "UNAUTHENTICATED", "missing the \"aud\" claim"),
    ("expired", MINE.operator(seconds=-60), control, "UNAUTHENTICATED", "has expired"),
    ("a worker as the operator", POD, control, "UNAUTHENTICATED", "not for roll.dev/operator"),
    ("a worker that dismisses pods", POD, sync, "UNAUTHENTICATED", "not for roll.dev/operator"),
    (
        "somebody else as the operator", MINE.operator("system:serviceaccount:lab:sums"), control,
        "UNAUTHENTICATED", "system:serviceaccount:lab:sums, not of the operator",
    ),
    ("a scorer as the trainer", POD, trainer, "PERMISSION_DENIED", "is reward, not trainer"),
    ("a scorer that reads batches", POD, shard, "PERMISSION_DENIED", "is reward, not trainer"),
    (
        "another pod's name", POD, says(pod_uid="uid-trainer", role="trainer"),
        "PERMISSION_DENIED", "Hello names pod uid uid-trainer, but its token is of uid-reward",
    ),
    ("another role", POD, says(role="inference"), "PERMISSION_DENIED", "is reward, not inference"),
    ("not announced", MINE.pod("uid-new"), trainer, "UNAVAILABLE", "not yet announced"),
    ("not announced", MINE.pod("uid-new"), says(pod_uid="uid-new"), "UNAVAILABLE", "not yet"),
    ("gone", MINE.pod("uid-gone"), trainer, "FAILED_PRECONDITION", "was declared gone"),
]  # fmt: skip


def test_who_is_nobody_here_is_refused_with_a_reason_on_both_sides(tmp_path: Path) -> None:
    door = Door(tmp_path)
    door.pki.issuer = MINE
    write_keys(door.pki.trust / "jwks.json", MINE)
    try:
        door.start()
        everybody = {"uid-reward": "reward", "uid-trainer": "trainer"}
        door.announce(**everybody, **{"uid-gone": "trainer"})
        door.announce(**everybody)
        told = []
        for case, token, call, code, reason in REFUSED:
            with pytest.raises(grpc.RpcError) as refused:
                call(Caller(door, token).channel())
            details = refused.value.details()
            assert (refused.value.code().name, case) == (code, case)
            assert reason in details and "\n" not in details, case
            told.append(details)
        control(door.channel())
        with pytest.raises(grpc.RpcError, match="trainer term 0 is not the current one"):
            trainer(Caller(door, TRAINER).channel())  # as far as the service itself
        log = door.log().splitlines()
    finally:
        door.close()
    for details in told:
        assert any("refused" in line and details in line for line in log), details


def test_a_client_without_tls_gets_nothing(door: Door) -> None:
    with grpc.insecure_channel(f"localhost:{door.port}", options=PLAIN) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            control(channel)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_health_is_for_everybody(door: Door) -> None:
    stub = health_pb2_grpc.HealthStub(Caller(door, None).channel())
    reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_a_pod_that_comes_before_the_operators_word_waits_at_the_door(door: Door) -> None:
    early = pod(door, "uid-reward").peer("uid-reward", "reward")
    assert early.gets_nothing("welcome", 1.0)
    door.announce(**{"uid-reward": "reward"})
    early.expect("welcome")


def test_a_pod_that_left_the_list_is_gone_for_ever(door: Door) -> None:
    door.announce(**{"uid-a": "environment", "uid-b": "environment"})
    leaving = pod(door, "uid-a").peer("uid-a", "environment")
    leaving.expect("welcome")
    door.announce(**{"uid-b": "environment"})
    leaving.send(credit={"credits": 1})  # its stream ends with its next word
    for _ in range(2):
        again = pod(door, "uid-a").peer("uid-a", "environment")
        assert again.expect("refused").reason == "fenced"
        door.announce(**{"uid-a": "environment", "uid-b": "environment"})
    pod(door, "uid-b").peer("uid-b", "environment").expect("welcome")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"job_uid": JOB_UID, "leader": 4}, "leader 5 has spoken"),
        ({"job_uid": "another", "leader": 6}, "the scheduler of job job-uid"),
    ],
)
def test_a_list_from_the_wrong_operator_changes_nothing(
    door: Door, said: dict[str, Any], reason: str
) -> None:
    door.announce(5, **{"uid-reward": "reward"})
    with pytest.raises(grpc.RpcError, match=reason) as refused:
        door.control.SyncPods(Pods(authoritative=True, **said), timeout=SECONDS)
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    pod(door, "uid-reward").peer("uid-reward", "reward").expect("welcome")


def test_a_container_that_restarts_in_its_pod_waits_for_the_operator_again(door: Door) -> None:
    door.announce(**{"uid-a": "reward", "uid-b": "reward", "uid-c": "reward"})
    door.announce(**{"uid-a": "reward", "uid-b": "reward"})
    door.kill()
    door.start()
    peers = {uid: pod(door, uid).peer(uid, "reward") for uid in ("uid-a", "uid-b", "uid-c")}
    assert peers["uid-c"].expect("refused").reason == "fenced", "known from before"
    assert peers["uid-a"].gets_nothing("welcome", 1.0)
    door.announce(**{"uid-a": "reward"})
    peers["uid-a"].expect("welcome")
    assert peers["uid-b"].expect("refused").reason == "fenced", "it left meanwhile"
    with grpc.insecure_channel(f"unix:{door.folder}/roll.sock", options=PLAIN) as channel:
        control(channel)


def test_inside_the_container_control_needs_no_token_and_nothing_else_is_there(door: Door) -> None:
    with grpc.insecure_channel(f"unix:{door.folder}/roll.sock", options=PLAIN) as channel:
        control(channel)
        for call in (session, trainer):
            with pytest.raises(grpc.RpcError) as refused:
                call(channel)
            assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_scheduler_that_is_to_verify_tokens_needs_all_it_takes(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path, env={"ROLL_TRUST": str(tmp_path)})
    _, said = scheduler.launch().communicate(timeout=SECONDS)
    assert scheduler.process and scheduler.process.returncode == 2
    assert said == "error: set ROLL_TLS, ROLL_OPERATOR: callers are to be verified\n"
