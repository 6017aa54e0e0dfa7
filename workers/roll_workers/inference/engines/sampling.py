"""From logits to tokens, for many sequences at once, each with random numbers of its own.

Invariant: row i of `sample` depends on row i of its arguments only. The n-th number of a sequence is a
function of (seed, n) alone (splitmix64 used as a counter-based generator), so neither the batch nor the
order in which sequences run changes what is drawn.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from roll_workers.truncation import ruled_out

_INCREMENT = 0x9E3779B97F4A7C15  # 2⁶⁴ / golden ratio
_GOLDEN = np.uint64(_INCREMENT)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def _splitmix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * _MIX1
    x = (x ^ (x >> np.uint64(27))) * _MIX2
    return x ^ (x >> np.uint64(31))


def uniforms(
    seeds: npt.NDArray[np.uint64], counters: npt.NDArray[np.uint64]
) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) with 48 bits: few enough that u · total < total holds in float64."""
    with np.errstate(over="ignore"):
        mixed = _splitmix(_splitmix(seeds + _GOLDEN) + (counters + np.uint64(1)) * _GOLDEN)
    return (mixed >> np.uint64(16)).astype(np.float64) * 2.0**-48


def reseed(seed: int, turn: int, kept: int) -> int:
    """H(seed, turn, tokens kept): what a generation draws from when it starts, or starts again."""
    for part in (
        turn,
        kept,
    ):  # splitmix64 again, in plain integers: numpy takes 20 times as long for one
        seed = (seed + _INCREMENT * (part + 1)) & _MASK
        seed = ((seed ^ (seed >> 30)) * int(_MIX1)) & _MASK
        seed = ((seed ^ (seed >> 27)) * int(_MIX2)) & _MASK
        seed ^= seed >> 31
    return seed


def sample(
    logits: torch.Tensor,
    uniform: npt.NDArray[np.float64],
    temperature: npt.NDArray[np.float32],
    top_k: npt.NDArray[np.int64],
    top_p: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """One token and its log-prob per row, by inverting the distribution's cumulative sum."""
    device = logits.device
    logits = logits.float()
    greedy = temperature == 0
    if (temperature != 1).any():
        scale = torch.from_numpy(np.where(greedy, np.float32(1), temperature)).to(device)
        logits = logits / scale[:, None]
    cut = np.flatnonzero(((top_k > 0) | (top_p < 1)) & ~greedy)
    if cut.size:
        rows = torch.from_numpy(cut).to(device)
        out = ruled_out(
            logits[rows],
            torch.from_numpy(top_k[cut]).to(device),
            torch.from_numpy(top_p[cut]).to(device),
        )
        logits = logits.index_copy(0, rows, logits[rows].masked_fill(out, -torch.inf))
    # Not log_softmax, which takes ten times as long for a small vocabulary.
    shifted = logits - logits.amax(-1, keepdim=True)
    cumulative = shifted.exp().cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    tokens = torch.searchsorted(
        cumulative, torch.from_numpy(uniform).to(device)[:, None] * total, right=True
    )
    if greedy.any():
        best = logits.argmax(-1, keepdim=True)
        tokens = torch.where(torch.from_numpy(greedy).to(device)[:, None], best, tokens)
    chosen = shifted.gather(-1, tokens) - total.log().float()
    return tokens[:, 0].cpu().numpy(), chosen[:, 0].cpu().numpy()
