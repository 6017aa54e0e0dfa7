"""What the loss needs of the policy's distribution: log-probabilities of sampled tokens, and entropy."""

from __future__ import annotations

import torch
from torch import Tensor


def log_probs_and_entropy(
    logits: Tensor, row: Tensor, token: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """log p(token | row) and the entropy of that row's distribution, for each sampled token.

        p = softmax(logits / temperature),   H = -sum_v p_v log p_v

    `row` says which row of `logits` predicts which token: samples that share a prompt share the row that
    predicts their first token. The distribution is the one before truncation by top-p or top-k: the engine's
    log-probs are those after truncation, so with truncation the ratio to the behaviour policy starts below 1.
    """
    log_p = torch.log_softmax(logits.float() / temperature, dim=-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return log_p[row, token], entropy[row]
