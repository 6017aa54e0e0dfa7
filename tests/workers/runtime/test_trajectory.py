"""Pieces that stages wrote come back as arrays, in order, with the right masks."""

import time

import numpy as np
import pytest
from roll_workers.runtime.trajectory import (
    ActionWriter,
    Trajectory,
    action_piece,
    observation_piece,
    prompt_piece,
    sequences,
)


def test_payloads_of_stages_concatenate_to_the_sequence() -> None:
    reset = Trajectory.payload(prompt_piece([5, 6, 7]), facts={"answer": "1"})
    first = Trajectory.payload(action_piece([8, 9], [-0.5, -1.0], 3, turn=0, finish_reason="stop"))
    step = Trajectory.payload(observation_piece([10], turn=1))
    second = Trajectory.payload(action_piece([11], [-2.0], [4], turn=1, finish_reason="length"))
    trajectory = Trajectory.parse(reset + first + step + second)
    [only] = sequences(trajectory)
    assert only.tokens.tolist() == [5, 6, 7, 8, 9, 10, 11]
    assert only.action_mask.tolist() == [False, False, False, True, True, False, True]
    assert only.logprobs.tolist() == [0, 0, 0, -0.5, -1.0, 0, -2.0]
    assert only.versions.tolist() == [-1, -1, -1, 3, 3, -1, 4]
    assert only.turn.tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert only.finish_reason == "length"
    assert dict(trajectory.facts) == {"answer": "1"}
    assert only.tokens.dtype == np.int32
    assert only.logprobs.dtype == np.float32


def test_a_sample_may_have_several_sequences_that_grow_in_turn() -> None:
    payload = Trajectory.payload(
        prompt_piece([1]),
        prompt_piece([2, 2], sequence=1),
        action_piece([3], [-1.0], 0, sequence=0),
        action_piece([4], [-1.0], 0, sequence=1),
    )
    first, second = sequences(Trajectory.parse(payload))
    assert first.tokens.tolist() == [1, 3]
    assert second.tokens.tolist() == [2, 2, 4]


def test_a_resumed_action_is_two_pieces_of_one_turn() -> None:
    kept = Trajectory.payload(action_piece([1, 2], [-1.0, -1.0], 5))
    rest = Trajectory.payload(action_piece([3], [-1.0], 6, finish_reason="stop"))
    [only] = sequences(Trajectory.parse(kept + rest))
    assert only.versions.tolist() == [5, 5, 6]
    assert only.finish_reason == "stop"


def test_a_writer_that_is_used_again_leaves_nothing_of_the_action_before() -> None:
    writer = ActionWriter()
    for tokens, logprobs, versions, turn, finish, sequence in (
        ([1, 2, 3], [-0.5, -1.0, -2.0], [4, 4, 5], 2, "length", 1),
        ([], [], [], 0, "", 0),
        ([9], [-3.0], [6], 0, "stop", 0),
    ):
        piece = action_piece(tokens, logprobs, versions, turn, finish, sequence=sequence)
        written = writer.payload(tokens, logprobs, versions, turn, finish, sequence)
        assert Trajectory.parse(written) == Trajectory.parse(Trajectory.payload(piece))


def test_columns_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 tokens has 1 log-probs"):
        action_piece([1, 2], [-1.0], 0)


def test_reading_a_batch_is_cheap() -> None:
    tokens = np.arange(512, dtype=np.int32)
    payload = Trajectory.payload(prompt_piece(tokens[:64]), action_piece(tokens, tokens * -0.1, 1))
    started = time.process_time()
    for _ in range(256):
        sequences(Trajectory.parse(payload))
    assert time.process_time() - started < 0.1
