"""A trajectory as a scorer sees it: text, facts and turns instead of tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from roll_wire.sample_pb2 import Trajectory

from roll_workers.reward.scorers import ScoredSample
from roll_workers.text import Codec, sampled_tokens


def read_sample(trajectory: Trajectory, codec: Codec) -> ScoredSample:
    """The response is the text of the last turn, without special tokens; all turns are in `turns`."""
    sampled = sampled_tokens(trajectory)
    texts = {turn: codec.decode(tokens) for turn, tokens in sampled.items()}
    return scored_sample(
        trajectory.facts,
        response=texts[max(texts)] if texts else "",
        tokens=sum(map(len, sampled.values())),
        turns=_turns(trajectory, texts) if trajectory.observations else [],
    )


def scored_sample(
    written: Mapping[str, str], response: str, tokens: int, turns: list[dict[str, Any]]
) -> ScoredSample:
    """An answer to a prompt whose facts are written as JSON."""
    # Not `items()`, which takes twice as long for a map of protobuf.
    facts: dict[str, Any] = {key: _fact(written[key]) for key in written}
    prompt = facts.pop("prompt", "")
    return ScoredSample(
        prompt=prompt if isinstance(prompt, str) else json.dumps(prompt),
        response=response,
        answer=facts.pop("answer", None),
        tag=facts.pop("tag", ""),
        facts=facts,
        tokens=tokens,
        turns=turns,
    )


def _fact(value: str) -> Any:
    """The samples of a group have the same facts: one that nobody can change is read once."""
    return json.loads(value) if value.startswith(("[", "{")) else _plain(value)


@lru_cache(maxsize=256)
def _plain(value: str) -> Any:
    return json.loads(value)


def _turns(trajectory: Trajectory, texts: dict[int, str]) -> list[dict[str, Any]]:
    """Observation t+1 is the environment's answer to turn t; observation 0 is the reset."""
    return [
        {
            "response": texts.get(seen.turn - 1, ""),
            "action": seen.action,
            "observation": seen.text,
            "reward": seen.reward,
        }
        for seen in trajectory.observations
        if seen.turn > 0
    ]
