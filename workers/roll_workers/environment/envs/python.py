"""The user's own environment, `file.py:Class`: a fresh instance per episode, made with the job's options.

Besides our own types it may return what Gymnasium's environments return: `reset` an observation or
`(observation, info)`, `step` a tuple `(observation, reward, terminated, truncated, info)`. A `reset` that
names a parameter `validation` is told whether the episode validates.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from roll_workers.environment.envs import Env, Observation, Replay, Step
from roll_workers.errors import UserError
from roll_workers.user_code import describe, load_object


class UserEnv:
    """Turns what the user's methods return into our types."""

    def __init__(self, inner: Any, name: str) -> None:
        self.inner, self.name = inner, name
        self.replay = replay_of(inner, name)
        self.action_pattern: str | None = getattr(inner, "action_pattern", None)
        self._splits = "validation" in inspect.signature(inner.reset).parameters

    def reset(self, seed: int, validation: bool = False) -> Observation:
        split = {"validation": validation} if self._splits else {}
        result = self.inner.reset(seed=seed, **split)
        if isinstance(result, tuple) and len(result) == 2:
            observation, info = result
            return _observation(observation, self.name, info)
        return _observation(result, self.name)

    def step(self, action: str) -> Step:
        result = self.inner.step(action)
        if isinstance(result, Step):
            return Step(
                _observation(result.observation, self.name),
                float(result.reward),
                bool(result.done),
                result.info,
            )
        if isinstance(result, tuple) and len(result) == 5:
            observation, reward, terminated, truncated, info = result
            done = bool(terminated or truncated)
            return Step(_observation(observation, self.name), float(reward), done, dict(info))
        raise TypeError(
            f"{self.name}.step returned {type(result).__name__}, expected a Step or "
            "(observation, reward, terminated, truncated, info)"
        )

    def snapshot(self) -> bytes:
        return self.inner.snapshot()

    def restore(self, state: bytes) -> Observation:
        return _observation(self.inner.restore(state), self.name)


class UserEnvs:
    """Makes environments of the user's class; UserError at once where that can't work."""

    def __init__(self, reference: str, source: Path, options: dict[str, Any]) -> None:
        self.reference = reference
        file, _, self.name = reference.rpartition(":")
        self.path = (source / file).resolve()
        self.cls = load_object(reference, source)
        self.options = options
        if not inspect.isclass(self.cls):
            raise UserError(f"environment.python: {reference} is not a class")
        self._needs("reset", "step")
        if replay_of(self.cls, self.name) is Replay.SNAPSHOT:
            self._needs("snapshot", "restore")

    def _needs(self, *methods: str) -> None:
        for method in methods:
            if not callable(getattr(self.cls, method, None)):
                raise UserError(f"environment.python: {self.reference} has no method {method}()")

    def __call__(self) -> Env:
        try:
            return UserEnv(self.cls(**self.options), self.name)
        except Exception as error:
            raise UserError(
                f"environment.python: {self.reference} can't be made with environment.options: "
                f"{describe(error, self.path)}"
            ) from error


def replay_of(env: Any, name: str) -> Replay:
    """The declared ability, as our enum or its name; without a declaration nothing is promised."""
    declared = getattr(env, "replay", None)
    if isinstance(declared, Replay):
        return declared
    try:
        return Replay(str(declared))
    except ValueError:
        raise UserError(
            f"environment.python: {name}.replay is {declared!r}, expected Exact, Snapshot or None"
        ) from None


def _observation(value: Any, name: str, info: Any = None) -> Observation:
    if isinstance(value, str):
        return Observation(value, facts=dict(info or {}))
    if isinstance(value, Observation):
        return value
    raise TypeError(f"{name} gave an observation of type {type(value).__name__}, expected text")
