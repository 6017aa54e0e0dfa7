"""Who acts: the election in a time that the test moves, with several candidates and one lease."""

import asyncio
import threading
import time
from copy import deepcopy
from typing import Any

import pytest
from roll_operator.controller.cluster.api import CONNECTIONS
from roll_operator.controller.cluster.errors import AlreadyExists, Conflict, NotFound, Unavailable
from roll_operator.controller.cluster.leader import (
    HOLD_SECONDS,
    LEASE_SECONDS,
    Election,
    Leader,
)
from support.api_proxy import Call, Proxy
from support.operator_world import PLACES, Start, World, eventually

Lease = dict[str, Any]


class Leases:
    """The one lease, with the API server's checks."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.version = 0
        self.away = False

    async def get(self, path: str) -> Lease:
        if self.away:
            raise Unavailable(0, "", "no connection")
        if self.lease is None:
            raise NotFound(404, "NotFound", path)
        return deepcopy(self.lease)

    async def create_lease(self, path: str, body: Lease) -> Lease:
        if self.lease is not None:
            raise AlreadyExists(409, "AlreadyExists", path)
        return self._keep(body)

    async def replace_lease(self, path: str, body: Lease) -> Lease:
        assert self.lease is not None
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", path)
        return self._keep(body)

    def _keep(self, body: Lease) -> Lease:
        self.version += 1
        self.lease = deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return deepcopy(self.lease)


def write(election: Election, leases: Leases, now: float) -> bool:
    """One round of a candidate; whether it holds the lease."""

    async def step() -> None:
        lease = deepcopy(leases.lease)
        if not election.observe(lease, now):
            return
        body = election.manifest(lease, "roll-operator", 1_000_000 + now)
        if lease is None:
            written = await leases.create_lease("", body)
        else:
            written = await leases.replace_lease("", body)
        election.won(written, now)

    asyncio.run(step())
    return election.holds(now)


def test_the_first_takes_the_lease_and_the_second_waits() -> None:
    leases, a, b = Leases(), Election("a"), Election("b")
    assert write(a, leases, 0)
    assert not write(b, leases, 1)
    assert write(a, leases, 2)
    assert not write(b, leases, 3)


def test_a_lease_that_is_renewed_is_never_taken_however_long() -> None:
    leases, a, b = Leases(), Election("a"), Election("b")
    for second in range(0, 200, 2):
        assert write(a, leases, second)
        assert not write(b, leases, second + 1)


def test_a_silent_holder_stops_before_another_may_start() -> None:
    leases, a, b = Leases(), Election("a"), Election("b")
    assert write(a, leases, 0)
    assert not write(b, leases, 0.5)
    taken = next(t / 10 for t in range(1, 1000) if write(b, leases, t / 10))
    assert taken >= LEASE_SECONDS
    assert not a.holds(HOLD_SECONDS)
    assert HOLD_SECONDS < LEASE_SECONDS


def test_a_stopped_holder_that_goes_on_knows_that_it_holds_nothing() -> None:
    leases, a, b = Leases(), Election("a"), Election("b")
    write(a, leases, 0)
    write(b, leases, 1)
    assert write(b, leases, 40)
    assert not a.holds(40)
    assert not write(a, leases, 41)
    assert b.holds(41)


def test_times_written_by_other_clocks_decide_nothing() -> None:
    leases, a, b = Leases(), Election("a"), Election("b")
    write(a, leases, 0)
    assert leases.lease is not None
    leases.lease["spec"]["renewTime"] = "1999-01-01T00:00:00.000000Z"
    assert not write(b, leases, 1)


def test_the_term_rises_with_every_holder() -> None:
    leases, a, b = Leases(), Election("a"), Election("b")
    write(a, leases, 0)
    first = a.term
    write(a, leases, 2)
    assert a.term == first > 0
    write(b, leases, 3)
    write(b, leases, 30)
    assert b.term == first + 1
    write(a, leases, 31)
    write(a, leases, 60)
    assert a.term == first + 2


@pytest.mark.parametrize("successor", ["the same", "a stranger"])
def test_the_term_rises_though_the_lease_was_deleted(successor: str) -> None:
    leases, a, b = Leases(), Election("a"), Election("b")
    write(a, leases, 0)
    write(b, leases, 1)
    write(b, leases, 30)
    leases.lease = None

    heir = b if successor == "the same" else Election("c")
    last = b.term
    write(heir, leases, 120)

    assert heir.term > last, "schedulers would refuse the word of an operator with an older term"


def test_a_released_lease_is_taken_at_once() -> None:
    async def scenario() -> None:
        leases = Leases()
        first = Leader(leases, "roll-system", "roll-operator", "a")
        await first._round()
        assert first.holds()
        await first.release()
        assert not first.holds()
        second = Leader(leases, "roll-system", "roll-operator", "b")
        await second._round()
        assert second.holds()

    asyncio.run(scenario())


def test_of_two_that_write_at_once_one_wins() -> None:
    leases, a, b = Leases(), Election("a"), Election("b")
    write(a, leases, 0)
    leases.lease["spec"]["holderIdentity"] = ""  # type: ignore[index]
    lease = deepcopy(leases.lease)
    assert b.observe(lease, 1) and a.observe(lease, 1)
    asyncio.run(leases.replace_lease("", b.manifest(lease, "roll-operator", 1)))
    with pytest.raises(Conflict):
        asyncio.run(leases.replace_lease("", a.manifest(lease, "roll-operator", 1)))


def test_a_leader_without_an_api_server_loses_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roll_operator.controller.cluster.leader.RENEW_SECONDS", 0.001)
    monkeypatch.setattr("roll_operator.controller.cluster.leader.RETRY_SECONDS", 0.001)

    async def scenario() -> None:
        leases, now = Leases(), [0.0]
        leader = Leader(leases, "roll-system", "roll-operator", "a", clock=lambda: now[0])
        running = asyncio.create_task(leader.run())
        async with asyncio.timeout(10):
            await leader.acquired.wait()
            leases.away = True
            now[0] += HOLD_SECONDS - 1
            await asyncio.sleep(0.02)
            assert leader.holds() and not leader.lost.is_set()
            now[0] += 1
            await running
        assert leader.lost.is_set() and not leader.holds()

    asyncio.run(scenario())


def test_a_lease_is_renewed_while_every_other_call_waits_for_its_answer(
    world: World, proxy: Proxy, namespace: str, operator: Start, job: dict[str, Any]
) -> None:
    running = operator()
    eventually("it leads", lambda: '"leader": true' in running.http("/healthz")[1])
    held: list[str] = []
    go = threading.Event()

    def hold(call: Call) -> threading.Event | None:
        if not call.is_write or not call.path.endswith("/pods"):
            return None
        held.append(call.path)
        return go

    proxy.hold = hold
    jobs = [f"sums-{number}" for number in range(CONNECTIONS // len(PLACES) + 1)]
    for name in jobs:
        world.create("rljobs", namespace, job | {"metadata": {"name": name}})
    eventually("no connection is free", lambda: len(held) >= CONNECTIONS)
    full = time.monotonic()
    eventually("the lease would be lost", lambda: time.monotonic() > full + HOLD_SECONDS + 1)
    assert '"leader": true' in running.http("/healthz")[1]
    go.set()
    count = len(jobs) * len(PLACES)
    eventually("all pods", lambda: len(world.all("pods", namespace)) == count)
    assert running.alive()
