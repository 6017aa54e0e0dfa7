"""From a job's `algorithm` to one step: which advantages, which updates, which loss.

The formulas are in algorithms/; here they are put together as the spec says.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from roll_api import JobSpec
from torch import Tensor

from roll_workers.trainer.algorithms import (
    Totals,
    discounted_returns,
    group_relative,
    kl_estimate,
    last_of_each,
    ppo_clip,
    token_weights,
    total_loss,
)
from roll_workers.trainer.batch import Shard, TokenBatch
from roll_workers.trainer.strategies import Policy, Strategy

# The vector that `loss` returns beside the loss; each entry is a sum over action tokens.
SUMS = (
    "tokens",
    "actor/pg_loss",
    "actor/total_loss",
    "critic/entropy/mean",
    "actor/approxkl",
    "actor/clipfrac",
    "actor/ratio_mean",
    "actor/train_infer_ratio_token_mean",
    "actor/is_weight_clipfrac",
    "actor/kl_loss",
)
_NOT_MEANS = ("actor/pg_loss", "actor/total_loss")


class Objective:
    """What one job optimises."""

    def __init__(self, spec: JobSpec) -> None:
        self.algorithm = algorithm = spec.algorithm
        self.updates = algorithm.epochs * algorithm.minibatches
        self.decoupled = algorithm.decoupled == "Always" or (
            algorithm.decoupled == "Auto" and spec.rollout.max_staleness > 0
        )
        turns = spec.environment.max_turns if spec.environment else 1
        self.horizon = spec.rollout.sampling.max_new_tokens * turns
        self.reward_limit = algorithm.reward_clip or float("inf")
        self.clip_high = algorithm.clip if algorithm.clip_high is None else algorithm.clip_high

    def learning_rate(self, step: int) -> float:
        """Rises linearly to its full height at step `warmupSteps`."""
        warmup = self.algorithm.warmup_steps
        return self.algorithm.learning_rate * (min(step / warmup, 1.0) if warmup else 1.0)

    def prepare(self, shard: Shard, strategy: Strategy) -> TokenBatch:
        """Log-probs that the loss compares with, then advantages. Collective."""
        batch, kl = shard.batch, self.algorithm.kl
        if kl.coefficient > 0:
            batch = batch.with_columns(reference=strategy.log_probs(batch, reference=True))
        in_reward = kl.coefficient > 0 and kl.place == "Reward"
        # With one update per batch the policy at its beginning is the current one: no pass of its own.
        if in_reward or (self.decoupled and self.updates > 1):
            batch = batch.with_columns(proximal=strategy.log_probs(batch))
        rewards = self._token_rewards(shard)
        if in_reward:
            assert batch.proximal is not None and batch.reference is not None
            penalty = kl_estimate(batch.proximal, batch.reference, kl.estimator)
            rewards = rewards - kl.coefficient * penalty
        advantage = discounted_returns(rewards, batch.sequence, self.algorithm.gamma)
        if (limit := self.algorithm.advantage_clip) is not None:
            advantage = advantage.clamp(-limit, limit)
        return batch.with_columns(advantage=advantage)

    def minibatches(
        self, shard: Shard, batch: TokenBatch, strategy: Strategy
    ) -> Iterator[TokenBatch]:
        """The batches of this step's optimizer updates, with weights that count over all ranks. Collective."""
        count = self.algorithm.minibatches
        parts = [batch]
        if count > 1:
            samples = np.array_split(np.arange(len(shard.units)), count)
            parts = [batch.select(np.flatnonzero(np.isin(shard.sample, s))) for s in samples]
        weighted = [self._weighted(part, strategy) for part in parts]
        for _ in range(self.algorithm.epochs):
            yield from weighted

    def loss(self, batch: TokenBatch, policy: Policy) -> tuple[Tensor, Tensor]:
        """The share of some action tokens in the loss of their update, and their share in the metrics."""
        algorithm, chosen = self.algorithm, torch.from_numpy(policy.actions)
        current, device = policy.log_probs, policy.log_probs.device

        def column(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[chosen].to(device)

        behaviour, weight = column(batch.behaviour), column(batch.weight)
        advantage, reference = column(batch.advantage), column(batch.reference)
        assert behaviour is not None and weight is not None and advantage is not None
        ppo = ppo_clip(
            current,
            behaviour,
            column(batch.proximal),
            advantage,
            clip_low=algorithm.clip,
            clip_high=self.clip_high,
            decoupled=self.decoupled,
            importance_cap=algorithm.importance_cap,
        )
        loss = total_loss(
            ppo.policy,
            policy.entropy,
            weight,
            batch.entropy_weight[chosen].to(device),
            entropy_coefficient=algorithm.entropy,
            current=current,
            reference=reference,
            kl_coefficient=algorithm.kl.coefficient if algorithm.kl.place == "Loss" else 0.0,
            kl_estimator=algorithm.kl.estimator,
        )
        with torch.no_grad():
            since = current - behaviour
            sums = (
                torch.tensor(float(len(chosen)), device=device),
                (weight * ppo.policy).sum(),
                loss,
                policy.entropy.sum(),
                kl_estimate(current, behaviour, "k3").sum(),
                ppo.clipped.sum(),
                ppo.ratio.sum(),
                since.exp().sum(),
                (ppo.importance >= algorithm.importance_cap).sum(),
                since.new_zeros(())
                if reference is None
                else kl_estimate(current, reference, algorithm.kl.estimator).sum(),
            )
            return loss, torch.stack([s.detach().double() for s in sums]).cpu()

    def figures(self, sums: Tensor, updates: int) -> dict[str, float]:
        """Metrics of a step from the sum of its updates' vectors."""
        tokens, values = max(float(sums[0]), 1.0), sums.tolist()
        named = dict(zip(SUMS[1:], values[1:], strict=True))
        if self.algorithm.kl.coefficient == 0:
            del named["actor/kl_loss"]
        return {
            name: value / updates if name in _NOT_MEANS else value / tokens
            for name, value in named.items()
        }

    def _weighted(self, batch: TokenBatch, strategy: Strategy) -> TokenBatch:
        totals = strategy.all_sum(torch.tensor([len(batch.action), len(batch)], dtype=torch.double))
        tokens, sequences = totals.tolist()
        mode = self.algorithm.loss_aggregation
        weight = token_weights(batch.sequence, mode, Totals(tokens, sequences), self.horizon)
        mean = torch.full(batch.sequence.shape, 1.0 / max(tokens, 1.0))
        return batch.with_columns(weight=weight, entropy_weight=mean)

    def _token_rewards(self, shard: Shard) -> Tensor:
        """A sample's reward lies on the last action token of each of its sequences, turns' on theirs."""
        sequence = shard.batch.sequence
        values = self._sample_values(shard).float()
        last = last_of_each(sequence)
        rewards = torch.zeros(len(sequence))
        rewards[last] = values[torch.from_numpy(shard.sample)[sequence[last]]]
        if self.algorithm.advantage == "reinforce" and any(shard.turns):
            _spread_over_turns(shard, rewards, self.reward_limit)
        return rewards

    def _sample_values(self, shard: Shard) -> Tensor:
        limit = self.reward_limit
        rewards = torch.from_numpy(shard.rewards).clamp(-limit, limit)
        if self.algorithm.advantage == "reinforce":
            return rewards
        return group_relative(
            rewards,
            torch.from_numpy(shard.peers).clamp(-limit, limit),
            torch.from_numpy(shard.peer_of),
            normalize_std=self.algorithm.normalize_std,
        )


def _spread_over_turns(shard: Shard, rewards: Tensor, limit: float) -> None:
    """Samples with a reward per turn get each on the last action token of its turn instead, and nothing for
    turns that the list does not reach."""
    sample = shard.sample[shard.batch.sequence.numpy()]
    rewards[torch.from_numpy(np.array([len(of) > 0 for of in shard.turns])[sample])] = 0.0
    key = sample * (int(shard.turn.max()) + 1) + shard.turn
    ends = np.flatnonzero(np.append(key[1:] != key[:-1], True))
    for end in ends.tolist():
        of_turn = shard.turns[sample[end]]
        if shard.turn[end] < len(of_turn):
            rewards[end] = min(max(of_turn[shard.turn[end]], -limit), limit)
