"""Where a scheduler is reached, and by what it knows its callers: its environment, read once.

Invariant: with ROLL_TRUST nothing is served in the clear but Control on a unix socket, which only somebody
inside the container can reach. Without it everything is on the loopback of one machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
from roll_wire import control_pb2_grpc, credentials
from roll_wire.channel import SERVER_OPTIONS

if TYPE_CHECKING:
    from roll_operator.trust.tokens import Verifier


class BadPlace(Exception):
    """The scheduler can't be reached as its environment says; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Place:
    listen: str  # host:port
    job_uid: str = ""
    trust: Path | None = None  # folder with jwks.json
    tls: Path | None = None  # folder with tls.crt and tls.key
    operator: str = ""  # subject of the operator's token
    socket: Path | None = None  # for `kubectl exec`

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Place:
        place = cls(
            listen=env["ROLL_LISTEN"],
            job_uid=env.get("ROLL_JOB_UID", ""),
            trust=_path(env, "ROLL_TRUST"),
            tls=_path(env, "ROLL_TLS"),
            operator=env.get("ROLL_OPERATOR", ""),
            socket=_path(env, "ROLL_SOCKET"),
        )
        if place.trust or place.tls:
            needed = ("ROLL_TRUST", "ROLL_TLS", "ROLL_OPERATOR", "ROLL_JOB_UID")
            if missing := [name for name in needed if not env.get(name)]:
                raise BadPlace(f"set {', '.join(missing)}: callers are to be verified")
        return place

    def verifier(self) -> Verifier | None:
        """What judges tokens; None where none are asked for."""
        if self.trust is None:
            return None
        # Only now: a job on one machine needs neither of the libraries behind it.
        from roll_operator.trust.tokens import Verifier

        return Verifier(self.trust / "jwks.json", self.job_uid, self.operator)

    def open_port(self, server: grpc.aio.Server) -> None:
        try:
            if self.tls is None:
                server.add_insecure_port(self.listen)
            else:
                server.add_secure_port(self.listen, credentials.server(self.tls))
        except OSError as error:
            raise BadPlace(f"the certificate in {self.tls} can't be read: {error}") from error
        except RuntimeError as error:
            raise BadPlace(
                f"the scheduler cannot listen on {self.listen}: is the port in use?"
            ) from error

    async def serve_socket(
        self, control: control_pb2_grpc.ControlServicer
    ) -> grpc.aio.Server | None:
        """Control alone, without a token: whoever reaches the socket is inside the container."""
        if self.socket is None:
            return None
        self.socket.unlink(missing_ok=True)  # of a container before this one, in the same pod
        server = grpc.aio.server(options=SERVER_OPTIONS)
        control_pb2_grpc.add_ControlServicer_to_server(control, server)
        try:
            server.add_insecure_port(f"unix:{self.socket}")
        except RuntimeError as error:
            raise BadPlace(f"the scheduler cannot listen on the socket {self.socket}") from error
        await server.start()
        return server


def _path(env: Mapping[str, str], name: str) -> Path | None:
    return Path(env[name]) if env.get(name) else None
