"""What a worker owes the scheduler: leases it works on, results on their way, episodes that live here.

Invariants:
- a lease is in `held` from its Assign until its one result or failure, then in `unacknowledged` until its
  Ack; a Cancel or a fence removes it from either, and what comes for it later is dropped;
- every unacknowledged result is sent again after a reconnect, after the partials that it builds upon;
- sizes are bounded by the credits: the scheduler returns a credit at the Ack.

No sockets and no clock here: `take` yields the next message for the wire.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from roll_wire.columns import lease_of, pack_results
from roll_wire.session_pb2 import (
    Ack,
    Failure,
    Failures,
    FromWorker,
    Held,
    LeaseId,
    Progress,
    ProgressItem,
    Result,
    Task,
    Unit,
)

Key = tuple[int, int]
UnitKey = tuple[int, int]

MAX_ITEMS = 64
MAX_BYTES = 1 << 20


def lease_key(lease: LeaseId) -> Key:
    return lease.term, lease.number


def unit_key(unit: Unit) -> UnitKey:
    return unit.group, unit.index


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Work that is no longer wanted: its results would be dropped."""

    leases: tuple[LeaseId, ...]
    episodes: tuple[Unit, ...]


class Outbox:
    def __init__(self) -> None:
        self.held: dict[Key, Task] = {}
        self.resident: dict[UnitKey, Task] = {}  # the task whose result left the episode here
        self.unacknowledged: dict[Key, Result | Failure] = {}
        self._queue: deque[tuple[Key, Result | Failure]] = deque()
        self._control: deque[FromWorker] = deque()
        self._alive: dict[Key, int] = {}
        self._partials: dict[Key, list[ProgressItem]] = {}
        self._unsent_partials: deque[ProgressItem] = deque()

    # What the scheduler says.

    def assigned(self, tasks: Iterable[Task]) -> list[Task]:
        """The tasks that are new here; an Assign may be repeated after a reconnect."""
        new = []
        for task in tasks:
            key = lease_key(task.lease)
            if key in self.held or key in self.unacknowledged:
                continue
            self.held[key] = task
            if self.resident:
                self.resident.pop(unit_key(task.unit), None)
            new.append(task)
        return new

    def cancelled(self, leases: Iterable[LeaseId], episodes: Iterable[Unit] = ()) -> Cancelled:
        gone = tuple(leases)
        units = {unit_key(unit): unit for unit in episodes}
        for lease in gone:
            key = lease_key(lease)
            self.held.pop(key, None)
            self._forget(key)
            for unit, task in self.resident.items():
                if lease_key(task.lease) == key:
                    units[unit] = task.unit
        for unit in units:
            self.resident.pop(unit, None)
        return Cancelled(gone, tuple(units.values()))

    def acknowledged(self, ack: Ack) -> Cancelled | None:
        """Forgets what was answered; returns what was fenced, if anything."""
        fenced = []
        for lease, verdict in zip(ack.leases, ack.verdicts, strict=True):
            named = lease_of(lease)
            if verdict == Ack.FENCED:
                fenced.append(named)
            else:
                self._forget(lease_key(named))
        return self.cancelled(fenced) if fenced else None

    # What the role says. Each is False when the lease is no longer this worker's.

    def result(self, task: Task, result: Result) -> bool:
        key = lease_key(task.lease)
        if self.held.pop(key, None) is None:
            return False
        if result.resident:
            self.resident[unit_key(task.unit)] = task
        self._enqueue(key, result)
        return True

    def failure(self, task: Task, kind: Failure.Kind, message: str) -> bool:
        key = lease_key(task.lease)
        if self.held.pop(key, None) is None:
            return False
        item = Failure(
            unit=task.unit,
            lease=task.lease,
            stage=task.stage,
            turn=task.turn,
            kind=kind,
            message=message,
        )
        self._enqueue(key, item)
        return True

    def alive(self, task: Task, tokens: int) -> None:
        """A sign of life; only the newest of each lease is sent, with the next `beat`."""
        key = lease_key(task.lease)
        if key in self.held:
            self._alive[key] = tokens

    def waiting(self, tasks: Iterable[Task]) -> bool:
        """Their leases go on though nothing is done for them yet."""
        items = [
            ProgressItem(unit=task.unit, lease=task.lease, waiting=True)
            for task in tasks
            if lease_key(task.lease) in self.held
        ]
        if items:
            self.control(FromWorker(progress=Progress(items=items)))
        return bool(items)

    def recorded(self, task: Task) -> int:
        """Tokens of the task's turn that the scheduler knows already, or will before the next message."""
        partials = self._partials.get(lease_key(task.lease)) if self._partials else None
        return partials[-1].tokens if partials else task.kept_tokens

    def partial(self, task: Task, item: ProgressItem) -> bool:
        key = lease_key(task.lease)
        if key not in self.held:
            return False
        self._partials.setdefault(key, []).append(item)
        self._unsent_partials.append(item)
        return True

    def control(self, message: FromWorker) -> None:
        self._control.append(message)

    # What goes onto the wire.

    def holdings(self) -> list[Held]:
        """Every lease that is still this worker's, for Hello.

        Those whose result waits for its Ack are named too: a scheduler that just started adopts them, and
        finds their result in the next message.
        """
        waiting = [
            _held(item, isinstance(item, Result) and item.resident)
            for item in self.unacknowledged.values()
        ]
        between_turns = [
            _held(task, True)
            for task in self.resident.values()
            if lease_key(task.lease) not in self.unacknowledged
        ]
        return [_held(task, False) for task in self.held.values()] + waiting + between_turns

    def reconnecting(self) -> None:
        """A new Hello is about to be made: after it, everything unacknowledged is due again."""
        self._control.clear()
        self._unsent_partials.clear()
        for items in self._partials.values():
            self._unsent_partials.extend(items)
        self._queue = deque(self.unacknowledged.items())

    def beat(self) -> None:
        """Makes the signs of life since the last beat due."""
        if self._alive:
            items = [
                ProgressItem(unit=task.unit, lease=task.lease, tokens=tokens)
                for key, tokens in self._alive.items()
                if (task := self.held.get(key)) is not None
            ]
            self._alive.clear()
            if items:
                self._control.append(FromWorker(progress=Progress(items=items)))

    def take(self) -> FromWorker | None:
        """The next message: up to 64 items and about 1 MB, partials before results."""
        if self._control:
            return self._control.popleft()
        if self._unsent_partials:
            partials: list[ProgressItem] = []
            size = 0
            while self._unsent_partials and len(partials) < MAX_ITEMS and size < MAX_BYTES:
                partials.append(self._unsent_partials.popleft())
                size += len(partials[-1].partial)
            return FromWorker(progress=Progress(items=partials))
        results: list[Result] = []
        failures: list[Failure] = []
        size = 0
        while self._queue and len(results) + len(failures) < MAX_ITEMS and size < MAX_BYTES:
            key, item = self._queue[0]
            if self.unacknowledged.get(key) is item:
                if isinstance(item, Result):
                    if failures or (results and results[0].stage != item.stage):
                        break
                    results.append(item)
                    size += len(item.payload)
                else:
                    if results:
                        break
                    failures.append(item)
            self._queue.popleft()
        if results:
            return FromWorker(results=pack_results(results))
        if failures:
            return FromWorker(failures=Failures(items=failures))
        return None

    def _enqueue(self, key: Key, item: Result | Failure) -> None:
        self._alive.pop(key, None)
        self.unacknowledged[key] = item
        self._queue.append((key, item))

    def _forget(self, key: Key) -> None:
        self.unacknowledged.pop(key, None)
        self._alive.pop(key, None)
        if self._partials:
            self._partials.pop(key, None)


def _held(of: Task | Result | Failure, resident: bool) -> Held:
    return Held(unit=of.unit, lease=of.lease, stage=of.stage, turn=of.turn, resident=resident)
