"""Trajectories as numpy arrays: how stages write their piece of a payload, and how the trainer reads all.

Invariant: a stage's payload holds only what the stage added; the concatenation of the payloads of all
stages, parsed once, is the trajectory. Token ids are never made again from text.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from roll_wire import sample_pb2
from roll_wire.sample_pb2 import Column, Piece

Ints = Sequence[int] | npt.NDArray[np.integer]
Floats = Sequence[float] | npt.NDArray[np.floating]

_PROMPT, _ACTION, _OBSERVATION = Piece.PROMPT, Piece.ACTION, Piece.OBSERVATION


class Trajectory:
    """The door to the wire's message of the same name."""

    @staticmethod
    def parse(payload: bytes) -> sample_pb2.Trajectory:
        return sample_pb2.Trajectory.FromString(payload)

    @staticmethod
    def payload(
        *pieces: Piece,
        facts: dict[str, str] | None = None,
        reward: sample_pb2.Reward | None = None,
        observations: Sequence[sample_pb2.Observation] = (),
    ) -> bytes:
        """What one stage adds, ready for `session.result`."""
        return sample_pb2.Trajectory(
            pieces=pieces, facts=facts, reward=reward, observations=observations
        ).SerializeToString()


@dataclass(frozen=True, slots=True)
class SequenceArrays:
    """One token sequence of a sample; all arrays have its length."""

    tokens: npt.NDArray[np.int32]
    action_mask: npt.NDArray[np.bool_]  # sampled by the policy: the only tokens that are trained
    logprobs: npt.NDArray[np.float32]  # behaviour log-probability; 0 where no action
    versions: npt.NDArray[np.int32]  # policy version that sampled it; -1 where no action
    turn: npt.NDArray[np.int32]
    finish_reason: str  # of the last turn: "stop", "length" or ""


def prompt_piece(tokens: Ints, *, sequence: int = 0) -> Piece:
    return _given(_PROMPT, tokens, 0, sequence)


def observation_piece(tokens: Ints, turn: int, *, sequence: int = 0) -> Piece:
    return _given(_OBSERVATION, tokens, turn, sequence)


def action_piece(
    tokens: Ints,
    logprobs: Floats,
    versions: Ints | int,
    turn: int = 0,
    finish_reason: str = "",
    *,
    sequence: int = 0,
) -> Piece:
    """Tokens that the policy sampled; `versions` is one number when a single version sampled all."""
    ids = _packed(tokens, "<i4")
    probs = _packed(logprobs, "<f4")
    length = len(ids) // 4
    if isinstance(versions, int):
        by = np.full(length, versions, dtype="<i4").tobytes()
    else:
        by = _packed(versions, "<i4")
    if not len(ids) == len(probs) == len(by):
        raise ValueError(
            f"an action of {length} tokens has {len(probs) // 4} log-probs and {len(by) // 4} versions"
        )
    return Piece(
        kind=_ACTION,
        sequence=sequence,
        turn=turn,
        length=length,
        columns=[
            Column(name="token", type=Column.I32, data=ids),
            Column(name="logprob", type=Column.F32, data=probs),
            Column(name="version", type=Column.I32, data=by),
        ],
        finish_reason=finish_reason,
    )


class ActionWriter:
    """Payloads of one action each, by one message that is filled in again: new ones take three times as long."""

    def __init__(self) -> None:
        self._message = sample_pb2.Trajectory(pieces=[action_piece([], [], [])])
        [self._piece] = self._message.pieces
        self._columns = list(self._piece.columns)

    def payload(
        self,
        tokens: list[int],
        logprobs: list[float],
        versions: list[int],
        turn: int,
        finish_reason: str,
        sequence: int,
    ) -> bytes:
        piece = self._piece
        piece.length, piece.turn, piece.sequence = len(tokens), turn, sequence
        piece.finish_reason = finish_reason
        token, logprob, version = self._columns
        token.data = array("i", tokens).tobytes()
        logprob.data = array("f", logprobs).tobytes()
        version.data = array("i", versions).tobytes()
        return self._message.SerializeToString()


def sequences(trajectory: sample_pb2.Trajectory) -> list[SequenceArrays]:
    """All sequences of a sample, in order; a sequence that no piece extends is empty."""
    pieces = list(trajectory.pieces)
    lengths: list[int] = []
    for piece in pieces:
        if piece.sequence >= len(lengths):
            lengths.extend([0] * (piece.sequence + 1 - len(lengths)))
        lengths[piece.sequence] += piece.length
    arrays = [
        (
            np.empty(length, np.int32),
            np.zeros(length, np.bool_),
            np.zeros(length, np.float32),
            np.full(length, -1, np.int32),
            np.empty(length, np.int32),
        )
        for length in lengths
    ]
    ends = [0] * len(lengths)
    reasons = [""] * len(lengths)
    for piece in pieces:
        of = piece.sequence
        tokens, mask, logprobs, versions, turn = arrays[of]
        start = ends[of]
        end = ends[of] = start + piece.length
        turn[start:end] = piece.turn
        for column in piece.columns:
            name = column.name
            if name == "token":
                tokens[start:end] = np.frombuffer(column.data, "<i4")
            elif name == "logprob":
                logprobs[start:end] = np.frombuffer(column.data, "<f4")
            elif name == "version":
                versions[start:end] = np.frombuffer(column.data, "<i4")
        if piece.kind == _ACTION:
            mask[start:end] = True
            reasons[of] = piece.finish_reason
    return [
        SequenceArrays(*columns, finish_reason=reason)
        for columns, reason in zip(arrays, reasons, strict=True)
    ]


def _given(kind: Piece.Kind, tokens: Ints, turn: int, sequence: int) -> Piece:
    data = _packed(tokens, "<i4")
    return Piece(
        kind=kind,
        sequence=sequence,
        turn=turn,
        length=len(data) // 4,
        columns=[Column(name="token", type=Column.I32, data=data)],
    )


def _packed(values: Ints | Floats, dtype: str) -> bytes:
    if isinstance(values, list):  # numpy takes several times as long for a few numbers
        return array("i" if dtype == "<i4" else "f", values).tobytes()
    return np.asarray(values, dtype=dtype).tobytes()
