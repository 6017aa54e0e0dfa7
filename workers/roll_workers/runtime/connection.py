"""How this process reaches others: TLS and its pod's token on a cluster, in the clear on one machine.

Invariant: what is trusted is read for every connection and the token for every call, so that neither a new
certificate nor a new token needs a new process. The token is shown to the scheduler only.
"""

from __future__ import annotations

from pathlib import Path

import grpc
import grpc.aio
from roll_wire import credentials
from roll_wire.channel import CLIENT_OPTIONS

from roll_workers.errors import UserError
from roll_workers.runtime.config import WorkerConfig


class Unready(Exception):
    """What is needed for a connection is not in its place; it may come."""


def to_scheduler(config: WorkerConfig) -> grpc.Channel:
    if config.trust is None:
        return grpc.insecure_channel(config.scheduler, options=CLIENT_OPTIONS)
    trusting = credentials.client(_roots(config.trust), config.token)
    return grpc.secure_channel(config.scheduler, trusting, options=CLIENT_OPTIONS)


def to_scheduler_aio(config: WorkerConfig) -> grpc.aio.Channel:
    if config.trust is None:
        return grpc.aio.insecure_channel(config.scheduler, options=CLIENT_OPTIONS)
    trusting = credentials.client(_roots(config.trust), config.token)
    return grpc.aio.secure_channel(config.scheduler, trusting, options=CLIENT_OPTIONS)


def to_peer(address: str, trust: Path | None) -> grpc.Channel:
    """To another worker's own services, which ask for no token."""
    if trust is None:
        return grpc.insecure_channel(address, options=CLIENT_OPTIONS)
    return grpc.secure_channel(address, credentials.client(_roots(trust)), options=CLIENT_OPTIONS)


def listen(server: grpc.aio.Server, config: WorkerConfig) -> int:
    """Opens this process's own port, where whoever may reach it does; returns its number."""
    try:
        if config.tls is not None:
            return server.add_secure_port(f"[::]:{config.port}", credentials.server(config.tls))
        # Where others would need TLS and there is no certificate, only the pod itself is served.
        own = config.trust is not None or config.host == "127.0.0.1"
        return server.add_insecure_port(f"{'127.0.0.1' if own else '[::]'}:{config.port}")
    except OSError as error:
        raise UserError(f"ROLL_TLS: the certificate can't be read: {error}") from error
    except RuntimeError as error:
        raise UserError(
            f"ROLL_PORT: can't listen on port {config.port}: it is in use or not allowed; "
            "set another port, or 0 for any free one"
        ) from error


def _roots(trust: Path) -> bytes:
    try:
        return (trust / "ca.crt").read_bytes()
    except OSError as error:
        raise Unready(f"ROLL_TRUST: {error}") from error
