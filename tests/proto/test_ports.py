import socket
from contextlib import closing
from pathlib import Path

import pytest
from roll_wire import ports


def test_a_port_in_use_is_seen() -> None:
    with socket.socket() as busy:
        busy.bind((ports.LOOPBACK, 0))
        busy.listen()
        assert not ports.port_is_free(busy.getsockname()[1])


def test_a_chosen_port_is_never_the_near_end_of_a_connection() -> None:
    """The kernel gives a client any free port of its range, also the one that a server was promised."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    for _ in range(200):
        port = ports.free_port()
        assert not low <= port <= high
        assert ports.port_is_free(port)


def test_a_taken_port_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.socket()) as busy:
        busy.bind((ports.LOOPBACK, ports.free_port()))
        busy.listen()
        taken = busy.getsockname()[1]
        monkeypatch.setattr(ports, "_LOWEST", taken)
        monkeypatch.setattr(ports, "_NODE_PORTS", 1 << 16)
        monkeypatch.setattr(ports, "_ephemeral", lambda: (taken + 1, 65535))
        assert ports.free_port() != taken


def test_where_every_port_is_the_kernels_one_of_them_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = tmp_path / "ip_local_port_range"
    everything.write_text("1024\t65535\n")
    monkeypatch.setattr(ports, "_EPHEMERAL", everything)
    assert ports.port_is_free(ports.free_port())
