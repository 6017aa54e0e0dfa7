"""The key-value cache of the decode loop, and the attention that reads it.

Invariant: row r of every layer holds the keys and values of positions 0..length(r)-1 of one sequence;
what lies beyond is finite and masked out. The model writes through `update` at the places that the engine
set before the forward pass: `prefill` (whole prompts, left-padded) or `decode` (one token a row).

The attention is registered with transformers under the name `roll_slots`, so that any model with an
attention interface uses it. Two things decide its speed on a CPU (measured: 256 rows, 4 heads of 32, 64
positions, one thread): a plain matmul for one query a row takes half of the fused kernel's time, and buffers
without slack behind the last position, which the matmul reads as they lie, take a quarter of the time of
strided ones. So the buffers follow the longest running sequence in small steps, up and down.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.cache_utils import Cache

NAME = "roll_slots"
Indices = npt.NDArray[np.int64]


class SlotCache(Cache):
    """Buffers [slots, heads, capacity, width] per layer, made at the first write."""

    def __init__(self, slots: int) -> None:
        super().__init__(layers=[])
        self.slots = slots
        self.capacity = capacity_for(1)
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self._from: tuple[torch.Tensor, torch.Tensor] | None = None
        self._to: tuple[torch.Tensor, torch.Tensor]
        self._rows = 0

    def fit(self, positions: int) -> None:
        """Make room for sequences of this length; give room back when they have become much shorter."""
        wanted = capacity_for(positions)
        if self.capacity * 3 // 4 < wanted <= self.capacity:
            return
        more, self.capacity = wanted - self.capacity, wanted
        for buffers in (self.keys, self.values):
            for layer, buffer in enumerate(buffers):  # one by one: never two whole caches at once
                buffers[layer] = F.pad(buffer, (0, 0, 0, more)).contiguous()

    def prefill(
        self, of: Indices, at: Indices, rows: Indices, positions: Indices, device: torch.device
    ) -> None:
        """The next pass computes prompts; token `at` of its row `of` is position `positions` of `rows`."""
        self._from = (torch.from_numpy(of).to(device), torch.from_numpy(at).to(device))
        self._to = (torch.from_numpy(rows).to(device), torch.from_numpy(positions).to(device))

    def decode(self, rows: int, positions: torch.Tensor) -> None:
        """The next pass adds one token to each of rows 0..rows-1."""
        self._from = None
        self._to = (torch.arange(rows, device=positions.device), positions)
        self._rows = rows

    def move(self, source: Indices, target: Indices, length: int) -> None:
        """Copy whole rows, to close the gaps that finished sequences left."""
        for buffer in (*self.keys, *self.values):
            to = torch.from_numpy(target).to(buffer.device)
            buffer[to, :, :length] = buffer[torch.from_numpy(source).to(buffer.device), :, :length]

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        while len(self.keys) <= layer_idx:
            for buffers, like in ((self.keys, key_states), (self.values, value_states)):
                shape = (self.slots, like.shape[1], self.capacity, like.shape[3])
                buffers.append(like.new_zeros(shape))
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        rows, positions = self._to
        if self._from is not None:
            of, at = self._from
            keys[rows, :, positions] = key_states[of, :, at]
            values[rows, :, positions] = value_states[of, :, at]
            return key_states, value_states
        keys[rows, :, positions] = key_states[:, :, 0]
        values[rows, :, positions] = value_states[:, :, 0]
        return keys[: self._rows], values[: self._rows]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions differ by row and are always given to the model; nothing may count on this."""
        return 0


def capacity_for(positions: int) -> int:
    """Multiples of 16 (torch's CPU matmul is slow below), coarser for long ones: waste under a quarter."""
    grain = max(16, (1 << positions.bit_length()) // 8)
    return -(-positions // grain) * grain


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Softmax(Q·Kᵀ·scaling + mask)·V with grouped heads; without a mask it is causal."""
    rows, heads, queries, width = query.shape
    groups = key.shape[1]
    if queries > 1:
        out = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attention_mask,
            is_causal=attention_mask is None,
            scale=scaling,
            enable_gqa=groups != heads,
        )
        return out.transpose(1, 2), None
    # The heads of a group share their keys: to the matmul they are several queries of one head.
    query = query.reshape(rows, groups, heads // groups, width)
    if query.device.type == "cpu":
        scores = (query * (width**-0.5 if scaling is None else scaling)) @ key.transpose(2, 3)
        if attention_mask is not None:
            scores += attention_mask
        out = scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value
    else:
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scaling
        )
    return out.reshape(rows, 1, heads, value.shape[-1]), None


AttentionInterface.register(NAME, attention)
