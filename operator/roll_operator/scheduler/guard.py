"""The scheduler's door on a cluster: who may call what, decided once per call or stream.

| service | who | shows |
| --- | --- | --- |
| Session | a pod of this job | its token; Hello names the same pod, in the role it was announced with |
| Trainer | a pod of this job announced as trainer | its token |
| Control | the operator | its own token |
| Health  | anybody | nothing |

A token that does not count is UNAUTHENTICATED, a wrong caller PERMISSION_DENIED, a pod that is gone
FAILED_PRECONDITION (a stream gets Refused instead), and whatever time may mend UNAVAILABLE: a pod that is not
announced yet, keys that can't be read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import grpc
import grpc.aio
from roll_wire.credentials import AUTHORIZATION, SCHEME
from roll_wire.session_pb2 import Hello

from roll_operator.scheduler.roster import Roster, Standing
from roll_operator.trust.identity import BadToken, NoKeys

if TYPE_CHECKING:
    from roll_operator.trust.tokens import Verifier  # not where tokens are not asked for

log = logging.getLogger(__name__)

# A pod's first word and the operator's about it come at about the same time: who waits here for a moment
# need not come again seconds later.
ANNOUNCED_SECONDS = 5.0
POLL_SECONDS = 0.1
REPEAT_SECONDS = 60.0  # the same refusal of the same peer is logged this often
REMEMBERED = 1000

Status = grpc.StatusCode
Found = TypeVar("Found")


class Refusal(Exception):
    """A status, and the reason in one line."""

    def __init__(self, status: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Guard(grpc.aio.ServerInterceptor):
    """`verifier` is None where all processes are on one machine: then only the roster counts."""

    def __init__(self, roster: Roster, verifier: Verifier | None) -> None:
        self._roster, self._verifier = roster, verifier
        self._told: dict[tuple[str, str], float] = {}
        if verifier is not None:
            roster.binding = True

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(details)
        try:
            self._check(details.method, _bearer(details.invocation_metadata))
        except Refusal as refusal:
            return self._refusing(handler, details.method, refusal)
        return handler

    async def enter(self, hello: Hello, context: Any) -> None:
        """Returns if this Hello may be listened to. A pod that is gone is told so by whoever reads it."""
        patience = time.monotonic() + ANNOUNCED_SECONDS
        while self._roster.standing(hello.pod_uid) is Standing.UNKNOWN:
            if time.monotonic() >= patience:
                break
            await asyncio.sleep(POLL_SECONDS)
        try:
            self._check_hello(hello, _bearer(context.invocation_metadata()))
        except Refusal as refusal:
            await self._refuse(context, f"Hello of {hello.pod}", refusal)

    def _check(self, method: str, token: str) -> None:
        if self._verifier is None or method.startswith("/grpc.health.v1.Health/"):
            return
        if method.startswith("/roll.v1.Control/"):
            _judged(self._verifier.operator, token)
        elif method.startswith("/roll.v1.Session/"):
            _judged(self._verifier.pod, token)  # the rest when Hello is here
        elif method.startswith("/roll.v1.Trainer/"):
            pod = _judged(self._verifier.pod, token)
            standing = self._roster.standing(pod.uid)
            if standing is Standing.GONE:
                raise Refusal(Status.FAILED_PRECONDITION, f"pod {pod.name} was declared gone")
            self._check_pod(pod.uid, pod.name, "trainer", standing)
        else:
            raise Refusal(Status.PERMISSION_DENIED, f"{method} is for nobody")

    def _check_hello(self, hello: Hello, token: str) -> None:
        if self._verifier is not None:
            pod = _judged(self._verifier.pod, token)
            if pod.uid != hello.pod_uid:
                said = f"Hello names pod uid {hello.pod_uid}, but its token is of {pod.uid}"
                raise Refusal(Status.PERMISSION_DENIED, said)
        standing = self._roster.standing(hello.pod_uid)
        if standing is not Standing.GONE:
            self._check_pod(hello.pod_uid, hello.pod, hello.role, standing)

    def _check_pod(self, uid: str, name: str, role: str, standing: Standing) -> None:
        if standing is Standing.UNKNOWN:
            raise Refusal(
                Status.UNAVAILABLE, f"pod {name} ({uid}) is not yet announced by the operator"
            )
        announced = self._roster.roles.get(uid, role)
        if announced != role:
            raise Refusal(Status.PERMISSION_DENIED, f"pod {name} is {announced}, not {role}")

    def _refusing(self, handler: Any, method: str, refusal: Refusal) -> Any:
        """A handler of the same shape that does nothing but refuse."""

        async def call(request: Any, context: Any) -> None:
            await self._refuse(context, method, refusal)

        async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
            await self._refuse(context, method, refusal)
            yield b""  # never reached: it makes this a stream

        if handler is None:
            return None
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(stream)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(call)

    async def _refuse(self, context: Any, what: str, refusal: Refusal) -> NoReturn:
        peer = str(context.peer()).rpartition(":")[0]  # without the port, which changes
        self._tell(peer, f"refused {what}: {refusal}")
        await context.abort(refusal.status, str(refusal))
        raise refusal

    def _tell(self, peer: str, line: str) -> None:
        now = time.monotonic()
        if now - self._told.get((peer, line), -REPEAT_SECONDS) < REPEAT_SECONDS:
            return
        if len(self._told) >= REMEMBERED:
            self._told.clear()
        self._told[peer, line] = now
        log.warning("%s (%s)", line, peer)


def _bearer(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    for name, value in metadata or ():
        if name == AUTHORIZATION and isinstance(value, str) and value.startswith(SCHEME):
            return value.removeprefix(SCHEME)
    return ""


def _judged(judge: Callable[[str], Found], token: str) -> Found:
    try:
        return judge(token)
    except BadToken as error:
        raise Refusal(Status.UNAUTHENTICATED, str(error)) from error
    except NoKeys as error:
        raise Refusal(Status.UNAVAILABLE, str(error)) from error
