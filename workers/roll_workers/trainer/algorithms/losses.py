"""Policy losses, per action token; aggregation.py makes one number of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from roll_workers.trainer.algorithms.kl import Estimator, kl_estimate


class PolicyLoss(NamedTuple):
    """One value per action token."""

    policy: Tensor  # what the gradient flows through
    ratio: Tensor  # against the anchor of the clip range, detached
    clipped: Tensor  # True where the clip range cut the gradient off
    importance: Tensor  # weight between the anchor and the policy that sampled; 1 when coupled


def ppo_clip(
    current: Tensor,
    behaviour: Tensor,
    proximal: Tensor | None,
    advantage: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    decoupled: bool,
    importance_cap: float,
) -> PolicyLoss:
    """PPO's clipped objective, coupled or decoupled.

    Coupled (the anchor is the policy that sampled):

        rho = exp(current - behaviour)
        l   = -min(rho * A, clip(rho, 1 - low, 1 + high) * A)

    Decoupled (the anchor is the policy at the beginning of the step; what lies between it and the policy
    that sampled becomes a truncated importance weight without gradient):

        rho = exp(current - proximal)
        w   = min(exp(proximal - behaviour), cap)
        l   = -w * min(rho * A, clip(rho, 1 - low, 1 + high) * A)

    so that old samples neither exhaust the clip range before the first update nor weigh more than `cap`.
    `proximal` None stands for the current policy, detached: exact when a batch makes one optimizer update.

    Source: Schulman et al., arXiv 1707.06347; separate bounds: DAPO, arXiv 2503.14476; decoupled: Hilton et
    al., arXiv 2110.00641, as in AReaL, arXiv 2505.24298; truncation: Espeholt et al., arXiv 1802.01561.
    """
    if decoupled:
        anchor = current.detach() if proximal is None else proximal
        importance = torch.exp(anchor - behaviour).clamp(max=importance_cap)
    else:
        anchor = behaviour
        importance = torch.ones_like(behaviour)
    ratio = torch.exp(current - anchor)
    free = ratio * advantage
    bounded = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantage
    policy = -importance * torch.minimum(free, bounded)
    return PolicyLoss(policy, ratio.detach(), (bounded < free).detach(), importance)


def total_loss(
    policy: Tensor,
    entropy: Tensor,
    weight: Tensor,
    entropy_weight: Tensor,
    *,
    entropy_coefficient: float,
    current: Tensor | None = None,
    reference: Tensor | None = None,
    kl_coefficient: float = 0.0,
    kl_estimator: Estimator = "k3",
) -> Tensor:
    """The number that is differentiated:

        L = sum_t w_t * (policy_t + beta * KL_t) - c * mean_t(H_t)

    The entropy bonus is a mean over all action tokens whatever the aggregation (TRL does the same), so that
    its coefficient means the same in every mode.
    """
    tokens = policy
    if kl_coefficient and current is not None and reference is not None:
        tokens = tokens + kl_coefficient * kl_estimate(current, reference, kl_estimator)
    loss = (weight * tokens).sum()
    if entropy_coefficient:
        loss = loss - entropy_coefficient * (entropy_weight * entropy).sum()
    return loss
