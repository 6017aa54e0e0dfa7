"""Passes of the Llama family (Llama, Qwen2) written out for a CPU in float32: what decoding a small model needs.

Query, key and value are one matrix product, gate and up another; prompts are packed end to end, so that only
attention sees padding; the first layer's projections are looked up, since its input is the token alone. Into
the matrix of query, key and value go the norm before it and the scale of the scores; its rows are put so that
the two halves of a pair lie side by side, which makes the rotation one complex product and changes no score.
With a vocabulary no larger than a head, the first layer's cache holds tokens instead of values: attention adds
up the shares of each token, and values and output projection are one small matrix, of all heads and tokens.

Invariants:
- gate and up of the model are views into their fused matrix, query, key and value are copied by `changed`:
  weights that are copied into the model are the weights computed with, once it was called;
- position t of slot s lies in the block that covers t, at row s of that block; what lies beyond a sequence's
  length is finite and masked out. Blocks are made, read and dropped whole: longer sequences move nothing, and
  a product that skips the unused end of every row takes three times as long as one that reads all of it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roll_workers.inference.engines import Tokens
from roll_workers.inference.engines.kv import Indices, capacity_for

LOOKED_UP = 4096  # tokens of the largest vocabulary whose first projections are kept
LEFT_OVER = 8  # blocks are dropped when no sequence needs more than an eighth of the room


class _Block:
    """Keys and values of some positions of all slots, [slots, groups, positions, width] each."""

    def __init__(self, slots: int, positions: int, *sizes: tuple[int, int]) -> None:
        keys, values = (torch.zeros(slots, groups, positions, width) for groups, width in sizes)
        self.pair = keys, values
        self.written = keys.numpy(), values.numpy()
        self.keys, self.values = keys.flatten(0, 1).transpose(1, 2), values.flatten(0, 1)


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
        self.projections = [layer.self_attn.o_proj.weight.t() for layer in self.layers]
        self.after = [
            (
                layer.post_attention_layernorm.weight,
                _fused(layer.mlp.gate_proj, layer.mlp.up_proj).t(),
                layer.mlp.down_proj.weight.t(),
            )
            for layer in self.layers
        ]
        vocabulary = model.model.embed_tokens.weight.shape[0]
        padded = -(-vocabulary // 16) * 16  # products with odd sizes take up to three times as long
        self.shares = padded <= min(self.width, LOOKED_UP)
        usual = (self.groups, self.width)
        self.sizes = [(usual, usual) for _ in self.layers]  # groups and width of keys and of values
        if self.shares:
            self.sizes[0] = usual, (1, padded)
            self.tokens = np.eye(vocabulary, padded, dtype=np.float32)[:, None]
        self.capacity = 0
        self.edges = [0]  # of the blocks, in positions
        self.blocks: list[list[_Block]] = [[] for _ in self.layers]
        self.changed()

    def changed(self) -> None:
        self.qkv = [self._folded(layer) for layer in self.layers]
        embeddings = self.model.model.embed_tokens.weight
        self.first = None
        if embeddings.shape[0] <= LOOKED_UP:
            self.first = self._project(0, embeddings)
        self.out = self.projections.copy()
        if self.shares:
            assert self.first is not None
            values = self.first[:, self.turned * self.width :].unflatten(1, (self.groups, -1))
            out = self.out[0].unflatten(0, (self.groups, -1, self.width))
            mixed = values.transpose(0, 1)[:, None] @ out  # [groups, heads of each, tokens, states]
            mixed = F.pad(mixed, (0, 0, 0, self.sizes[0][1][1] - mixed.shape[2]))
            self.out[0] = mixed.flatten(0, 2)

    def fit(self, positions: int) -> None:
        """Make room for sequences of this length; give room back when they have become much shorter."""
        wanted = capacity_for(positions)
        if self.capacity // LEFT_OVER < wanted <= self.capacity:
            return
        while self.edges[-1] < wanted:
            end = capacity_for(self.edges[-1] + 1)
            for blocks, sizes in zip(self.blocks, self.sizes, strict=True):
                blocks.append(_Block(self.slots, end - self.edges[-1], *sizes))
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
            for begin, block in zip(self.edges, blocks, strict=False):
                if begin < length:
                    for part in block.pair:
                        part[to] = part[of]

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
            new = k.numpy(), v.numpy()
            if number == 0 and self.shares:
                said = np.zeros(count * longest, np.int64)
                said[slice(None) if place is None else place.numpy()] = ids.numpy()
                new = k.numpy(), self.tokens[said.reshape(count, longest), 0][:, None]
            # numpy's assignment takes a fifth of the time of torch's, here and in `decode`.
            for begin, block in zip(self.edges, self.blocks[number], strict=False):
                if begin < longest:
                    for written, made in zip(block.written, new, strict=True):
                        end = min(longest, begin + written.shape[2])
                        written[rows, :, : end - begin] = made[of, :, begin:end]
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
            x = self._after_attention(number, x, o, self.projections[number])
        return self._logits(x)

    def decode(self, last: Indices, positions: Indices) -> Tensor:
        """Logits after one more token of each of slots 0..len(last)-1."""
        count, longest = len(last), int(positions.max()) + 1
        ids = torch.from_numpy(last)
        rotation = self.rotation.index_select(0, torch.from_numpy(positions))
        used = [(begin, end) for begin, end in pairwise(self.edges) if begin < longest]
        hidden = (np.arange(used[-1][1]) > positions[:, None]).astype(np.float32)
        hidden *= np.finfo(np.float32).min
        mask = torch.from_numpy(hidden)[:, None]
        places = self._places(positions)
        share, pairs = self.heads // self.groups, count * self.groups
        x = F.embedding(ids, self.model.model.embed_tokens.weight)
        for number, blocks in enumerate(self.blocks):
            qkv = self._qkv(number, x, ids, rotation)
            q = qkv[:, : self.heads].reshape(pairs, share, self.width)
            made = qkv.numpy()
            new_keys, new_values = made[:, self.heads : self.turned], made[:, self.turned :]
            if number == 0 and self.shares:
                new_values = self.tokens[last]
            for block, of, at in places:
                keys, values = blocks[block].written
                keys[of, :, at] = new_keys[of]
                values[of, :, at] = new_values[of]
            scores = torch.cat([torch.bmm(q, b.keys[:pairs]) for b in blocks[: len(used)]], -1)
            p = scores.view(count, self.heads, -1).add_(mask).softmax(-1)
            groups, width = self.sizes[number][1]
            p = p.view(count * groups, self.heads // groups, -1)
            o = torch.zeros(*p.shape[:2], width)
            for (begin, end), b in zip(used, blocks, strict=False):
                o.baddbmm_(p[..., begin:end], b.values[: len(p)])
            x = self._after_attention(number, x, o.view(count, -1), self.out[number])
        return self._logits(x)

    def _places(self, positions: Indices) -> list[tuple[int, Indices | slice, Indices | int]]:
        """Where the new keys go: the block, rows in it, and the place of each of them in its row."""
        block = np.searchsorted(self.edges, positions, side="right") - 1
        if (positions == positions[0]).all():
            first = int(block[0])
            return [(first, slice(len(positions)), int(positions[0]) - self.edges[first])]
        found: list[tuple[int, Indices | slice, Indices | int]] = []
        for number in np.unique(block).tolist():
            of = np.flatnonzero(block == number)
            found.append((number, of, positions[of] - self.edges[number]))
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

    def _after_attention(self, number: int, x: Tensor, o: Tensor, out: Tensor) -> Tensor:
        norm, gate_up, down = self.after[number]
        x = torch.addmm(x, o, out)
        gate, up = torch.mm(self._normed(x).mul_(norm), gate_up).chunk(2, 1)
        return torch.addmm(x, F.silu(gate).mul_(up), down)

    def _normed(self, x: Tensor) -> Tensor:
        """Without the norm's weight."""
        plain = x.numpy()
        size = np.vecdot(plain, plain)[:, None]
        size /= x.shape[-1]
        size += self.eps
        np.sqrt(size, out=size)
        return torch.from_numpy(plain / size)

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
