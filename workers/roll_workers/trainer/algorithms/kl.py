"""How far the policy has moved from the reference model, seen through the sampled tokens."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]


def kl_estimate(current: Tensor, reference: Tensor, estimator: Estimator) -> Tensor:
    """KL(current || reference) per token; with d = log current - log reference:

        k1 = d                    unbiased, high variance, may be negative
        k2 = d^2 / 2              biased, low variance; its gradient is that of the true KL on-policy
        k3 = exp(-d) - 1 + d      unbiased, low variance, never negative

    Source: J. Schulman, "Approximating KL divergence", joschu.net/blog/kl-approx.html. No clamp, unlike
    ROLL's +-10.
    """
    d = current - reference
    if estimator == "k1":
        return d
    if estimator == "k2":
        return 0.5 * d.square()
    return torch.expm1(-d) + d
