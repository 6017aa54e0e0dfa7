"""Who gets past the door of a job's scheduler, with tokens of the real cluster."""

import base64
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import jwt
import pytest
from roll_operator.trust.identity import audience
from roll_wire import PROTOCOL, credentials
from roll_wire.control_pb2 import ProgressRequest
from roll_wire.control_pb2_grpc import ControlStub
from roll_wire.session_pb2 import FromWorker, Hello
from roll_wire.session_pb2_grpc import SessionStub
from support.kubernetes import Kubernetes, eventually
from support.rljobs import Job, waiting

SECONDS = 30
TOKEN = "/var/run/secrets/roll/token"


@dataclass
class Door:
    """The scheduler of one job, as its pods reach it; the node reaches pods by their addresses."""

    job: Job
    channel: grpc.Channel = field(init=False)
    uid: str = field(init=False)

    def __post_init__(self) -> None:
        job = self.job
        eventually("the scheduler is ready", self._ready)
        self.uid = job.object()["metadata"]["uid"]
        trust = job.cluster.get("configmap", f"{job.name}-trust", "-n", job.namespace)["data"]
        name = f"{job.name}-scheduler-0.{job.name}.{job.namespace}.svc"
        self.channel = grpc.secure_channel(
            f"{job.pod('scheduler')['status']['podIP']}:7070",
            credentials.client(trust["ca.crt"].encode()),
            [("grpc.ssl_target_name_override", name), ("grpc.enable_http_proxy", 0)],
        )

    def _ready(self) -> bool:
        conditions = self.job.pod("scheduler")["status"].get("conditions", [])
        return {c["type"]: c["status"] for c in conditions}.get("Ready") == "True"

    def says(self, token: str, role: str = "reward", uid: str = "") -> str:
        """To a Hello of this role's pod: welcome, refused, or a status and its reason."""
        hello = Hello(
            job_uid=self.uid,
            role=role,
            pool=role,
            pod=f"{self.job.name}-{role}-0",
            pod_uid=uid or self.job.uid(role),
            incarnation=1,
            credits=1,
            protocol=PROTOCOL,
        )
        shown = [(credentials.AUTHORIZATION, credentials.SCHEME + token)] if token else []
        stream = SessionStub(self.channel).Open(
            iter([FromWorker(hello=hello)]), metadata=shown, timeout=SECONDS
        )
        try:
            return str(next(iter(stream)).WhichOneof("message"))
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
        finally:
            stream.cancel()

    def control(self, token: str) -> str:
        shown = [(credentials.AUTHORIZATION, credentials.SCHEME + token)] if token else []
        try:
            ControlStub(self.channel).GetProgress(
                ProgressRequest(), metadata=shown, timeout=SECONDS
            )
        except grpc.RpcError as error:
            return str(error.code().name)
        return "answered"

    def token(self, role: str = "reward") -> str:
        """The one that the kubelet wrote into the role's pod."""
        return self.job.kubectl("exec", f"{self.job.name}-{role}-0", "--", "cat", TOKEN).strip()

    def minted(self, uid: str, seconds: float = 3600) -> str:
        """Signed with the cluster's own key."""
        cluster, now = self.job.cluster, int(time.time())
        assert cluster.state is not None
        (published,) = jwt.PyJWKSet.from_json(cluster("get", "--raw", "/openid/v1/jwks")).keys
        claims: dict[str, Any] = {
            "iss": "https://kubernetes.default.svc",
            "aud": [audience(self.uid)],
            "exp": now + seconds,
            "kubernetes.io": {"pod": {"name": "any", "uid": uid}},
        }
        key = (cluster.state.pki / "sa.key").read_text()
        return jwt.encode(claims, key, "RS256", headers={"kid": published.key_id})


@pytest.fixture(scope="module")
def doors(operator: Kubernetes) -> Iterator[tuple[Door, Door]]:
    """Of two jobs in one namespace."""
    if operator.state is None:
        pytest.skip("needs the key of the API server and a way to the pods")
    namespace = "test-trust"
    operator("delete", "namespace", namespace, "--ignore-not-found", "--timeout=60s")
    operator("create", "namespace", namespace)
    operator("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    jobs = [Job.apply(operator, namespace, waiting(name)) for name in ("sums", "other")]
    for job in jobs:
        job.until_pods_run(5)
    first, second = (Door(job) for job in jobs)
    yield first, second
    operator("delete", "namespace", namespace, "--wait=false")


def test_a_pod_of_the_job_is_welcome(doors: tuple[Door, Door]) -> None:
    door, _ = doors
    assert door.says(door.token()) == "welcome"
    assert door.says(door.minted(door.job.uid("reward"))) == "welcome"  # so the minted ones count


def test_nobody_enters_without_a_token(doors: tuple[Door, Door]) -> None:
    door, _ = doors
    assert door.says("") == "UNAUTHENTICATED: no token"
    assert door.control("") == "UNAUTHENTICATED"


def test_a_token_of_another_jobs_pod_is_refused(doors: tuple[Door, Door]) -> None:
    door, other = doors
    said = door.says(other.token())
    assert said.startswith(f"UNAUTHENTICATED: the token is for roll.dev/{other.uid}")


def test_a_pod_of_another_job_is_refused_with_any_token(doors: tuple[Door, Door]) -> None:
    door, other = doors
    stranger = other.job.uid("reward")
    said = door.says(door.minted(stranger), uid=stranger)
    assert said.startswith("UNAVAILABLE:") and "not yet announced" in said
    borrowed = door.says(door.token(), uid=stranger)
    assert borrowed.startswith("PERMISSION_DENIED: Hello names pod uid")


def test_an_expired_token_is_refused(doors: tuple[Door, Door]) -> None:
    door, _ = doors
    said = door.says(door.minted(door.job.uid("reward"), seconds=-60))
    assert said == "UNAUTHENTICATED: the token has expired"


def test_a_worker_does_not_take_another_role_nor_the_operators_part(
    doors: tuple[Door, Door],
) -> None:
    door, _ = doors
    said = door.says(door.token(), role="inference", uid=door.job.uid("reward"))
    assert said.startswith("PERMISSION_DENIED:")
    assert door.control(door.token()) == "UNAUTHENTICATED"


def test_the_bundle_holds_no_key(doors: tuple[Door, Door]) -> None:
    """Everybody in the namespace may read ConfigMaps; the key lies in a Secret, for those who serve."""
    job = doors[0].job
    data = job.cluster.get("configmap", "sums-trust", "-n", job.namespace)["data"]
    assert set(data) == {"ca.crt", "jwks.json"} and "PRIVATE" not in str(data)
    (secret,) = [
        item
        for item in job.cluster.get("secrets", "-n", job.namespace)["items"]
        if item["metadata"]["name"].startswith("sums-tls-")
    ]
    assert b"PRIVATE KEY" in base64.b64decode(secret["data"]["tls.key"])
    holders = [
        name
        for name, pod in job.pods().items()
        for volume in pod["spec"]["volumes"]
        if volume.get("secret", {}).get("secretName") == secret["metadata"]["name"]
    ]
    assert sorted(holders) == ["sums-inference-0", "sums-scheduler-0", "sums-trainer-0"]
