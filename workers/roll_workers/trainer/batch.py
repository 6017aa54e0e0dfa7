"""A rank's share of a batch as arrays: what the scheduler hands out, ready for tensors.

Invariant: everything here is a pure function of the recorded samples and the job's spec, in the order of
their positions in the batch; a step trained again sees the same arrays bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from roll_wire.columns import ShardSample
from roll_wire.sample_pb2 import Piece
from torch import Tensor

from roll_workers.errors import UserError
from roll_workers.runtime.trajectory import Trajectory

Unit = tuple[int, int]  # group, index

_ACTION = Piece.ACTION
_sequence = attrgetter("sequence")


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
    peers: npt.NDArray[np.float64]  # rewards of every sample's whole group, laid end to end
    peer_of: npt.NDArray[np.int64]  # the sample that each belongs to
    turns: list[Sequence[float]]  # rewards per turn, or none
    turn: npt.NDArray[np.int64]  # of each action token
    versions: npt.NDArray[np.int64]  # of each action token
    prompt_lengths: npt.NDArray[np.int64]  # of each sequence
    finished: npt.NDArray[np.bool_]  # of each sequence: ended by itself, not by its length
    parts: dict[str, float] = field(default_factory=dict)  # sums of the rewards' named parts


def build_shard(samples: Iterable[ShardSample], vocabulary: int, context: int) -> Shard:
    """Lays the samples end to end; a sample that the model can't take is named.

    Columns are joined as bytes: making arrays of every piece would cost more than the rest of it.
    """
    ordered = sorted(samples, key=lambda sample: sample.position)
    units: list[Unit] = []
    turns: list[Sequence[float]] = []
    parts: dict[str, float] = {}
    pieces: list[tuple[int, int, int, int, int]] = []  # sample, sequence, is action, turn, length
    tokens_of: list[bytes] = []
    logprobs_of: list[bytes] = []
    versions_of: list[bytes] = []
    finished: dict[tuple[int, int], bool] = {}  # by sample and sequence
    for number, sample in enumerate(ordered):
        trajectory = Trajectory.parse(sample.payload)
        units.append(sample.unit)
        reward = trajectory.reward
        turns.append(tuple(reward.turns))
        for name, value in reward.parts.items():
            parts[name] = parts.get(name, 0.0) + value
        for piece in sorted(trajectory.pieces, key=_sequence):
            sequence_of, is_action = piece.sequence, piece.kind == _ACTION
            pieces.append((number, sequence_of, is_action, piece.turn, piece.length))
            for column in piece.columns:
                name = column.name
                if name == "token":
                    tokens_of.append(column.data)
                elif is_action and name == "logprob":
                    logprobs_of.append(column.data)
                elif is_action and name == "version":
                    versions_of.append(column.data)
            if is_action:
                finished[number, sequence_of] = piece.finish_reason != "length"

    table = np.array(pieces, np.int64).reshape(-1, 5)
    starts = np.ones(len(table), bool)
    starts[1:] = (table[1:, :2] != table[:-1, :2]).any(1)
    row = np.cumsum(starts) - 1  # of each piece: the sequence it belongs to, over the whole batch
    lengths = np.bincount(row, table[:, 4], minlength=int(starts.sum())).astype(np.int64)
    owner = table[starts, 0]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    tokens = np.frombuffer(b"".join(tokens_of), "<i4").astype(np.int64)
    mask = np.repeat(table[:, 2] > 0, table[:, 4])
    action = np.flatnonzero(mask)
    behaviour = np.frombuffer(b"".join(logprobs_of), "<f4").astype(np.float32)
    versions = np.frombuffer(b"".join(versions_of), "<i4").astype(np.int64)
    if not (len(tokens) == len(mask) and len(behaviour) == len(versions) == len(action)):
        raise ValueError("a recorded sample has columns of different lengths")
    sequence = np.repeat(np.arange(len(lengths)), lengths)[action]
    first = np.searchsorted(sequence, np.arange(len(lengths)))
    trained = np.bincount(sequence, minlength=len(lengths)) > 0
    prompts = (action[first[trained]] - offsets[:-1][trained]) if trained.any() else first[:0]
    _check(tokens, offsets, prompts, owner, trained, units, vocabulary, context)
    nothing = torch.zeros(len(action))
    batch = TokenBatch(
        tokens=tokens,
        offsets=offsets,
        group=np.array([units[n][0] for n in owner.tolist()], np.int64),
        action=action,
        sequence=torch.from_numpy(sequence),
        behaviour=torch.from_numpy(behaviour),
        advantage=nothing,
        weight=nothing,
        entropy_weight=nothing,
    )
    kept = np.flatnonzero(trained)
    groups = [sample.group_rewards for sample in ordered]
    return Shard(
        # A sequence without an action (an episode that ended at its reset) has nothing to train.
        batch=batch if trained.all() else batch.select(kept),
        units=units,
        sample=owner[kept],
        rewards=np.array([sample.reward for sample in ordered], np.float64),
        peers=np.array([reward for group in groups for reward in group], np.float64),
        peer_of=np.repeat(np.arange(len(groups)), [len(group) for group in groups]),
        turns=turns,
        turn=np.repeat(table[:, 3], table[:, 4])[action],
        versions=versions,
        prompt_lengths=prompts,
        finished=np.array([finished[n, q] for n, q in table[starts, :2][kept].tolist()], np.bool_),
        parts=parts,
    )


def _check(
    tokens: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    prompts: npt.NDArray[np.int64],
    owner: npt.NDArray[np.int64],
    trained: npt.NDArray[np.bool_],
    units: list[Unit],
    vocabulary: int,
    context: int,
) -> None:
    def name(row: int) -> str:
        group, index = units[owner[row]]
        return f"sample {group}/{index}"

    unknown = np.flatnonzero((tokens < 0) | (tokens >= vocabulary))
    if unknown.size:
        at = int(unknown[0])
        raise UserError(
            f"{name(int(np.searchsorted(offsets, at, side='right')) - 1)} has token {tokens[at]}, but "
            f"the model knows {vocabulary}: tokenizer and model do not belong together"
        )
    lengths = np.diff(offsets)
    if lengths.size and lengths.max() > context:
        raise UserError(
            f"{name(int(lengths.argmax()))} has {lengths.max()} tokens, but the model's context has {context}"
        )
    if prompts.size and prompts.min() == 0:
        row = int(np.flatnonzero(trained)[prompts.argmin()])
        raise UserError(f"{name(row)} has an empty prompt: nothing predicts its first token")
