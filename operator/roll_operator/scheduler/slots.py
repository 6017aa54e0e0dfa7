"""The slots of steps: step T has B of them, each free or held by one group.

Invariant: a live training group holds exactly one slot, and a slot at most one group.
"""

from __future__ import annotations

import heapq

from roll_operator.scheduler.lifecycle import Group, GroupState


class Slots:
    """Free slots are found lowest first; the ready groups of each step are counted as they change."""

    def __init__(self, per_step: int) -> None:
        self.per_step = per_step
        self._held: dict[int, dict[int, Group]] = {}
        self._free: dict[int, list[int]] = {}
        self.ready: dict[int, int] = {}

    def _open(self, step: int) -> dict[int, Group]:
        held = self._held.get(step)
        if held is None:
            held = self._held[step] = {}
            self._free[step] = list(range(1, self.per_step + 1))
            self.ready[step] = 0
        return held

    def lowest_free(self, step: int) -> int | None:
        held = self._open(step)
        free = self._free[step]
        while free and free[0] in held:
            heapq.heappop(free)
        return free[0] if free else None

    def place(self, group: Group, step: int, slot: int) -> None:
        held = self._open(step)
        if slot in held:
            raise RuntimeError(f"slot {slot} of step {step} is held by group {held[slot].id}")
        held[slot] = group
        group.step, group.slot = step, slot
        if group.state is GroupState.READY:
            self.ready[step] += 1

    def release(self, group: Group) -> None:
        held = self._held[group.step]
        if held.get(group.slot) is not group:
            raise RuntimeError(f"group {group.id} does not hold slot {group.slot}/{group.step}")
        del held[group.slot]
        heapq.heappush(self._free[group.step], group.slot)
        if group.state is GroupState.READY:
            self.ready[group.step] -= 1

    def now_ready(self, group: Group) -> None:
        """The group has just become ready, in its slot."""
        self.ready[group.step] += 1

    def of(self, step: int) -> dict[int, Group]:
        return self._open(step)

    def steps(self) -> list[int]:
        return sorted(self._held)

    def forget(self, step: int) -> None:
        """The step has its batch: its slots are history."""
        self._held.pop(step, None)
        self._free.pop(step, None)
        self.ready.pop(step, None)
