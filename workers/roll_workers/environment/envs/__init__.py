"""What an environment is: `reset(seed)` and `step(action)`, in the spirit of Gymnasium, with text.

An environment says how an episode survives the death of its pod: `Exact` replays the recorded actions on
the same seed, `Snapshot` restores the last recorded state (`snapshot()` and `restore(state)`), `None`
starts the episode again. `validation` asks for an episode that training never sees; an environment whose
seeds alone tell episodes apart need not look at it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol


class Replay(Enum):
    EXACT = "Exact"
    SNAPSHOT = "Snapshot"
    NONE = "None"


@dataclass(slots=True)
class Observation:
    """What the policy sees next: text, or tokens where the environment makes them itself."""

    text: str = ""
    tokens: Sequence[int] | None = None
    facts: dict[str, Any] = field(
        default_factory=dict
    )  # known at reset: for scorers, as JSON values


@dataclass(slots=True)
class Step:
    observation: Observation
    reward: float = 0.0
    done: bool = False
    info: dict[str, Any] = field(default_factory=dict)


class InvalidAction(Exception):
    """Raised by `step` for an action that does not exist: the turn counts as one without an action."""


class Env(Protocol):
    replay: Replay

    def reset(self, seed: int, validation: bool = False) -> Observation: ...

    def step(self, action: str) -> Step: ...


def observation_hash(observation: Observation, reward: float, done: bool) -> bytes:
    """blake2b-16 of the canonical form; two episodes are equal as long as these are."""
    tokens = None if observation.tokens is None else [int(token) for token in observation.tokens]
    canonical = json.dumps([observation.text, tokens, float(reward), bool(done)])
    return hashlib.blake2b(canonical.encode(), digest_size=16).digest()
