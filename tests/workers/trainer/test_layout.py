"""Rows, trunks and branches: the same log-probs, however sequences are laid out."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from roll_workers.errors import UserError
from roll_workers.trainer.batch import Shard, build_shard
from roll_workers.trainer.strategies.layout import Shape, micro_batches
from roll_workers.trainer.strategies.torch import TorchStrategy
from trainer_world import dialogue, job, sample, samples

SHAPE = Shape(per_token=1000.0, per_pair=1.0, vocabulary=15, branching=True)


def shard(*payloads: tuple[int, bytes]) -> Shard:
    """(group, payload) of each sample."""
    made = [
        sample(group, 0, payload, [1.0], position=n) for n, (group, payload) in enumerate(payloads)
    ]
    return build_shard(made, 15, 100)


def test_a_group_is_one_row_with_its_prompt_once() -> None:
    batch = shard(
        (0, dialogue([3, 4, 5], ([6, 7], []))),
        (0, dialogue([3, 4, 5], ([8, 9, 1], []))),
    ).batch
    (part,) = micro_batches(batch, SHAPE, 100)
    assert part.input_ids.tolist() == [[3, 4, 5, 6, 8, 9]]
    assert part.position_ids is not None and part.branch is not None
    assert part.position_ids.tolist() == [[0, 1, 2, 3, 3, 4]]
    assert part.branch.tolist() == [[0, 0, 0, 1, 2, 2]]
    # Both first tokens are predicted by the prompt's last one, whose logits are made once.
    assert part.positions.tolist() == [2, 3, 4, 5]
    assert part.row.tolist() == [0, 1, 0, 2, 3]
    assert part.actions.tolist() == [0, 1, 2, 3, 4]


def test_a_sequence_alone_needs_no_mask_and_not_its_last_token() -> None:
    (part,) = micro_batches(shard((0, dialogue([3, 4], ([5, 6, 7], [])))).batch, SHAPE, 100)
    assert part.input_ids.tolist() == [[3, 4, 5, 6]]
    assert part.branch is None and part.position_ids is None
    assert part.positions.tolist() == [1, 2, 3]


def test_observations_are_inputs_but_not_trained() -> None:
    batch = shard((0, dialogue([3, 4], ([5, 6], [7, 8]), ([9], [10])))).batch
    (part,) = micro_batches(batch, SHAPE, 100)
    assert batch.tokens[batch.action].tolist() == [5, 6, 9]
    assert part.input_ids.tolist() == [[3, 4, 5, 6, 7, 8]]
    assert part.positions.tolist() == [1, 2, 5]


def test_different_prompts_of_a_group_share_what_they_have_in_common() -> None:
    batch = shard((0, dialogue([3, 4, 5], ([6], []))), (0, dialogue([3, 4, 9], ([6], [])))).batch
    (part,) = micro_batches(batch, SHAPE, 100)
    assert part.input_ids.tolist() == [[3, 4, 5, 9]]
    assert part.positions.tolist() == [2, 3]


def test_long_answers_are_not_put_into_one_row_where_attention_would_cost_more() -> None:
    long = list(range(3, 15)) * 5
    batch = shard(*((0, dialogue([3], (long, []))) for _ in range(4))).batch
    costly = dataclasses.replace(SHAPE, per_token=1.0)
    (part,) = micro_batches(batch, costly, 10_000)
    assert part.branch is None and part.input_ids.shape == (4, 60)


def test_passes_respect_the_limit_and_keep_lengths_together() -> None:
    batch = build_shard(samples(1, groups=16), 15, 100).batch
    parts = list(micro_batches(batch, dataclasses.replace(SHAPE, branching=False), 40))
    assert len(parts) > 3
    assert all(part.input_ids.size <= 40 for part in parts)
    assert sorted(np.concatenate([part.actions for part in parts]).tolist()) == list(
        range(len(batch.action))
    )


@pytest.mark.parametrize(("answer", "passes"), [(64, 10), (30, 4), (4, 2)])
def test_lanes_are_equally_busy(answer: int, passes: int) -> None:
    tokens = list(range(3, 3 + answer % 12)) + [5] * (answer - answer % 12)
    batch = shard(*((n, dialogue([3, 4, 5], (tokens, []))) for n in range(256))).batch
    parts = list(micro_batches(batch, SHAPE, 2048, lanes=2))
    first, second = (sum(part.input_ids.size for part in parts[n::2]) for n in (0, 1))
    assert len(parts) == passes
    assert max(first, second) < 1.04 * (first + second) / 2


def test_a_small_batch_is_not_cut_for_the_sake_of_lanes() -> None:
    batch = shard(*((n, dialogue([3, 4, 5], ([6, 7], []))) for n in range(16))).batch
    assert len(list(micro_batches(batch, SHAPE, 2048, lanes=2))) == 1


@pytest.fixture(scope="module")
def strategy(model_folder: Path) -> TorchStrategy:
    made = TorchStrategy(0, 1)
    made.load(model_folder, job(model_folder).spec)
    return made


def by_definition(strategy: TorchStrategy, of: Shard) -> torch.Tensor:
    """One sequence at a time, whole, with the model's own logits."""
    values = []
    batch = of.batch
    for s in range(len(batch)):
        begin, end = batch.offsets[s], batch.offsets[s + 1]
        with torch.no_grad():
            logits = strategy.model(torch.from_numpy(batch.tokens[begin:end])[None]).logits[0]
        log_p = torch.log_softmax(logits / strategy.temperature, -1)
        for at in batch.action[(batch.action >= begin) & (batch.action < end)]:
            values.append(log_p[at - begin - 1, batch.tokens[at]])
    return torch.stack(values)


@pytest.mark.parametrize("max_tokens", [16_384, 24])
@pytest.mark.parametrize("branching", [True, False])
def test_log_probs_do_not_depend_on_the_layout(
    strategy: TorchStrategy, branching: bool, max_tokens: int
) -> None:
    dialogues = [
        sample(9, 0, dialogue([3, 4, 5], ([6, 7], [8, 9]), ([1], [])), [1.0], position=100),
        sample(9, 0, dialogue([3, 4, 5], ([6], [8, 9, 9]), ([1, 2], [4])), [1.0], position=101),
    ]
    of = build_shard([*samples(1), *dialogues], 15, 100)
    assert strategy.shape.branching
    strategy.shape = dataclasses.replace(strategy.shape, branching=branching)
    strategy.max_tokens = max_tokens
    try:
        actual = strategy.log_probs(of.batch)
    finally:
        strategy.shape = dataclasses.replace(strategy.shape, branching=True)
        strategy.max_tokens = 16_384
    torch.testing.assert_close(actual, by_definition(strategy, of), rtol=1e-4, atol=1e-5)


def test_a_part_of_a_batch_is_the_batch_of_that_part() -> None:
    made = samples(1)
    whole = build_shard(made, 15, 100).batch
    part = whole.select(np.array([1, 4, 5]))
    alone = build_shard([made[1], made[4], made[5]], 15, 100).batch
    assert part.tokens.tolist() == alone.tokens.tolist()
    assert part.action.tolist() == alone.action.tolist()
    assert part.sequence.tolist() == alone.sequence.tolist()
    assert part.behaviour.tolist() == alone.behaviour.tolist()


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (dialogue([3, 4], ([99], [])), "has token 99, but the model knows 15"),
        (dialogue([3] * 200, ([4], [])), "has 201 tokens, but the model's context has 100"),
        (dialogue([], ([4], [])), "has an empty prompt"),
    ],
)
def test_a_sample_that_does_not_fit_the_model_is_named(payload: bytes, message: str) -> None:
    with pytest.raises(UserError, match=r"sample 7/0 .*" + message):
        shard((7, payload))
