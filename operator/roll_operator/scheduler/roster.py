"""Which pods are the job's, in the operator's words.

Invariants:
- a pod that was declared gone, or that left the operator's list, is gone for ever, whatever is said later;
- where the list binds (on a cluster) only a pod in it gets anything, and nobody does before the operator has
  spoken to this process: what happened while the scheduler was away is not known before;
- the word of an operator that is no longer the leader changes nothing.

The pods that are gone need not all be remembered where the list binds: who is not in it stays outside anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

GONE_KEPT = 1000


class Standing(Enum):
    """What a pod is to the job."""

    CURRENT = auto()
    UNKNOWN = auto()  # not announced yet, or never
    GONE = auto()


class Outdated(Exception):
    """The speaker is not the leader any more."""


@dataclass(slots=True)
class Roster:
    roles: dict[str, str] = field(default_factory=dict)  # uid -> role, of the pods in the list
    gone: dict[str, None] = field(default_factory=dict)  # uids, oldest first
    binding: bool = False  # only who is in the list gets anything
    heard: bool = False  # the operator has spoken to this process
    leader: int = 0

    def standing(self, uid: str) -> Standing:
        if uid in self.gone:
            return Standing.GONE
        if not self.binding or (self.heard and uid in self.roles):
            return Standing.CURRENT
        return Standing.UNKNOWN

    def replace(self, current: Mapping[str, str], leader: int) -> list[str]:
        """The whole truth, uid -> role. Returns who was in the list and no longer is."""
        if leader < self.leader:
            raise Outdated(
                f"leader {self.leader} has spoken; leader {leader} is not heard any more"
            )
        left = [uid for uid in self.roles if uid not in current]
        self.roles = {uid: role for uid, role in current.items() if uid not in self.gone}
        self.leader, self.binding, self.heard = leader, True, True
        return left

    def dismiss(self, uids: Iterable[str]) -> list[str]:
        """These are gone for ever. Returns those that were not before."""
        new = [uid for uid in dict.fromkeys(uids) if uid not in self.gone]
        for uid in new:
            self.gone[uid] = None
            self.roles.pop(uid, None)
        if self.binding:
            for uid in list(self.gone)[:-GONE_KEPT]:
                del self.gone[uid]
        return new

    def record(self) -> dict[str, Any]:
        """What survives this process, for the ledger's meta rows."""
        listed = {"roster": [self.leader, self.roles]} if self.heard else {}
        return {"fenced_pods": list(self.gone)} | listed

    @classmethod
    def restored(cls, meta: Mapping[str, Any]) -> Roster:
        leader, roles = meta.get("roster", (0, {}))
        gone = dict.fromkeys(meta.get("fenced_pods", ()))
        return cls(dict(roles), gone, binding="roster" in meta, leader=leader)
