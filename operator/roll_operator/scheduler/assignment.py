"""Who gets a unit: workers with credit, the least loaded first, in rotation among equals.

The samples of a group that wait together go to one worker while its credit lasts: they share their
prompt, which is then computed once.

Invariant: a worker never holds more units than it gave credits for, and a unit suspected of having
killed a worker never shares one with more company than it is allowed.

Units that wait are served: validation first (it pins a version), then next turns of running samples,
then the lowest step.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from roll_operator.scheduler.lifecycle import Group, Lease, SampleState, Unit

# A unit that fits no worker is stepped over; after this many the queue is left for the next turn.
MAX_MISSES = 16
# Versions among which free credits are counted before those without any are forgotten.
MAX_VERSIONS = 8


@dataclass(slots=True, eq=False)
class Worker:
    """A worker process. `load` counts the units it holds: leases, and episodes between turns."""

    id: str
    pod: str
    pod_uid: str
    role: str
    pool: str
    credits: int
    address: str = ""  # of its own services: it serves on the weights that were streamed to it
    version: int | None = None  # of the current lineage
    announced: int | None = None  # newest version it was told of
    connected: bool = True
    draining: bool = False
    last_seen: float = 0.0
    lost_at: float | None = None  # when its leases go back, unless it reconnects
    leases: dict[int, Lease] = field(default_factory=dict)
    residents: set[tuple[int, int]] = field(default_factory=set)
    load: int = 0
    company: int = 0  # the smallest company that a unit here demands; 0: none
    stamp: int = 0  # of its valid place among the candidates
    served: int = 0  # when it last got a unit
    silent: bool = False
    rank: int = 0
    counted_free: int = 0
    counted_version: int | None = None

    @property
    def free(self) -> int:
        if not self.connected or self.draining or self.silent:
            return 0
        limit = min(self.credits, self.company) if self.company else self.credits
        return max(0, limit - self.load)


WAITING = SampleState.WAITING

Fits = Callable[[Unit, Worker], bool]
Grant = Callable[[Sequence[Unit], Worker], object]
# Units with their tickets, in order of arrival; one line for each (has not begun, step).
Lines = dict[tuple[bool, int], deque[tuple[int, Unit]]]


class Pool:
    """The workers that serve one kind of stage, and the units that wait for them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.workers: dict[str, Worker] = {}
        self.waiting: Lines = {}
        self.pinned: Lines = {}
        self.suspects: list[tuple[int, Unit]] = []
        self.queued = 0  # units that wait, in all three
        self.free_by_version: dict[int | None, int] = {}
        self._candidates: list[tuple[int, int, int, Worker]] = []
        self._changed: dict[str, Worker] = {}
        self._near: tuple[Group, Worker] | None = None  # who got the last unit of which group
        self._stamp = 0

    def offer(self, worker: Worker) -> None:
        """The worker's load, credit or version changed: it is looked at again before the next choice."""
        self._changed[worker.id] = worker

    def _refresh(self) -> None:
        """Put each worker that changed where it now belongs."""
        for worker in self._changed.values():
            free = worker.free
            self._count(worker.counted_version, -worker.counted_free)
            self._count(worker.version, free)
            worker.counted_free, worker.counted_version = free, worker.version
            self._stamp += 1
            worker.stamp = self._stamp
            if free > 0:
                entry = (worker.load, worker.served, self._stamp, worker)
                heapq.heappush(self._candidates, entry)
        self._changed.clear()
        if len(self.free_by_version) > MAX_VERSIONS:
            self._forget_versions()
        if len(self._candidates) > 4 * len(self.workers) + 64:
            self._candidates = [e for e in self._candidates if e[3].stamp == e[2]]
            heapq.heapify(self._candidates)

    def _count(self, version: int | None, free: int) -> None:
        self.free_by_version[version] = self.free_by_version.get(version, 0) + free

    def _forget_versions(self) -> None:
        """Versions at which nobody has credit any more: there is a new one after every step."""
        self.free_by_version = {v: n for v, n in self.free_by_version.items() if n}

    def add(self, worker: Worker) -> None:
        self.workers[worker.id] = worker
        self.offer(worker)

    def remove(self, worker: Worker) -> None:
        worker.connected = False
        self.offer(worker)
        self.workers.pop(worker.id, None)

    def free(self, at_least: int | None = None) -> int:
        """Free credits of the workers at this version or newer (None: of all)."""
        if self._changed:
            self._refresh()
        if at_least is None:
            return sum(self.free_by_version.values())
        return sum(n for v, n in self.free_by_version.items() if v is not None and v >= at_least)

    def enqueue(self, unit: Unit, ticket: int) -> None:
        unit.ticket = ticket
        self.queued += 1
        if unit.company and unit.company_in(self.name):
            self.suspects.append((ticket, unit))
            return
        self._line(unit).append((ticket, unit))

    def enqueue_together(self, units: Sequence[Unit], ticket: int) -> None:
        """Units of one group and turn, none of them a suspect, with tickets from this one on."""
        self.queued += len(units)
        line = self._line(units[0])
        for place, unit in enumerate(units, ticket):
            unit.ticket = place
            line.append((place, unit))

    def _line(self, unit: Unit) -> deque[tuple[int, Unit]]:
        lines = self.waiting if unit.group.validation is None else self.pinned
        rank = not (unit.turn or unit.kept), unit.group.step
        line = lines.get(rank)
        if line is None:
            line = lines[rank] = deque()
        return line

    def withdraw(self, unit: Unit) -> None:
        """The unit no longer waits here; its place in the queue is void."""
        unit.ticket = 0
        self.queued -= 1

    def assign(self, fits: Fits, grant: Grant) -> None:
        """Hand out as many waiting units as credits allow."""
        if self._changed:
            self._refresh()
        if not self.queued or not self._candidates:
            return
        if self.suspects:
            waiting, self.suspects = self.suspects, []
            for ticket, unit in waiting:
                still_here = unit.ticket == ticket and unit.state is WAITING
                if still_here and self._hand_out([unit], fits, grant):
                    self.suspects.append((ticket, unit))
        for lines in (self.pinned, self.waiting):
            misses = 0
            for rank in sorted(lines):
                line = lines[rank]
                missed: list[tuple[int, Unit]] = []
                while line and (self._candidates or self._changed) and misses < MAX_MISSES:
                    left = self._hand_out(_next_units(line), fits, grant)
                    if left:
                        misses += len(left)
                        missed += [(unit.ticket, unit) for unit in left]
                if missed:
                    line.extendleft(reversed(missed))
                if not line:
                    del lines[rank]

    def _hand_out(self, units: Sequence[Unit], fits: Fits, grant: Grant) -> Sequence[Unit]:
        """Lease units of one group that wait for the same stage; returns those that no worker can take."""
        while units:
            unit = units[0]
            chosen = self._neighbour(unit, fits)
            if chosen is None:
                chosen = self._least_loaded(unit, fits)
                if chosen is None:
                    break
                self._near = (unit.group, chosen)
                chosen.served = self._stamp
            taken = units[: chosen.free]
            units = units[len(taken) :]
            self.queued -= len(taken)
            for unit in taken:
                unit.ticket = 0
            grant(taken, chosen)
        return units

    def _neighbour(self, unit: Unit, fits: Fits) -> Worker | None:
        """The worker that has just got another unit of the same group, while it has credit."""
        if self._near is None or (unit.company and unit.company_in(self.name)):
            return None
        group, worker = self._near
        return worker if group is unit.group and worker.free > 0 and fits(unit, worker) else None

    def _least_loaded(self, unit: Unit, fits: Fits) -> Worker | None:
        if self._changed:
            self._refresh()
        aside = []
        chosen = None
        most = unit.company and unit.company_in(self.name)
        candidates = self._candidates
        while candidates:
            entry = heapq.heappop(candidates)
            worker = entry[3]
            if worker.stamp != entry[2] or worker.free <= 0:
                continue
            if fits(unit, worker) and not (most and worker.load >= most):
                chosen = worker
                break
            aside.append(entry)
        for entry in aside:
            heapq.heappush(candidates, entry)
        return chosen


def _next_units(line: deque[tuple[int, Unit]]) -> list[Unit]:
    """The first units of the line, as far as they belong together; void places are dropped."""
    units: list[Unit] = []
    group, stage = None, ""
    while line:
        place = line.popleft()
        ticket, unit = place
        if unit.ticket == ticket and unit.state is WAITING:
            if group is None:
                group, stage = unit.group, unit.stage
            elif unit.group is not group or unit.stage != stage:
                line.appendleft(place)
                break
            units.append(unit)
    return units
