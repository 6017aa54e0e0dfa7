"""What the decode loop asks of a model, and the answer for any Hugging Face architecture.

The loop knows rows, lengths and tokens; `Passes` own the key-value cache and turn tokens into logits.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from roll_workers.inference.engines import Tokens, kv
from roll_workers.inference.engines.kv import Indices


class Passes(Protocol):
    @property
    def capacity(self) -> int:
        """Positions that a slot has room for."""
        ...

    def changed(self) -> None:
        """The model's weights are new."""
        ...

    def fit(self, positions: int) -> None:
        """Make room for sequences of this length; give room back when they have become much shorter."""
        ...

    def prefill(self, prompts: list[Tokens], of: Indices, rows: Indices) -> Tensor:
        """Logits after each prompt; slot `rows[i]` gets the keys and values of prompt `of[i]`."""
        ...

    def decode(self, last: Indices, positions: Indices) -> Tensor:
        """Logits after one more token, at `positions`, of each of slots 0..len(last)-1."""
        ...

    def move(self, source: Indices, target: Indices, length: int) -> None:
        """Copy whole slots, to close the gaps that finished sequences left."""
        ...


class Generic:
    """The library's own modules over our cache."""

    def __init__(self, model: Any, slots: int) -> None:
        self.model = model
        weight = next(model.parameters())
        self._device, self._dtype = weight.device, weight.dtype
        self._lowest = torch.finfo(weight.dtype).min
        self._own_attention = model.config._attn_implementation == kv.NAME
        self._cache = kv.SlotCache(slots)

    @property
    def capacity(self) -> int:
        return self._cache.capacity

    def changed(self) -> None: ...

    def fit(self, positions: int) -> None:
        self._cache.fit(positions)

    def move(self, source: Indices, target: Indices, length: int) -> None:
        self._cache.move(source, target, length)

    def prefill(self, prompts: list[Tokens], of: Indices, rows: Indices) -> Tensor:
        """Left-padded: the last position of every prompt, whose logits are needed, is the pass's last."""
        lengths = np.array([len(prompt) for prompt in prompts])
        width = int(lengths.max())
        pad = width - lengths
        ids = np.zeros((len(prompts), width), np.int64)
        for i, prompt in enumerate(prompts):
            ids[i, pad[i] :] = prompt
        counts = lengths[of]
        positions = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        flat = np.repeat(of, counts), positions + np.repeat(pad[of], counts)
        self._cache.prefill(*flat, np.repeat(rows, counts), positions, self._device)
        mask = None
        if pad.any() or not self._own_attention:
            at = torch.arange(width)
            seen = (at[None, :] <= at[:, None]) & (at >= torch.from_numpy(pad)[:, None, None])
            # A padding query sees itself: a row without any key would be NaN.
            mask = self._mask(seen | torch.eye(width, dtype=torch.bool))
        return self._logits(ids, np.maximum(np.arange(width) - pad[:, None], 0), mask)

    def decode(self, last: Indices, positions: Indices) -> Tensor:
        self._cache.decode(len(last), torch.from_numpy(positions).to(self._device))
        at = np.arange(self._cache.capacity)
        mask = self._mask(torch.from_numpy(at <= positions[:, None])[:, None])
        return self._logits(last[:, None], positions[:, None], mask)

    def _logits(self, ids: Indices, positions: Indices, mask: Tensor | None) -> Tensor:
        """Of the last position of each row."""
        return self.model(  # type: ignore[no-any-return]
            input_ids=torch.from_numpy(ids).to(self._device),
            position_ids=torch.from_numpy(positions).to(self._device),
            attention_mask=mask,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]

    def _mask(self, seen: Tensor) -> Tensor:
        """[rows, 1, queries, keys] for adding to scores, of which keys each query sees."""
        mask = torch.zeros(seen.shape, dtype=self._dtype).masked_fill_(~seen, self._lowest)
        return mask[:, None].to(self._device)
