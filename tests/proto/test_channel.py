"""Both ends of a connection agree, and nothing stands between them."""

from concurrent import futures

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from roll_wire.channel import CLIENT_OPTIONS, SERVER_OPTIONS


def test_processes_of_a_job_meet_also_where_a_proxy_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    server = grpc.server(futures.ThreadPoolExecutor(1), options=SERVER_OPTIONS)
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=CLIENT_OPTIONS) as channel:
            asked = health_pb2.HealthCheckRequest()
            answer = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        server.stop(None)
