"""Workers and a trainer as plain data: what each knows, for `scheduler_machine`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from roll_operator.scheduler.arrivals import Arrived


class Said(NamedTuple):
    """What a worker says about one lease that it ends by a result."""

    group: int
    idx: int
    lease: int
    turn: int
    payload: bytes
    tokens: int = 0
    oldest: int | None = None
    newest: int | None = None
    lineage: int | None = None
    reward: float | None = None
    done: bool = False
    resident: bool = False
    base: int = 0


def message(stage: str, said: Sequence[Said]) -> Arrived:
    """As the scheduler reads a message of them."""
    versions = [each.lineage if each.oldest is not None else 0 for each in said]
    return Arrived(
        stage=stage,
        groups=[each.group for each in said],
        indices=[each.idx for each in said],
        leases=[each.lease for each in said],
        turns=[each.turn for each in said],
        sizes=[len(each.payload) for each in said],
        payloads=b"".join(each.payload for each in said),
        tokens=[each.tokens for each in said],
        lineages=[lineage or 0 for lineage in versions],
        oldest=[each.oldest or 0 for each in said],
        newest=[each.newest or 0 for each in said],
        has_reward=[each.reward is not None for each in said],
        rewards=[each.reward or 0.0 for each in said],
        done=[each.done for each in said],
        resident=[each.resident for each in said],
        base=[each.base for each in said],
    )


@dataclass
class Held:
    """A task as the worker sees it."""

    lease: int
    group: int
    index: int
    stage: str
    turn: int
    min_version: int
    validation: bool
    kept: int
    partials: bool = False
    began: tuple[int, int] | None = None  # the version that its first token is of
    at_home: bool = False  # its episode was here when it came


@dataclass
class Outcome:
    """A result on its way."""

    task: Held
    kind: str  # result | failure
    version: int | None
    oldest: int | None = None
    reward: float | None = None
    done: bool = False
    cause: str = "infrastructure"
    lineage: int | None = None


@dataclass
class SimWorker:
    role: str
    name: str
    uid: str
    incarnation: int = 1
    credits: int = 4
    version: tuple[int, int] | None = None  # (lineage, number)
    offered: tuple[int, int] | None = None
    digest: str = ""  # of what it was offered
    held: dict[int, Held] = field(default_factory=dict)
    unacked: dict[int, Outcome] = field(default_factory=dict)
    sent: list[Outcome] = field(default_factory=list)  # everything ever sent, to be sent again
    residents: dict[tuple[int, int], Held] = field(default_factory=dict)
    connected: bool = False
    refused: str = ""
    hung: bool = False  # takes what it is sent, and is never heard again

    @property
    def id(self) -> str:
        return f"{self.uid}/{self.incarnation}"


@dataclass
class SimTrainer:
    attempt: int
    uid: str
    term: int = 0
    lineage: int = 1
    step: int = -1  # the weights it holds; -1: not started
    acquired: int = 0
    alive: bool = True
    welcomed: bool = False
    published: bool = False

    @property
    def id(self) -> str:
        return f"{self.uid}/1"
