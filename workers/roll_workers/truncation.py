"""Which tokens top-k and top-p leave: one rule for the engine that samples and for the trainer that learns from it."""

from __future__ import annotations

import torch
from torch import Tensor

_UNIT = 2.0**40  # of probability


def ruled_out(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """True for what top-k, then top-p of what is left, rule out (0 and 1 rule out nothing).

    Top-p keeps the smallest set of most probable tokens whose probability reaches p; the most probable token
    is always kept. `top_k` and `top_p` have one entry per row of `logits`, or one for all.
    """
    ordered, order = logits.sort(dim=-1, descending=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    beyond_k = rank >= torch.where(top_k > 0, top_k, logits.shape[-1])[:, None]
    # Added up in whole units: a sum of floats on a GPU is not the same every time.
    probs = (ordered.masked_fill(beyond_k, -torch.inf).softmax(-1) * _UNIT).long()
    before = probs.cumsum(-1) - probs
    limit = top_p.double()[:, None]
    out = beyond_k | ((before >= limit * _UNIT) & (limit < 1) & (rank > 0))
    return torch.empty_like(out).scatter_(-1, order, out)
