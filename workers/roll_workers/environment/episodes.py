"""Episodes of an interactive environment: their beginning, each turn, and their replay in another pod.

Invariants: an episode is a function of its seed, its purpose and its actions, recorded in the trajectory, so no
finished turn is lost with the pod; a replayed episode is used only if every observation's hash equals
the recorded one. An answer without a valid action is a turn without effect, with the format penalty.
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from roll_wire import sample_pb2
from roll_wire.sample_pb2 import Blob

from roll_workers.environment.envs import (
    Env,
    InvalidAction,
    Observation,
    Replay,
    Step,
    observation_hash,
)
from roll_workers.runtime.trajectory import observation_piece, prompt_piece
from roll_workers.text import Codec, sampled_tokens

SNAPSHOT = "application/x-roll-snapshot"
Call = Callable[..., Awaitable[Any]]  # call(function, *arguments): inline or in a thread


class ReplayDiffers(Exception):
    """The episode can't be continued from what was recorded; it starts again."""


@dataclass(slots=True)
class Episode:
    """An environment between two turns."""

    env: Env
    observation: Observation
    turn: int  # steps made
    hash: bytes  # of the last observation


@dataclass(slots=True)
class Turn:
    """What a stage has to report."""

    trajectory: sample_pb2.Trajectory
    done: bool = False
    reward: float | None = None


class World:
    """Makes episodes and moves them on. It holds none: `loop.py` does."""

    def __init__(
        self,
        make: Callable[[], Env],
        codec: Codec,
        *,
        max_turns: int,
        max_new_tokens: int = 0,
        action_pattern: str | None = None,
        format_penalty: float = 0.0,
        rewards_itself: bool = True,
    ) -> None:
        self.make, self.codec = make, codec
        self.max_turns, self.max_new_tokens = max_turns, max_new_tokens
        self.format_penalty, self.rewards_itself = format_penalty, rewards_itself
        self._pattern = re.compile(action_pattern, re.DOTALL) if action_pattern else None

    async def reset(
        self, seed: int, call: Call, *, validation: bool = False
    ) -> tuple[Episode, Turn]:
        env, observation = await call(self._begin, seed, validation)
        episode = Episode(env, observation, 0, observation_hash(observation, 0.0, False))
        facts = {"tag": "default", **observation.facts, "prompt": observation.text}
        facts |= {"seed": seed, "validation": validation}
        seen = sample_pb2.Observation(turn=0, hash=episode.hash, text=observation.text)
        trajectory = sample_pb2.Trajectory(
            pieces=[prompt_piece(self._tokens(observation, None))],
            facts={key: json.dumps(value, default=str) for key, value in facts.items()},
            observations=[seen],
            blobs=await self._snapshot(env, call),
        )
        return episode, Turn(trajectory)

    async def step(self, episode: Episode, before: sample_pb2.Trajectory, call: Call) -> Turn:
        """Applies the action of the newest turn of `before`; moves the episode on."""
        sampled = sampled_tokens(before).get(episode.turn, array("i"))
        action, step = await call(self._apply, episode, self._action(episode, sampled))
        episode.turn += 1
        episode.observation = step.observation
        episode.hash = observation_hash(step.observation, step.reward, step.done)
        done = step.done or episode.turn >= self.max_turns
        tokens: Sequence[int] = ()
        if not done:
            tokens = self._tokens(step.observation, sampled[-1] if sampled else -1)
            done = not self._fits(before, tokens)
        seen = sample_pb2.Observation(
            turn=episode.turn,
            hash=episode.hash,
            reward=step.reward,
            done=done,
            action=action,
            text=step.observation.text,
        )
        trajectory = sample_pb2.Trajectory(observations=[seen])
        if not done:
            trajectory.pieces.append(observation_piece(tokens, episode.turn))
            trajectory.blobs.extend(await self._snapshot(episode.env, call))
            return Turn(trajectory)
        if not self.rewards_itself:
            return Turn(trajectory, done=True)
        turns = [past.reward for past in before.observations if past.turn > 0] + [step.reward]
        reward = sum(turns)
        trajectory.reward.MergeFrom(sample_pb2.Reward(value=reward, turns=turns))
        return Turn(trajectory, done=True, reward=reward)

    async def replay(self, before: sample_pb2.Trajectory, call: Call) -> Episode:
        """The episode as it was after its last recorded observation."""
        return await call(self._replayed, before)

    def _begin(self, seed: int, validation: bool) -> tuple[Env, Observation]:
        env = self.make()
        return env, env.reset(seed, validation)

    def _apply(self, episode: Episode, action: str) -> tuple[str, Step]:
        """The action that took effect and what came of it."""
        if action:
            try:
                return action, episode.env.step(action)
            except InvalidAction:
                pass
        return "", Step(episode.observation, self.format_penalty, False)

    def _replayed(self, before: sample_pb2.Trajectory) -> Episode:
        recorded = list(before.observations)
        if not recorded or "seed" not in before.facts:
            raise ReplayDiffers("the trajectory has no recorded beginning")
        env = self.make()
        if env.replay is Replay.NONE:
            raise ReplayDiffers("the environment declares replay: None")
        if env.replay is Replay.SNAPSHOT:
            return _restored(env, before)
        validation = json.loads(before.facts.get("validation", "false"))
        observation = env.reset(json.loads(before.facts["seed"]), validation)
        episode = Episode(env, observation, 0, observation_hash(observation, 0.0, False))
        _compare(episode, recorded[0])
        for past in recorded[1:]:
            _, step = self._apply(episode, past.action)
            episode.turn += 1
            episode.observation = step.observation
            episode.hash = observation_hash(step.observation, step.reward, step.done)
            _compare(episode, past)
        return episode

    def _action(self, episode: Episode, sampled: Sequence[int]) -> str:
        text = self.codec.decode(sampled)
        pattern = self._pattern
        if pattern is None:
            own = getattr(episode.env, "action_pattern", None)
            if own is None:
                return text.strip()
            pattern = re.compile(own, re.DOTALL)  # cached by `re`
        found = pattern.search(text)
        if found is None:
            return ""
        return (found.group(1) if pattern.groups else found.group(0)) or ""

    def _tokens(self, observation: Observation, last: int | None) -> Sequence[int]:
        """An observation as tokens; `last` is the token before it, None at the reset."""
        if observation.tokens is not None:
            return observation.tokens
        if self.codec.has_chat:
            if last is None:
                return self.codec.encode_chat([{"role": "user", "content": observation.text}])
            return self.codec.encode_reply(observation.text, last)
        return self.codec.encode(observation.text, special=last is None)

    def _fits(self, before: sample_pb2.Trajectory, tokens: Sequence[int]) -> bool:
        """Whether the model's context has room for this observation and one more answer."""
        if self.codec.context is None:
            return True
        used = sum(piece.length for piece in before.pieces)
        return used + len(tokens) + self.max_new_tokens <= self.codec.context

    async def _snapshot(self, env: Any, call: Call) -> list[Blob]:
        if env.replay is not Replay.SNAPSHOT:
            return []
        state: bytes = await call(env.snapshot)
        digest = hashlib.sha256(state).hexdigest()
        return [Blob(sha256=digest, media_type=SNAPSHOT, size=len(state), inline=state)]


def _restored(env: Any, before: sample_pb2.Trajectory) -> Episode:
    states = [blob.inline for blob in before.blobs if blob.media_type == SNAPSHOT]
    if not states:
        raise ReplayDiffers("the trajectory has no snapshot")
    last = before.observations[-1]
    observation = env.restore(states[-1])
    episode = Episode(
        env, observation, last.turn, observation_hash(observation, last.reward, False)
    )
    _compare(episode, last)
    return episode


def _compare(episode: Episode, recorded: sample_pb2.Observation) -> None:
    if episode.hash != recorded.hash:
        raise ReplayDiffers(
            f"the replay differs at turn {recorded.turn}: it gave "
            f"{episode.observation.text!r:.120}, recorded was {recorded.text!r:.120}"
        )
