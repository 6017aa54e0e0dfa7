"""Who acts: one of several operators, by a Lease that is renewed while its holder lives.

Invariants: an operator acts only while `holds()`, which ends by the operator's own clock before another may
take the lease; every write of the lease names the version that was read, so that two never both succeed.
A process that was stopped meanwhile finds `holds()` false when it goes on, before its next write.

Others judge by how long they saw the lease unchanged, never by the times written in it: clocks differ.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from roll_operator.controller.cluster.errors import ApiError

LEASE_SECONDS = 15.0
"""Others take the lease when it did not change for this long: as in Kubernetes' own controllers."""
HOLD_SECONDS = 10.0
"""The holder acts this long after the start of its last renewal that succeeded."""
RENEW_SECONDS = 2.0
RETRY_SECONDS = 0.5

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Election:
    """The decisions, without clock and network: what to write after what was read."""

    identity: str
    seen: tuple[str, str] = ("", "")
    """Holder and version of the lease as last read."""
    seen_at: float = 0.0
    renewed_at: float | None = None
    """Start of the last renewal that succeeded."""
    term: int = 0
    """Rises with every new holder: schedulers refuse the word of an older one."""

    def observe(self, lease: dict[str, Any] | None, now: float) -> bool:
        """Takes note of the lease; whether this operator may write itself in."""
        if lease is None:
            return True
        holder = lease.get("spec", {}).get("holderIdentity") or ""
        version = (holder, lease["metadata"]["resourceVersion"])
        if version != self.seen:
            self.seen, self.seen_at = version, now
        return holder in ("", self.identity) or now >= self.seen_at + LEASE_SECONDS

    def won(self, lease: dict[str, Any], asked_at: float) -> None:
        self.seen = (self.identity, lease["metadata"]["resourceVersion"])
        self.seen_at = self.renewed_at = asked_at
        self.term = int(lease["spec"].get("leaseTransitions") or 0) + 1

    def lost(self) -> None:
        self.renewed_at = None

    def holds(self, now: float) -> bool:
        return self.renewed_at is not None and now < self.renewed_at + HOLD_SECONDS

    def manifest(self, lease: dict[str, Any] | None, name: str, wall: float) -> dict[str, Any]:
        """The lease with this operator as its holder."""
        spec = dict((lease or {}).get("spec", {}))
        stamp = datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if spec.get("holderIdentity") != self.identity:
            spec["acquireTime"] = stamp
            if lease is None:
                # Somebody may have deleted the one before, whose terms the schedulers remember.
                spec["leaseTransitions"] = max(self.term, int(wall // 60))
            else:
                spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        spec |= {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(LEASE_SECONDS),
            "renewTime": stamp,
        }
        metadata: dict[str, Any] = {"name": name}
        if lease is not None:
            metadata["resourceVersion"] = lease["metadata"]["resourceVersion"]
        return _lease(metadata, spec)


class LeaseApi(Protocol):
    async def get(self, path: str) -> dict[str, Any]: ...
    async def create_lease(self, path: str, body: dict[str, Any]) -> dict[str, Any]: ...
    async def replace_lease(self, path: str, body: dict[str, Any]) -> dict[str, Any]: ...


class Leader:
    """Keeps the lease. `lost` is set for ever once it was held and is not any more."""

    def __init__(
        self,
        api: LeaseApi,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._name, self._clock = api, name, clock
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._election = Election(identity)
        self.acquired = asyncio.Event()
        self.lost = asyncio.Event()

    def holds(self) -> bool:
        return not self.lost.is_set() and self._election.holds(self._clock())

    @property
    def term(self) -> int:
        return self._election.term

    async def run(self) -> None:
        """Returns when the lease is lost."""
        while not self.lost.is_set():
            pause = RENEW_SECONDS
            try:
                async with asyncio.timeout(RENEW_SECONDS * 2):
                    await self._round()
            except (ApiError, TimeoutError) as error:
                log.warning("lease %s: %s", self._name, str(error) or "no answer")
                pause = RETRY_SECONDS
            if self.acquired.is_set() and not self._election.holds(self._clock()):
                self._election.lost()
                self.lost.set()
                return
            if self._election.holds(self._clock()):
                self.acquired.set()
            await asyncio.sleep(pause)

    async def release(self) -> None:
        """Lets another take over without waiting; the work here is over."""
        if not self.holds():
            return
        self.lost.set()
        try:
            async with asyncio.timeout(RENEW_SECONDS):
                lease = await self._api.get(f"{self._leases}/{self._name}")
                if lease["spec"].get("holderIdentity") == self._election.identity:
                    spec = lease["spec"] | {"holderIdentity": ""}
                    metadata = lease["metadata"]
                    await self._api.replace_lease(
                        f"{self._leases}/{self._name}", _lease(metadata, spec)
                    )
        except (ApiError, TimeoutError) as error:
            log.info("the lease %s ends by itself: %s", self._name, error)

    async def _round(self) -> None:
        asked_at = self._clock()
        lease = await self._read()
        if not self._election.observe(lease, asked_at):
            if self.acquired.is_set():
                self._election.lost()
            return
        body = self._election.manifest(lease, self._name, time.time())
        if lease is None:
            written = await self._api.create_lease(self._leases, body)
        else:
            written = await self._api.replace_lease(f"{self._leases}/{self._name}", body)
        self._election.won(written, asked_at)

    async def _read(self) -> dict[str, Any] | None:
        try:
            return await self._api.get(f"{self._leases}/{self._name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise


def _lease(metadata: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": spec,
    }
