"""A rank's share of a batch as arrays: what the scheduler hands out, ready for tensors.

Invariant: everything here is a pure function of the recorded samples and the job's spec, in the order of
their positions in the batch; a step trained again sees the same arrays bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from roll_wire.trainer_pb2 import ShardSample
from torch import Tensor

from roll_workers.errors import UserError
from roll_workers.runtime.trajectory import SequenceArrays, Trajectory, sequences

Unit = tuple[int, int]  # group, index


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Sequences laid end to end: sequence s owns `tokens[offsets[s]:offsets[s + 1]]`.

    The second half has one entry per *action token*, in the order of `tokens`.
    """

    tokens: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]  # of each sequence; those of one group may share a prefix

    action: npt.NDArray[np.int64]  # index in `tokens`
    sequence: Tensor
    behaviour: Tensor  # log-prob under the policy that sampled it
    advantage: Tensor
    weight: Tensor  # of the aggregation
    entropy_weight: Tensor
    proximal: Tensor | None = None  # log-prob at the beginning of the step
    reference: Tensor | None = None  # log-prob under the reference model

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def select(self, chosen: npt.NDArray[np.int64]) -> TokenBatch:
        """The batch of some sequences alone, in rising order."""
        owner = self.sequence.numpy()
        kept = np.isin(owner, chosen)
        lengths = np.diff(self.offsets)[chosen]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        place = np.concatenate(
            [np.arange(self.offsets[s], self.offsets[s + 1]) for s in chosen]
            or [np.empty(0, np.int64)]
        )
        number = np.zeros(len(self), np.int64)
        number[chosen] = np.arange(len(chosen))
        shift = (offsets[:-1] - self.offsets[chosen])[number[owner[kept]]]
        mask = torch.from_numpy(kept)
        return TokenBatch(
            tokens=self.tokens[place],
            offsets=offsets,
            group=self.group[chosen],
            action=self.action[kept] + shift,
            sequence=torch.from_numpy(number[owner[kept]]),
            behaviour=self.behaviour[mask],
            advantage=self.advantage[mask],
            weight=self.weight[mask],
            entropy_weight=self.entropy_weight[mask],
            proximal=None if self.proximal is None else self.proximal[mask],
            reference=None if self.reference is None else self.reference[mask],
        )

    def with_columns(self, **columns: Any) -> TokenBatch:
        return replace(self, **columns)


@dataclass(slots=True)
class Shard:
    """Samples of this rank, and what the advantage and the metrics need beside the tokens."""

    batch: TokenBatch
    units: list[Unit]  # of each sample
    sample: npt.NDArray[np.int64]  # of each sequence
    rewards: npt.NDArray[np.float64]  # of each sample
    groups: list[Sequence[float]]  # rewards of each sample's whole group
    turns: list[Sequence[float]]  # rewards per turn, or none
    turn: npt.NDArray[np.int64]  # of each action token
    versions: npt.NDArray[np.int64]  # of each action token
    prompt_lengths: npt.NDArray[np.int64]  # of each sequence
    finished: npt.NDArray[np.bool_]  # of each sequence: ended by itself, not by its length
    parts: dict[str, float] = field(default_factory=dict)  # sums of the rewards' named parts


def build_shard(samples: Iterable[ShardSample], vocabulary: int, context: int) -> Shard:
    """Lays the samples end to end; a token that the model does not know is the data's fault, and said so."""
    ordered = sorted(samples, key=lambda sample: sample.position)
    rows: list[SequenceArrays] = []
    owner: list[int] = []
    group: list[int] = []
    units: list[Unit] = []
    turns: list[Sequence[float]] = []
    parts: dict[str, float] = {}
    for number, sample in enumerate(ordered):
        trajectory = Trajectory.parse(sample.payload)
        of_sample = [row for row in sequences(trajectory) if row.action_mask.any()]
        rows += of_sample
        owner += [number] * len(of_sample)
        group += [sample.unit.group] * len(of_sample)
        units.append((sample.unit.group, sample.unit.index))
        turns.append(tuple(trajectory.reward.turns))
        for name, value in trajectory.reward.parts.items():
            parts[name] = parts.get(name, 0.0) + value
    lengths = np.array([len(row.tokens) for row in rows], np.int64)
    tokens = _join([row.tokens for row in rows], np.int64)
    mask = _join([row.action_mask for row in rows], np.bool_)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    if tokens.size and (tokens.min() < 0 or tokens.max() >= vocabulary):
        at = int(np.flatnonzero((tokens < 0) | (tokens >= vocabulary))[0])
        unit = units[owner[int(np.searchsorted(offsets, at, side="right")) - 1]]
        raise UserError(
            f"sample {unit[0]}/{unit[1]} has token {tokens[at]}, but the model knows {vocabulary}: "
            "tokenizer and model do not belong together"
        )
    if lengths.size and lengths.max() > context:
        unit = units[owner[int(lengths.argmax())]]
        raise UserError(
            f"sample {unit[0]}/{unit[1]} has {lengths.max()} tokens, but the model's context has {context}"
        )
    prompt_lengths = np.array([int(row.action_mask.argmax()) for row in rows], np.int64)
    if prompt_lengths.size and prompt_lengths.min() == 0:
        unit = units[owner[int(prompt_lengths.argmin())]]
        raise UserError(
            f"sample {unit[0]}/{unit[1]} has an empty prompt: nothing predicts its first token"
        )
    action = np.flatnonzero(mask)
    sequence = np.repeat(np.arange(len(rows)), lengths)[action]
    nothing = torch.zeros(len(action))
    return Shard(
        batch=TokenBatch(
            tokens=tokens,
            offsets=offsets,
            group=np.array(group, np.int64),
            action=action,
            sequence=torch.from_numpy(sequence),
            behaviour=torch.from_numpy(_join([row.logprobs for row in rows], np.float32)[action]),
            advantage=nothing,
            weight=nothing,
            entropy_weight=nothing,
        ),
        units=units,
        sample=np.array(owner, np.int64),
        rewards=np.array([sample.reward for sample in ordered], np.float64),
        groups=[tuple(sample.group_rewards) for sample in ordered],
        turns=turns,
        turn=_join([row.turn for row in rows], np.int64)[action],
        versions=_join([row.versions for row in rows], np.int64)[action],
        prompt_lengths=prompt_lengths,
        finished=np.array([row.finish_reason != "length" for row in rows], np.bool_),
        parts=parts,
    )


def _join(arrays: list[npt.NDArray], dtype: type) -> npt.NDArray:
    return np.concatenate(arrays).astype(dtype) if arrays else np.empty(0, dtype)
