"""Passes of the Llama family (Llama, Qwen2) written out for a CPU in float32: what decoding a small model needs.

Query, key and value are one matrix product, gate and up another; prompts are packed end to end, so that only
attention sees padding; the first layer's projections are looked up, since its input is the token alone. Into
the matrix of query, key and value go the norm before it and the scale of the scores; its rows are put so that
the two halves of a pair lie side by side, which makes the rotation one complex product and changes no score.

Invariants:
- gate and up of the model are views into their fused matrix, query, key and value are copied by `changed`:
  weights that are copied into the model are the weights computed with, once it was called;
- position t of slot s lies in the block that covers t, at row s of that block; what lies beyond a sequence's
  length is finite and masked out. Blocks are made and dropped whole: longer sequences move nothing, and the
  batched product reads the part of a block that is in use as it lies in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roll_workers.inference.engines import Tokens
from roll_workers.inference.engines.kv import Indices, capacity_for

LOOKED_UP = 4096  # tokens of the largest vocabulary whose first projections are kept
FIRST_BLOCK, BLOCK = 16, 64  # positions: a product of fewer than 16 is no batched one


class Llama:
    """`Passes` over a model that `is_llama` accepts."""

    def __init__(self, model: Any, slots: int) -> None:
        config = model.config
        self.model, self.slots = model, slots
        self.layers = list(model.model.layers)
        self.eps = config.rms_norm_eps
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.width = self.layers[0].self_attn.head_dim
        self.scaling = self.layers[0].self_attn.scaling
        self.turned = self.heads + self.groups
        half = torch.arange(self.width // 2)
        side_by_side = torch.stack([half, half + self.width // 2], 1).reshape(-1)
        turned = torch.arange(self.turned)[:, None] * self.width + side_by_side
        straight = torch.arange(self.groups * self.width) + turned.numel()
        self.order = torch.cat([turned.reshape(-1), straight])
        self.gate_up = [_fused(layer.mlp.gate_proj, layer.mlp.up_proj) for layer in self.layers]
        self.capacity = 0
        self.edges = [0]  # of the blocks, in positions
        self.blocks: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.layers]  # keys, values
        self.changed()

    def changed(self) -> None:
        self.qkv = [self._folded(layer) for layer in self.layers]
        embeddings = self.model.model.embed_tokens.weight
        self.first = None
        if embeddings.shape[0] <= LOOKED_UP:
            self.first = self._project(0, embeddings)

    def fit(self, positions: int) -> None:
        """Make room for sequences of this length; give room back when they have become much shorter."""
        wanted = capacity_for(positions)
        if self.capacity * 3 // 4 < wanted <= self.capacity:
            return
        while self.edges[-1] < wanted:
            end = FIRST_BLOCK if len(self.edges) == 1 else self.edges[-1] // BLOCK * BLOCK + BLOCK
            shape = (self.slots, self.groups, end - self.edges[-1], self.width)
            for blocks in self.blocks:
                blocks.append((torch.zeros(shape), torch.zeros(shape)))
            self.edges.append(end)
        while len(self.edges) > 2 and self.edges[-2] >= wanted:
            self.edges.pop()
            for blocks in self.blocks:
                blocks.pop()
        if self.edges[-1] == self.capacity:
            return
        self.capacity = self.edges[-1]
        at = torch.arange(self.capacity)[None]
        cos, sin = self.model.model.rotary_emb(self.model.model.embed_tokens.weight, at)
        half = self.width // 2
        self.rotation = torch.complex(cos[0, :, :half], sin[0, :, :half])[:, None]

    def move(self, source: Indices, target: Indices, length: int) -> None:
        """Copy whole rows, to close the gaps that finished sequences left."""
        to, of = torch.from_numpy(target), torch.from_numpy(source)
        for blocks in self.blocks:
            for begin, pair in zip(self.edges, blocks, strict=False):
                if begin < length:
                    for block in pair:
                        block[to] = block[of]

    def prefill(self, prompts: list[Tokens], of: Indices, rows: Indices) -> Tensor:
        """Logits after each prompt; slot `rows[i]` gets the keys and values of prompt `of[i]`."""
        lengths = np.array([len(prompt) for prompt in prompts])
        count, longest = len(prompts), int(lengths.max())
        ids = torch.from_numpy(np.concatenate(prompts).astype(np.int64))
        ends = lengths.cumsum()
        at = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        positions = torch.from_numpy(at)
        place = None
        if (lengths != longest).any():
            place = torch.from_numpy(np.repeat(np.arange(count), lengths) * longest + at)
        rotation = self.rotation[positions]
        x = F.embedding(ids, self.model.model.embed_tokens.weight)
        for number in range(len(self.layers)):
            qkv = self._qkv(number, x, ids, rotation)
            if place is not None:
                qkv = qkv.new_zeros(count * longest, *qkv.shape[1:]).index_copy_(0, place, qkv)
            q, k, v = (
                qkv.view(count, longest, -1, self.width)
                .transpose(1, 2)
                .split((self.heads, self.groups, self.groups), 1)
            )
            # numpy's assignment takes a fifth of the time of torch's, here and in `decode`.
            for begin, (keys, values) in zip(self.edges, self.blocks[number], strict=False):
                if begin < longest:
                    end = min(longest, begin + keys.shape[2])
                    keys.numpy()[rows, :, : end - begin] = k.numpy()[of, :, begin:end]
                    values.numpy()[rows, :, : end - begin] = v.numpy()[of, :, begin:end]
            # What pads a prompt lies behind it: causal attention never sees it.
            o = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=1.0, enable_gqa=self.groups != self.heads
            )
            o = o.transpose(1, 2).reshape(count * longest, -1)
            if number == len(self.layers) - 1:
                x = x[torch.from_numpy(ends - 1)]
                o = o[torch.from_numpy(np.arange(count) * longest + lengths - 1)]
            elif place is not None:
                o = o.index_select(0, place)
            x = self._after_attention(number, x, o)
        return self._logits(x)

    def decode(self, last: Indices, positions: Indices) -> Tensor:
        """Logits after one more token of each of slots 0..len(last)-1."""
        count, longest = len(last), int(positions.max()) + 1
        ids, at = torch.from_numpy(last), torch.from_numpy(positions)
        rotation = self.rotation[at]
        used = [min(end, max(longest, FIRST_BLOCK)) for end in self.edges[1:]]
        used = used[: used.index(max(used)) + 1]
        hidden = (np.arange(used[-1]) > positions[:, None]).astype(np.float32)
        hidden *= np.finfo(np.float32).min
        mask = torch.from_numpy(hidden)[:, None]
        places = self._places(positions)
        share = self.heads // self.groups
        x = F.embedding(ids, self.model.model.embed_tokens.weight)
        for number, blocks in enumerate(self.blocks):
            qkv = self._qkv(number, x, ids, rotation)
            q = qkv[:, : self.heads].reshape(count * self.groups, share, self.width)
            k = qkv[:, self.heads : self.turned].reshape(-1, self.width).numpy()
            v = qkv[:, self.turned :].reshape(-1, self.width).numpy()
            for block, of, to in places:
                for new, old in zip((k, v), blocks[block], strict=True):
                    old.view(-1, self.width).numpy()[to] = new if of is None else new[of]
            keys, values = (
                [
                    block[part][:count].flatten(0, 1)[:, : end - begin]
                    for begin, end, block in zip(self.edges, used, blocks, strict=False)
                ]
                for part in (0, 1)
            )
            scores = torch.cat([torch.bmm(q, each.transpose(1, 2)) for each in keys], -1)
            p = scores.view(count, self.heads, -1).add_(mask).softmax(-1).view(scores.shape)
            o = torch.zeros(q.shape)
            for begin, end, each in zip(self.edges, used, values, strict=False):
                o.baddbmm_(p[..., begin:end], each)
            x = self._after_attention(number, x, o.view(count, -1))
        return self._logits(x)

    def _places(self, positions: Indices) -> list[tuple[int, Indices | None, Indices]]:
        """Where the new keys go: the block, which of all (row, group) pairs, and their lines in the block."""
        block = np.searchsorted(self.edges, positions, side="right") - 1
        found: list[tuple[int, Indices | None, Indices]] = []
        for number in np.unique(block).tolist():
            rows = np.flatnonzero(block == number)
            size = self.edges[number + 1] - self.edges[number]
            pairs = (rows[:, None] * self.groups + np.arange(self.groups)).reshape(-1)
            offset = np.repeat(positions[rows] - self.edges[number], self.groups)
            whole = len(rows) == len(positions)
            found.append((number, None if whole else pairs, pairs * size + offset))
        return found

    def _qkv(self, number: int, x: Tensor, ids: Tensor, rotation: Tensor) -> Tensor:
        """[tokens, heads, width], queries and keys turned to their positions."""
        if number == 0 and self.first is not None:
            made = self.first.index_select(0, ids)
        else:
            made = self._project(number, x)
        made = made.view(len(ids), -1, self.width)
        pairs = made[:, : self.turned].unflatten(-1, (self.width // 2, 2))
        torch.view_as_complex(pairs).mul_(rotation)
        return made

    def _project(self, number: int, x: Tensor) -> Tensor:
        return F.linear(self._normed(x), *self.qkv[number])

    def _folded(self, layer: Any) -> tuple[Tensor, Tensor | None]:
        """Matrix and bias that make turnable queries, scaled, and keys and values of `_normed` states."""
        attention = layer.self_attn
        three = (attention.q_proj, attention.k_proj, attention.v_proj)
        weight = torch.cat([linear.weight for linear in three])[self.order]
        weight *= layer.input_layernorm.weight
        weight[: self.heads * self.width] *= self.scaling
        if three[0].bias is None:
            return weight, None
        bias = torch.cat([linear.bias for linear in three])[self.order]
        bias[: self.heads * self.width] *= self.scaling
        return weight, bias

    def _after_attention(self, number: int, x: Tensor, o: Tensor) -> Tensor:
        layer = self.layers[number]
        x = torch.addmm(x, o, layer.self_attn.o_proj.weight.t())
        normed = self._normed(x).mul_(layer.post_attention_layernorm.weight)
        gate_up = F.linear(normed, self.gate_up[number])
        gate, up = gate_up.chunk(2, 1)
        return torch.addmm(x, F.silu(gate).mul_(up), layer.mlp.down_proj.weight.t())

    def _normed(self, x: Tensor) -> Tensor:
        """Without the norm's weight."""
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * size.square_().div_(x.shape[-1]).add_(self.eps).rsqrt_()

    def _logits(self, x: Tensor) -> Tensor:
        normed = self._normed(x).mul_(self.model.model.norm.weight)
        return F.linear(normed, self.model.lm_head.weight)


def _fused(*linears: nn.Linear) -> Tensor:
    """One matrix of several, which become views into it."""
    weight = torch.cat([linear.weight.data for linear in linears])
    begin = 0
    for linear in linears:
        end = begin + linear.weight.shape[0]
        linear.weight.data = weight[begin:end]
        begin = end
    return weight
