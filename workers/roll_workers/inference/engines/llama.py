"""Passes of the Llama family (Llama, Qwen2) written out for a CPU in float32: what decoding a small model needs.

Query, key and value are one matrix product, gate and up another; prompts are packed end to end, so that only
attention sees padding; the first layer's projections are looked up, since its input is the token alone.

Invariants:
- the model's parameters are views into the fused matrices: weights that are copied into the model are the
  weights computed with, once `changed` was called;
- position t of slot s lies in the block that covers t, at row s of that block; what lies beyond a sequence's
  length is finite and masked out. Blocks are made and dropped whole: longer sequences move nothing, and the
  batched product reads a block as it lies in memory.
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
        self.qkv = [
            _fused(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
            for layer in self.layers
        ]
        self.gate_up = [_fused(layer.mlp.gate_proj, layer.mlp.up_proj)[0] for layer in self.layers]
        self.capacity = 0
        self.edges = [0]  # of the blocks, in positions
        self.blocks: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.layers]  # keys, values
        self.changed()

    def changed(self) -> None:
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
            end = capacity_for(self.edges[-1] + 1)
            shape = (self.slots, self.groups, end - self.edges[-1], self.width)
            for blocks in self.blocks:
                blocks.append((torch.zeros(shape), torch.zeros(shape)))
            self.edges.append(end)
        while len(self.edges) > 2 and self.edges[-2] >= wanted:
            self.edges.pop()
            for blocks in self.blocks:
                blocks.pop()
        self.capacity = self.edges[-1]
        at = torch.arange(self.capacity)[None]
        cos, sin = self.model.model.rotary_emb(self.model.model.embed_tokens.weight, at)
        half = self.width // 2
        # (a, b) becomes (a cos - b sin, b cos + a sin): the second factors belong to (b, a).
        self.cos = cos[0].view(-1, 1, 2, half)
        self.sin = sin[0].view(-1, 1, 2, half).clone()
        self.sin[:, :, 0] *= -1

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
        cos, sin = self.cos[positions], self.sin[positions]
        to, given = torch.from_numpy(rows), torch.from_numpy(of)
        x = F.embedding(ids, self.model.model.embed_tokens.weight)
        for number in range(len(self.layers)):
            qkv = self._qkv(number, x, ids, cos, sin)
            if place is not None:
                qkv = qkv.new_zeros(count * longest, *qkv.shape[1:]).index_copy_(0, place, qkv)
            q, k, v = (
                qkv.view(count, longest, -1, self.width)
                .transpose(1, 2)
                .split((self.heads, self.groups, self.groups), 1)
            )
            for begin, (keys, values) in zip(self.edges, self.blocks[number], strict=False):
                if begin < longest:
                    end = min(longest, begin + keys.shape[2])
                    keys[to, :, : end - begin] = k[given, :, begin:end]
                    values[to, :, : end - begin] = v[given, :, begin:end]
            # What pads a prompt lies behind it: causal attention never sees it.
            o = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=self.scaling, enable_gqa=self.groups != self.heads
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
        count = len(last)
        ids, at = torch.from_numpy(last), torch.from_numpy(positions)
        cos, sin = self.cos[at], self.sin[at]
        hidden = (np.arange(self.capacity) > positions[:, None]).astype(np.float32)
        hidden *= np.finfo(np.float32).min
        mask = torch.from_numpy(hidden)[:, None]
        places = self._places(positions)
        share = self.heads // self.groups
        x = F.embedding(ids, self.model.model.embed_tokens.weight)
        for number, blocks in enumerate(self.blocks):
            qkv = self._qkv(number, x, ids, cos, sin)
            q = qkv[:, : self.heads].reshape(count * self.groups, share, self.width)
            k = qkv[:, self.heads : self.turned].reshape(-1, self.width).numpy()
            v = qkv[:, self.turned :].reshape(-1, self.width).numpy()
            # numpy's assignment takes a fifth of the time of torch's.
            for block, of, to in places:
                for new, old in zip((k, v), blocks[block], strict=True):
                    old.view(-1, self.width).numpy()[to] = new if of is None else new[of]
            # Every operand whole and contiguous: otherwise torch multiplies one small matrix at a time.
            scores = torch.cat(
                [torch.bmm(q, keys[:count].flatten(0, 1).transpose(1, 2)) for keys, _ in blocks],
                -1,
            )
            seen = torch.add(mask, scores.view(count, self.heads, -1), alpha=self.scaling)
            p = seen.softmax(-1).view(scores.shape)
            o = torch.zeros(q.shape)
            for begin, end, (_, values) in zip(self.edges, self.edges[1:], blocks, strict=False):
                o += torch.bmm(p[..., begin:end].contiguous(), values[:count].flatten(0, 1))
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

    def _qkv(self, number: int, x: Tensor, ids: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[tokens, heads, width], queries and keys turned to their positions."""
        if number == 0 and self.first is not None:
            made = self.first.index_select(0, ids)
        else:
            made = self._project(number, x)
        made = made.view(len(ids), -1, self.width)
        pairs = made[:, : self.turned].unflatten(-1, (2, self.width // 2))
        pairs.copy_(torch.addcmul(pairs * cos, pairs.flip(2), sin))
        return made

    def _project(self, number: int, x: Tensor) -> Tensor:
        weight, bias = self.qkv[number]
        return F.linear(self._normed(x, self.layers[number].input_layernorm), weight, bias)

    def _after_attention(self, number: int, x: Tensor, o: Tensor) -> Tensor:
        layer = self.layers[number]
        x = torch.addmm(x, o, layer.self_attn.o_proj.weight.t())
        gate_up = F.linear(self._normed(x, layer.post_attention_layernorm), self.gate_up[number])
        gate, up = gate_up.chunk(2, 1)
        return torch.addmm(x, F.silu(gate).mul_(up), layer.mlp.down_proj.weight.t())

    def _normed(self, x: Tensor, norm: Any) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = size.square_().div_(x.shape[-1]).add_(self.eps).rsqrt_()
        return (x * inverse).mul_(norm.weight)

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self._normed(x, self.model.model.norm), self.model.lm_head.weight)


def _fused(*linears: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """One matrix and bias of several, which become views into it."""
    weight = torch.cat([linear.weight.data for linear in linears])
    bias = None
    if linears[0].bias is not None:
        bias = torch.cat([linear.bias.data for linear in linears])
    begin = 0
    for linear in linears:
        end = begin + linear.weight.shape[0]
        linear.weight.data = weight[begin:end]
        if bias is not None:
            linear.bias.data = bias[begin:end]
        begin = end
    return weight, bias
