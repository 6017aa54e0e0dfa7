"""The operator's tokens for schedulers: one for each job, asked for once in most of an hour."""

import asyncio
import time
from typing import Any

import pytest
from roll_operator.controller.cluster.errors import Forbidden
from roll_operator.controller.cluster.tokens import LIFETIME, RETRY_SECONDS, OperatorTokens

BEGAN = 1_000_000_000.0


class Server:
    """Makes tokens for an account, as the API server does."""

    def __init__(self) -> None:
        self.now, self.asked, self.down = BEGAN, list[str](), False
        self.page = False  # something between answers in its stead

    async def create(self, path: str, body: Any) -> Any:
        assert path == "/api/v1/namespaces/roll-system/serviceaccounts/roll-operator/token"
        (audience,) = body["spec"]["audiences"]
        self.asked.append(audience)
        if self.down:
            raise Forbidden(403, "Forbidden", "not yours")
        if self.page:
            raise ValueError("Expecting value: line 1 column 1 (char 0)")
        ends = time.gmtime(self.now + body["spec"]["expirationSeconds"])
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", ends)
        return {"status": {"token": f"{len(self.asked)}", "expirationTimestamp": stamp}}


def tokens(server: Server) -> OperatorTokens:
    return OperatorTokens(server, "roll-system", "roll-operator", lambda: server.now)  # type: ignore[arg-type]


def test_a_token_is_for_one_job_and_serves_for_two_thirds_of_its_life() -> None:
    server = Server()
    held = tokens(server)

    async def scenario() -> None:
        assert [await held.of("a"), await held.of("b"), await held.of("a")] == ["1", "2", "1"]
        assert server.asked == ["roll.dev/operator/a", "roll.dev/operator/b"]
        server.now += LIFETIME * 0.66
        assert await held.of("a") == "1"
        server.now += LIFETIME * 0.01
        assert await held.of("a") == "3"
        server.now += LIFETIME * 0.34
        assert await held.of("c") == "4"
        assert sorted(held._held) == ["a", "c"], "nobody asked for that of job b again"

    asyncio.run(scenario())


def test_without_a_token_the_api_server_is_not_asked_with_every_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()
    server.down = True
    held = tokens(server)

    async def scenario() -> None:
        assert [await held.of("a"), await held.of("a")] == ["", ""]
        assert len(server.asked) == 1 and "no token for the scheduler of job a" in caplog.text
        server.down, server.now = False, server.now + RETRY_SECONDS
        assert await held.of("a") == "2"

        server.down, server.now = True, server.now + LIFETIME * 0.7
        assert await held.of("a") == "2", "it is still valid"
        server.now += LIFETIME * 0.31
        assert await held.of("a") == ""

    asyncio.run(scenario())


def test_an_answer_that_is_none_is_no_token(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.page = True
    held = tokens(server)
    assert asyncio.run(held.of("a")) == ""
    assert "no token for the scheduler of job a: Expecting value" in caplog.text
