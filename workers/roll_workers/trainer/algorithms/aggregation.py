"""How token losses become one number.

A mode is a weight per token, and the loss is the weighted sum. The denominators count the whole batch over
all ranks and micro-batches, so that the sum of the parts, however the batch is cut, is the loss of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Mode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@dataclass(frozen=True, slots=True)
class Totals:
    """The size of one optimizer update's batch, over all ranks."""

    tokens: float  # action tokens
    sequences: float  # that have at least one action token


def token_weights(sequence: Tensor, mode: Mode, totals: Totals, horizon: int) -> Tensor:
    """The weight w of each action token, such that loss = sum_t w_t * l_t.

        token-mean               w = 1 / tokens                  every token counts the same (DAPO)
        seq-mean-token-sum       w = 1 / sequences               long answers count more
        seq-mean-token-mean      w = 1 / (sequences * |o_i|)     every answer counts the same (GRPO)
        seq-mean-token-sum-norm  w = 1 / (sequences * horizon)   no length bias (Dr. GRPO)

    `horizon` is a constant of the job, the largest number of action tokens a sequence may have.

    Source: ROLL's `loss_agg_mode`; its seq-mean-token-sum-norm divides by the padded length of the batch at
    hand and not by the number of sequences, so its size changes from batch to batch; here it is Dr. GRPO's
    (arXiv 2503.20783), as in TRL's `dr_grpo`.
    """
    if mode == "token-mean":
        return torch.full(sequence.shape, 1.0 / max(totals.tokens, 1.0), device=sequence.device)
    sequences = max(totals.sequences, 1.0)
    if mode == "seq-mean-token-sum":
        return torch.full(sequence.shape, 1.0 / sequences, device=sequence.device)
    if mode == "seq-mean-token-sum-norm":
        return torch.full(sequence.shape, 1.0 / (sequences * horizon), device=sequence.device)
    if sequence.numel() == 0:
        return torch.zeros(sequence.shape, device=sequence.device)
    lengths = torch.bincount(sequence)
    return 1.0 / (sequences * lengths[sequence].to(torch.float32))
