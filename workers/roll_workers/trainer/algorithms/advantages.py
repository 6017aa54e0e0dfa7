"""From rewards to advantages."""

from __future__ import annotations

import torch
from torch import Tensor

STD_EPSILON = 1e-6  # ROLL's; TRL has 1e-4


def group_relative(
    rewards: Tensor, peers: Tensor, peer_of: Tensor, *, normalize_std: bool = True
) -> Tensor:
    """How much better each sample is than its group (GRPO).

        A_i = (r_i - mean(r)) / (std(r) + 1e-6)

    with the unbiased standard deviation over the group. `peers` holds the rewards of every sample's whole
    group, itself included, and `peer_of` the sample that each belongs to. Without `normalize_std` the division
    is left out (Dr. GRPO, arXiv 2503.20783: it favours prompts that are nearly always or nearly never solved).
    A group of one has nothing to compare with: its advantage is 0.

    Source: DeepSeekMath, arXiv 2402.03300, section 4.1.2; ROLL's `grpo`.
    """
    samples = len(rewards)
    count = torch.bincount(peer_of, minlength=samples)
    mean = torch.bincount(peer_of, peers, minlength=samples) / count
    centered = rewards - mean
    if not normalize_std:
        return centered
    squares = torch.bincount(peer_of, (peers - mean[peer_of]).square(), minlength=samples)
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    return centered / (std + STD_EPSILON)


def discounted_returns(rewards: Tensor, sequence: Tensor, gamma: float) -> Tensor:
    """The discounted return of every action token (REINFORCE).

        R_t = r_t + gamma * R_{t+1}

    inside each sequence; the return never leaks into the sequence before. With gamma = 1 this is the sum of
    what is still to come.

    Source: Williams 1992; ROLL's `reinforce`.
    """
    if rewards.numel() == 0:
        return rewards.clone()
    if gamma == 1.0:
        total = rewards.double().cumsum(0)
        after_last = total[_last_index(sequence)][sequence - sequence[0]]
        return (after_last - total + rewards).to(rewards.dtype)
    returns = rewards.double().tolist()
    owner = sequence.tolist()
    for t in range(len(returns) - 2, -1, -1):
        if owner[t] == owner[t + 1]:
            returns[t] += gamma * returns[t + 1]
    return torch.tensor(returns, dtype=rewards.dtype, device=rewards.device)


def last_of_each(sequence: Tensor) -> Tensor:
    """True at the last action token of every sequence: where a reward for the whole sample lies."""
    last = torch.ones_like(sequence, dtype=torch.bool)
    last[:-1] = sequence[1:] != sequence[:-1]
    return last


def _last_index(sequence: Tensor) -> Tensor:
    """For each sequence number, counted from the first, the index of its last token."""
    first = int(sequence[0])
    index = torch.zeros(int(sequence[-1]) - first + 1, dtype=torch.long, device=sequence.device)
    ends = last_of_each(sequence).nonzero().squeeze(1)
    index[sequence[ends] - first] = ends
    return index
