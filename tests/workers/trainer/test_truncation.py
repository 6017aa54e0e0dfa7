"""Top-k and top-p: the trainer's log-probs are those of the distribution that the engine sampled from."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from roll_workers.inference.engines import Request
from roll_workers.inference.engines.transformers import TransformersEngine
from roll_workers.runtime.trajectory import Trajectory, action_piece, prompt_piece
from roll_workers.trainer.algorithms import log_probs_and_entropy
from roll_workers.trainer.batch import build_shard
from roll_workers.trainer.objective import SUMS, Objective
from roll_workers.trainer.strategies.torch import TorchStrategy
from trainer_world import job, sample

LOGITS = torch.tensor([[0.1, 0.5, 0.15, 0.25], [0.4, 0.1, 0.3, 0.2]]).log()


def of(
    rows: list[int], tokens: list[int], top_k: int, top_p: float
) -> tuple[list[float], list[float]]:
    log_probs, entropy = log_probs_and_entropy(
        LOGITS, torch.tensor(rows), torch.tensor(tokens), 1.0, top_k, top_p
    )
    return log_probs.exp().tolist(), entropy.tolist()


def entropy(*probabilities: float) -> float:
    return -sum(p * math.log(p) for p in probabilities)


def test_probabilities_and_entropy_are_those_of_what_is_kept() -> None:
    assert of([0, 0, 1], [1, 3, 0], 2, 1.0) == (
        pytest.approx([2 / 3, 1 / 3, 4 / 7]),
        pytest.approx([entropy(2 / 3, 1 / 3)] * 2 + [entropy(4 / 7, 3 / 7)]),
    )
    assert of([0, 1], [1, 2], 0, 0.7) == (
        pytest.approx([2 / 3, 3 / 7]),
        pytest.approx([entropy(2 / 3, 1 / 3), entropy(4 / 7, 3 / 7)]),
    )
    # p applies to what top-k left: 0.5 / 0.75 reaches 0.6.
    assert of([0], [1], 2, 0.6) == (pytest.approx([1.0]), pytest.approx([0.0], abs=1e-6))


def test_a_sampled_token_that_is_ruled_out_by_now_is_kept_for_itself_alone() -> None:
    probabilities, entropies = of([0, 0], [2, 1], 2, 1.0)
    assert probabilities == pytest.approx([0.15 / 0.90, 0.5 / 0.75])
    assert entropies == pytest.approx([entropy(2 / 3, 1 / 3)] * 2)


def test_gradients_flow_through_what_is_kept_and_the_token_itself() -> None:
    logits = LOGITS[:1].clone().requires_grad_()
    log_probs, entropies = log_probs_and_entropy(
        logits, torch.tensor([0]), torch.tensor([1]), 1.0, 2
    )
    [gradient] = torch.autograd.grad(log_probs.sum(), logits, retain_graph=True)
    torch.testing.assert_close(gradient, torch.tensor([[0.0, 1 / 3, 0.0, -1 / 3]]))
    # dH/dx_v = -p_v (log p_v + H)
    [gradient] = torch.autograd.grad(entropies.sum(), logits)
    h = entropy(2 / 3, 1 / 3)
    expected = [0.0, -2 / 3 * (math.log(2 / 3) + h), 0.0, -1 / 3 * (math.log(1 / 3) + h)]
    torch.testing.assert_close(gradient, torch.tensor([expected]))
    outside, _ = log_probs_and_entropy(logits, torch.tensor([0]), torch.tensor([2]), 1.0, 2)
    [gradient] = torch.autograd.grad(outside.sum(), logits)
    torch.testing.assert_close(gradient, torch.tensor([[0.0, -5 / 9, 1 - 1 / 6, -2.5 / 9]]))


def test_rules_that_rule_out_nothing_give_the_plain_distribution() -> None:
    rows, tokens = torch.tensor([0, 1, 1]), torch.tensor([2, 0, 3])
    plain = log_probs_and_entropy(LOGITS, rows, tokens, 0.7)
    same = log_probs_and_entropy(LOGITS, rows, tokens, 0.7, top_k=4, top_p=1.0)
    torch.testing.assert_close(same, plain)


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (0, 0.6), (6, 0.7)])
def test_on_the_weights_that_sampled_the_ratio_to_the_engine_is_1(
    model_folder: Path, top_k: int, top_p: float
) -> None:
    sampling = {"maxNewTokens": 8, "temperature": 0.8, "topK": top_k, "topP": top_p}
    rollout = {"groupsPerStep": 4, "groupSize": 4, "sampling": sampling}
    spec = job(model_folder, rollout=rollout).spec
    random = np.random.default_rng(7)
    prompts = [random.integers(3, 15, random.integers(3, 9)).astype(np.int32) for _ in range(6)]
    engine = TransformersEngine.from_folder(model_folder, slots=8)
    for number in range(24):
        engine.submit(Request(number, prompts[number // 4], number, 8, 0.8, top_p, top_k))
    tokens: dict[int, list[int]] = {}
    log_probs: dict[int, list[float]] = {}
    while engine.busy:
        for delta in engine.step():
            tokens.setdefault(delta.id, []).extend(delta.tokens)
            log_probs.setdefault(delta.id, []).extend(delta.logprobs)
    recorded = [
        sample(
            n // 4,
            n % 4,
            Trajectory.payload(
                prompt_piece(prompts[n // 4]), action_piece(tokens[n], log_probs[n], 0, 0, "stop")
            ),
            [0.0, 1.0, 0.0, 1.0],
            position=n,
        )
        for n in range(24)
    ]
    shard = build_shard(recorded, 15, 100)
    strategy, objective = TorchStrategy(0, 1), Objective(spec)
    strategy.load(model_folder, spec)

    ratio = (strategy.log_probs(shard.batch) - shard.batch.behaviour).exp()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-5)

    [batch] = objective.minibatches(shard, objective.prepare(shard, strategy), strategy)
    _, sums = strategy.train_step(batch, objective.loss, 1e-3)
    mean = sums[SUMS.index("actor/train_infer_ratio_token_mean")] / sums[0]
    assert float(mean) == pytest.approx(1.0, abs=1e-5)
    moved = strategy.log_probs(shard.batch)
    assert torch.isfinite(moved).all() and not torch.equal(moved, shard.batch.behaviour)
