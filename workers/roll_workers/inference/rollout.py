"""One sample while the engine works on it: from the task's payload to an action piece.

Invariant: tokens, log-probs and versions grow together; what was reported as a partial is never reported
again, so the partials and the result of a lease add up to the turn.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from roll_api import RLJob
from roll_wire.session_pb2 import Task

from roll_workers.inference.engines import Delta, Request, Tokens
from roll_workers.inference.engines.sampling import reseed
from roll_workers.runtime.outbox import Key, lease_key
from roll_workers.runtime.trajectory import ActionWriter, Trajectory
from roll_workers.text import Codec

_TAIL = 32  # tokens before the new ones in which a stop text may have begun


class CannotStart(Exception):
    """The sample's own fault: it does not fit into the model."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the job wants tokens to be drawn."""

    temperature: float
    validation_temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int
    eos: tuple[int, ...]
    texts: tuple[str, ...]  # that end an answer too

    @classmethod
    def of_job(cls, job: RLJob, eos: tuple[int, ...]) -> Sampling:
        spec, wanted = job.spec, job.spec.rollout.sampling
        holder = spec.data or spec.environment
        validation = holder.validation if holder else None
        return cls(
            temperature=wanted.temperature,
            validation_temperature=validation.temperature if validation else 0.0,
            top_p=wanted.top_p,
            top_k=wanted.top_k,
            max_new_tokens=wanted.max_new_tokens,
            eos=eos,
            texts=tuple(wanted.stop),
        )


@dataclass(slots=True)
class Rollout:
    """The turn in the making."""

    task: Task
    key: Key
    request: Request
    sequence: int
    kept: list[int]  # tokens of this turn that came with the task
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    reported: int = 0  # of `tokens`, in partials
    reported_at: float = field(default_factory=time.monotonic)

    @classmethod
    def of_task(cls, task: Task, sampling: Sampling, context: int) -> Rollout:
        """Raises CannotStart where prompt and answer do not fit."""
        prompt, sequence = _tokens_so_far(task.payload)
        kept = task.kept_tokens
        given = len(prompt) - kept
        if given < 1 or given + sampling.max_new_tokens > context:
            raise CannotStart(
                f"a prompt of {given} tokens and maxNewTokens = {sampling.max_new_tokens} do not fit "
                f"into the model's context of {context} tokens"
            )
        key = lease_key(task.lease)
        request = Request(
            id=key,
            prompt=prompt,
            seed=reseed(task.seed, task.turn, kept),
            max_new_tokens=sampling.max_new_tokens - kept,
            temperature=(
                sampling.validation_temperature if task.validation else sampling.temperature
            ),
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            stop=sampling.eos,
            kept=kept,
        )
        return cls(task, key, request, sequence, prompt[given:].tolist())

    @property
    def count(self) -> int:
        """Tokens of the turn so far."""
        return len(self.kept) + len(self.tokens)

    def ended_before(self, sampling: Sampling, codec: Codec) -> str:
        """Why nothing is left to do: another worker sampled all of it and died before its result."""
        if not self.kept:
            return ""
        if self.kept[-1] in sampling.eos or _text_end(self.kept, 0, sampling.texts, codec):
            return "stop"
        return "length" if len(self.kept) >= sampling.max_new_tokens else ""

    def add(self, delta: Delta, sampling: Sampling, codec: Codec) -> str:
        """The finish reason, or "" while it goes on. What lies behind a stop text is dropped."""
        seen = len(self.tokens)
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs
        self.versions += [delta.version] * len(delta.tokens)
        if sampling.texts:
            turn = self.kept + self.tokens
            if end := _text_end(turn, len(self.kept) + seen, sampling.texts, codec):
                for column in (self.tokens, self.logprobs, self.versions):
                    del column[end - len(self.kept) :]
                return "stop"
        return delta.finish

    def start_over(self) -> None:
        """Forget what was sampled; only where nothing of it was reported."""
        self.tokens, self.logprobs, self.versions = [], [], []

    def unreported(self) -> int:
        return len(self.tokens) - self.reported

    def take(self, writer: ActionWriter, finish: str = "") -> tuple[bytes, int, int, int]:
        """What is not reported yet: its payload, its tokens, its oldest and its newest version."""
        new = slice(self.reported, len(self.tokens))
        versions = self.versions[new]
        payload = writer.payload(
            self.tokens[new],
            self.logprobs[new],
            versions,
            self.task.turn,
            finish,
            self.sequence,
        )
        self.reported, self.reported_at = new.stop, time.monotonic()
        oldest, newest = (min(versions), max(versions)) if versions else (-1, -1)
        return payload, len(versions), oldest, newest


@lru_cache(maxsize=64)
def _tokens_so_far(payload: bytes) -> tuple[Tokens, int]:
    """The tokens of the trajectory's last sequence, and its number; a group's samples begin alike."""
    pieces = Trajectory.parse(payload).pieces
    sequence = max((piece.sequence for piece in pieces), default=0)
    columns = [
        column.data
        for piece in pieces
        if piece.sequence == sequence
        for column in piece.columns
        if column.name == "token"
    ]
    return np.frombuffer(b"".join(columns), "<i4"), sequence


def _text_end(tokens: list[int], seen: int, texts: tuple[str, ...], codec: Codec) -> int:
    """How many of `tokens` it takes to complete a stop text, looking at those after `seen`; 0: none."""
    start = max(0, seen - _TAIL)
    if not texts or not _contains(codec.decode(tokens[start:]), texts):
        return 0
    for end in range(seen + 1, len(tokens) + 1):
        if _contains(codec.decode(tokens[start:end]), texts):
            return end
    return 0


def _contains(text: str, texts: tuple[str, ...]) -> bool:
    return any(stop in text for stop in texts)
