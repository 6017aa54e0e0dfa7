"""Ports for servers of this machine that are chosen before the server is there.

Invariant: wherever the system leaves room for it, a chosen port lies outside of the range from which the kernel
takes the near ends of outgoing connections. Inside that range a port that was free a moment ago may be any
client's when the server comes to listen; and a client that dials it on the loopback until the server is up can
get it as its own near end, is then connected with itself, and keeps the server out.
"""

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 15_000  # below it, services with a number of their own are common
_NODE_PORTS = 30_000  # from here to 32767 a Kubernetes node forwards to Services
_LAST = 65_535
_TRIES = 100


def free_port(host: str = LOOPBACK) -> int:
    """One that nobody listens on, and that the kernel hands to nobody."""
    low, high = _ephemeral()
    candidates: list[int] = [*range(_LOWEST, min(low, _NODE_PORTS)), *range(high + 1, _LAST + 1)]
    for port in random.sample(candidates, min(_TRIES, len(candidates))):
        if port_is_free(port, host):
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int, host: str = LOOPBACK) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def _ephemeral() -> tuple[int, int]:
    try:
        low, high = (int(word) for word in _EPHEMERAL.read_text().split())
    except (OSError, ValueError):  # not Linux: no range is known to be spared
        return _LOWEST, _LAST
    return low, high
