"""From recorded rewards to the advantage of every action token, and from a gradient to one update, by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from roll_api import RLJob
from roll_wire import sample_pb2
from roll_workers.reward.rewards import Entry, combine
from roll_workers.reward.scorers import Reward
from roll_workers.reward.scorers.matching import ExactMatch
from roll_workers.trainer.batch import Shard, build_shard
from roll_workers.trainer.objective import Objective
from roll_workers.trainer.strategies import Policy
from roll_workers.trainer.strategies.torch import TorchStrategy
from trainer_world import dialogue, job, sample, samples


def judged(payload: bytes, *turns: float) -> bytes:
    """A trajectory whose scorer gave each turn a reward of its own."""
    reward = sample_pb2.Reward(turns=turns)
    return payload + sample_pb2.Trajectory(reward=reward).SerializeToString()


def advantages(model_folder: Path, shard: Shard, **algorithm: Any) -> list[float]:
    spec = job(model_folder, algorithm={"advantage": "reinforce", **algorithm}).spec
    return Objective(spec).prepare(shard, TorchStrategy(0, 1)).advantage.tolist()


# Two turns of two tokens and one of one.
EPISODE = dialogue([3, 4], ([5, 6], [7]), ([8, 9], [7]), ([5], []))


@pytest.mark.parametrize(
    ("turns", "algorithm", "expected"),
    [
        ((), {}, [0.9, 0.9, 0.9, 0.9, 0.9]),
        ((1.0, 0.0, 4.0), {}, [5.0, 5.0, 4.0, 4.0, 4.0]),
        ((1.0, 0.0, 4.0), {"gamma": 0.5}, [0.75, 1.5, 1.0, 2.0, 4.0]),
        # The whole sample's reward does not count beside them, however short the list is.
        ((1.0, 2.0), {}, [3.0, 3.0, 2.0, 2.0, 0.0]),
        ((1.0, -6.0, 4.0), {"rewardClip": 2.0}, [1.0, 1.0, 0.0, 0.0, 2.0]),
    ],
)
def test_a_turns_reward_lies_on_the_last_token_of_its_turn(
    model_folder: Path, turns: tuple[float, ...], algorithm: dict[str, Any], expected: list[float]
) -> None:
    beside = sample(1, 0, dialogue([3], ([4, 5], [])), [0.5], position=1)
    shard = build_shard([sample(0, 0, judged(EPISODE, *turns), [0.9], 0), beside], 15, 100)
    whole = [0.5 * algorithm.get("gamma", 1.0), 0.5]
    assert advantages(model_folder, shard, **algorithm) == pytest.approx([*expected, *whole])


def test_rewards_of_turns_and_of_the_whole_episode_are_both_trained_on(model_folder: Path) -> None:
    entries = [Entry(name, frozenset(), 1.0, ExactMatch()) for name in ("steps", "form")]
    reward = combine(entries, [Reward(1.0, turns=[1.0]), 0.5], last_turn=2)
    shard = build_shard([sample(0, 0, judged(EPISODE, *reward.turns), [reward.value], 0)], 15, 100)
    assert advantages(model_folder, shard) == pytest.approx([1.5, 1.5, 0.5, 0.5, 0.5])


def stale_job(model_folder: Path, **algorithm: Any) -> RLJob:
    """Several updates of a batch that older versions sampled."""
    chosen = {"advantage": "reinforce", "clip": 0.2, "importanceCap": 2.0, **algorithm}
    rollout = {"groupsPerStep": 4, "groupSize": 4, "maxStaleness": 2}
    return job(model_folder, algorithm=chosen, rollout=rollout)


def test_the_clip_is_about_the_proximal_policy_and_the_weight_about_the_one_that_sampled(
    model_folder: Path,
) -> None:
    """Three tokens by hand: sampled at log-prob -1, then 1.5, 3 and 0.5 times as likely when the step began, and now
    1.1, 1.5 and 0.5 times as likely as that.

        importance   1.5   3, capped to 2      0.5
        ratio        1.1   1.5, clipped to 1.2  0.5, clipped to 0.8
        advantage    1     1                   -1
        loss         -(1.65 + 2.4 - 0.4) / 3

    Against the policy that sampled, the first ratio would be 1.65 and clipped.
    """
    objective = Objective(stale_job(model_folder, epochs=2).spec)
    assert objective.decoupled and objective.updates == 2
    sampled = torch.tensor([-1.0, -1.0, -1.0])
    began = sampled + torch.tensor([1.5, 3.0, 0.5]).log()
    current = (began + torch.tensor([1.1, 1.5, 0.5]).log()).requires_grad_()
    rewards = (1.0, 1.0, -1.0)
    shard = build_shard(
        [sample(n, 0, dialogue([3], ([4], [])), [r], n) for n, r in enumerate(rewards)], 15, 100
    )
    assert torch.equal(shard.batch.behaviour, sampled)
    columns = {"advantage": torch.tensor(rewards), "proximal": began}
    batch = shard.batch.with_columns(**columns, weight=torch.full((3,), 1 / 3))

    loss, sums = objective.loss(batch, Policy(np.arange(3), current, torch.zeros(3)))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-(1.65 + 2.4 - 0.4) / 3)
    assert current.grad is not None
    assert current.grad.tolist() == pytest.approx([-1.65 / 3, 0.0, 0.0]), "what is clipped rests"
    figures = objective.figures(sums, updates=1)
    assert figures["actor/clipfrac"] == pytest.approx(2 / 3)
    assert figures["actor/ratio_mean"] == pytest.approx((1.1 + 1.5 + 0.5) / 3)
    assert figures["actor/train_infer_ratio_token_mean"] == pytest.approx((1.65 + 4.5 + 0.25) / 3)
    assert figures["actor/is_weight_clipfrac"] == pytest.approx(1 / 3)


def test_the_proximal_policy_is_the_one_before_the_first_of_several_updates(
    model_folder: Path,
) -> None:
    spec = stale_job(model_folder, epochs=2, minibatches=2, learningRate=1e-2).spec
    strategy, objective = TorchStrategy(0, 1), Objective(spec)
    strategy.load(model_folder, spec)
    shard = build_shard(samples(3), 15, 100)
    before = strategy.log_probs(shard.batch)
    batch = objective.prepare(shard, strategy)
    assert batch.proximal is not None and torch.equal(batch.proximal, before)

    proximal, ratios = [], []
    for part in objective.minibatches(shard, batch, strategy):
        assert part.proximal is not None
        proximal.append(part.proximal)
        _, sums = strategy.train_step(part, objective.loss, 1e-2)
        ratios.append(objective.figures(sums, updates=1)["actor/ratio_mean"])
    assert torch.equal(torch.cat(proximal[:2]), before), "all tokens, in both halves"
    assert torch.equal(torch.cat(proximal[2:]), before), "and again in the second epoch"
    assert ratios[0] == pytest.approx(1.0, abs=1e-6)
    assert all(abs(ratio - 1.0) > 1e-4 for ratio in ratios[1:]), ratios
    assert not torch.allclose(strategy.log_probs(shard.batch), before)


def test_a_gradient_above_the_limit_is_scaled_down_to_it(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update is that of plain gradient descent, so that it shows the gradient it was made of."""

    def moved(limit: float) -> tuple[torch.Tensor, float]:
        spec = job(model_folder, algorithm={"maxGradNorm": limit}).spec
        strategy, objective = TorchStrategy(0, 1), Objective(spec)
        strategy.load(model_folder, spec)
        parameters = [p for p in strategy.model.parameters() if p.requires_grad]
        strategy.optimizer = torch.optim.SGD(parameters, lr=1.0)  # type: ignore[assignment]
        before = torch.cat([p.detach().flatten() for p in parameters])
        shard = build_shard(samples(1), 15, 100)
        [batch] = objective.minibatches(shard, objective.prepare(shard, strategy), strategy)
        figures, _ = strategy.train_step(batch, objective.loss, 0.5)
        after = torch.cat([p.detach().flatten() for p in parameters])
        return (before - after) / 0.5, figures["actor/grad_norm"]

    free, norm = moved(1000.0)
    assert float(free.norm()) == pytest.approx(norm, rel=1e-3)
    clipped, same = moved(norm / 4)
    assert same == pytest.approx(norm), "what is reported is the norm before the limit"
    torch.testing.assert_close(clipped, free / 4, rtol=1e-3, atol=1e-6)
