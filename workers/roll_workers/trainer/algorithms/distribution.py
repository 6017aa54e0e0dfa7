"""What the loss needs of the policy's distribution: log-probabilities of sampled tokens, and entropy."""

from __future__ import annotations

import torch
from torch import Tensor

from roll_workers.truncation import ruled_out

AT_ONCE = 1 << 22  # logits that are sorted together: that takes ten times their memory


def log_probs_and_entropy(
    logits: Tensor,
    row: Tensor,
    token: Tensor,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """log p(token | row) and the entropy of that row's distribution, for each sampled token.

        p = softmax(logits / temperature) over what top-k and top-p keep,   H = -sum_v p_v log p_v

    `row` says which row of `logits` predicts which token: samples that share a prompt share the row that
    predicts their first token. The distribution is the one that the engine samples from at these logits, so
    with the weights that sampled a token the ratio to the behaviour policy is 1.

    What is kept follows the logits: as the weights change, a token that was sampled may come to be ruled
    out. It is then kept for its own log-prob alone, beside the others, so that this stays finite:
    p = exp(x) / (sum over kept + exp(x)). Gradients flow through the logits of kept tokens and of the token
    itself; the choice of what is kept has none.
    """
    scaled = logits.float() / temperature
    if top_k == 0 and top_p == 1.0:
        log_p = torch.log_softmax(scaled, dim=-1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        return log_p[row, token], entropy[row]
    k, p = (torch.tensor([limit], device=scaled.device) for limit in (top_k, top_p))
    rows = max(AT_ONCE // scaled.shape[-1], 1)
    out = torch.cat([ruled_out(some, k, p) for some in scaled.detach().split(rows)])
    total = scaled.masked_fill(out, -torch.inf).logsumexp(-1)
    log_p = (scaled - total[:, None]).masked_fill(out, 0.0)
    entropy = -(log_p.exp() * log_p).sum(-1)  # log p = 0 where ruled out: adds nothing
    chosen = scaled[row, token]
    all_kept = total[row]
    own = torch.where(out[row, token], torch.logaddexp(all_kept, chosen), all_kept)
    return chosen - own, entropy[row]
