"""The passes of the Llama family (Llama, Qwen2) written out, forward and backward, for a CPU in float32.

The library's modules make some sixty tensors per layer and pass, and autograd as many again; on a small model
reading and writing them costs as much as the arithmetic. Here
- query, key and value are one matrix product, gate and up another, and the norm's weights, which scale their
  columns, are multiplied into the matrix instead of the states: once for all passes of a step;
- the rotation is one complex product: rows of the query and key matrices are put so that the two halves of
  a pair lie side by side, which changes no score;
- attention is batched matrix products over whole rows, which at training lengths beat the fused kernel;
- the first layer's input depends on the token alone, so its projections are computed once per distinct token;
- of the last layer only positions whose logits are needed go on past attention.

Invariant: `states` equals the library's hidden states, and its gradient the library's, up to the order of
additions (tests compare both); when `folded` ends they have been added to `parameter.grad`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from roll_workers.llama_family import is_llama
from roll_workers.trainer.strategies.layout import MicroBatch

PASS_TOKENS = 2048  # what a pass keeps for its way back then stays in a core's caches
SHORT = 128  # tokens of the longest rows whose attention numpy multiplies
ATTENTION_BYTES = 2 << 30  # kept for the way back, all layers: the library's kernel keeps none


@dataclass(slots=True)
class _Folded:
    """A layer's matrices with the norms' weights in them, and the gradients of these."""

    qkv: Tensor
    offset: Tensor | None
    gate_up: Tensor
    d_qkv: Tensor
    d_offset: Tensor
    d_gate_up: Tensor


@dataclass(slots=True)
class _Kept:
    """What the way back needs of a layer."""

    hat: Tensor  # x / its root mean square
    inverse: Tensor  # of that root
    qkv: Tensor  # [heads, rows, length, width], rotated
    p: Tensor  # attention, [heads * rows, length, length]
    o: Tensor
    hat2: Tensor
    inverse2: Tensor
    gate_up: Tensor
    activated: Tensor


@dataclass(slots=True)
class _Way:
    """What the way back needs."""

    layers: list[_Kept]
    rotation: Tensor
    hat: Tensor  # of the last norm
    inverse: Tensor


class Llama:
    """`supported` says whether a model is one; the parameters stay the model's own."""

    def __init__(self, model: Any, beside: int = 1) -> None:
        """`beside`: how many of them have a pass at the same time."""
        config = model.config
        self.model, self.beside = model, beside
        self.layers = list(model.model.layers)
        self.eps = config.rms_norm_eps
        self.heads = config.num_attention_heads
        self.groups = config.num_key_value_heads
        self.width = self.layers[0].self_attn.head_dim
        self.scaling = self.layers[0].self_attn.scaling
        half = torch.arange(self.width // 2)
        side_by_side = torch.stack([half, half + self.width // 2], 1).reshape(-1)
        turned = torch.arange(self.heads + self.groups)[:, None] * self.width + side_by_side
        straight = torch.arange(self.groups * self.width) + turned.numel()
        self.order = torch.cat([turned.reshape(-1), straight])
        self.back = torch.argsort(self.order)
        self.matrices: list[_Folded] = []

    @contextlib.contextmanager
    def folded(self) -> Iterator[None]:
        """All passes lie in here, and nobody changes the weights meanwhile."""
        with torch.no_grad():
            self.matrices = [self._fold(layer) for layer in self.layers]
        yield
        if torch.is_grad_enabled():
            with torch.no_grad():
                for layer, folded in zip(self.layers, self.matrices, strict=True):
                    self._unfold(layer, folded)
        self.matrices = []

    def fits(self, part: MicroBatch) -> bool:
        """Whether the attention that its way back needs stays small; it grows with the square of the length."""
        rows, length = part.input_ids.shape
        kept = 4 * len(self.layers) * self.heads * rows * length * length
        return kept * self.beside <= ATTENTION_BYTES

    def states(self, part: MicroBatch, mask: Tensor | None) -> Tensor:
        """Hidden states at `part.positions`; `mask` [rows, query, key] says what is seen, None is causal."""
        if not torch.is_grad_enabled():
            return self.forward(part, mask)[0]
        anchor = self.model.model.norm.weight  # whose gradient brings autograd here
        return _Pass.apply(anchor, self, part, mask)  # type: ignore[no-any-return, no-untyped-call]

    def forward(
        self, part: MicroBatch, mask: Tensor | None, *, keep: bool = False
    ) -> tuple[Tensor, _Way]:
        rows, length = part.input_ids.shape
        ids = torch.from_numpy(part.input_ids).reshape(-1)
        positions = torch.from_numpy(part.positions)
        rotation = self._rotation(part)
        bias = _bias(mask, length)
        kept: list[_Kept] = []
        embeddings = self.model.model.embed_tokens.weight
        x = F.embedding(ids, embeddings)
        for number, (layer, folded) in enumerate(zip(self.layers, self.matrices, strict=True)):
            if number == 0:
                tokens, of = torch.unique(ids, return_inverse=True)
                hat, inverse = self._normed(F.embedding(tokens, embeddings))
                made = F.linear(hat, folded.qkv, folded.offset).index_select(0, of)
            else:
                hat, inverse = self._normed(x)
                made = F.linear(hat, folded.qkv, folded.offset)
            qkv = made.view(rows, length, -1, self.width).permute(2, 0, 1, 3).contiguous()
            pairs = torch.view_as_complex(
                qkv[: self.heads + self.groups].unflatten(-1, (self.width // 2, 2))
            )
            pairs.mul_(rotation)
            q, k, v = self._per_head(qkv)
            scores = _bmm(q, k.transpose(1, 2)).view(self.heads, rows, length, length)
            p = torch.softmax(torch.add(bias, scores, alpha=self.scaling), -1).view(
                q.shape[0], length, length
            )
            o = _bmm(p, v).view(self.heads, rows, length, self.width)
            o = o.permute(1, 2, 0, 3).reshape(rows * length, -1)
            before = x
            if number == len(self.layers) - 1:
                before, o = x.index_select(0, positions), o.index_select(0, positions)
            x2 = torch.addmm(before, o, layer.self_attn.o_proj.weight.t())
            hat2, inverse2 = self._normed(x2)
            gate_up = F.linear(hat2, folded.gate_up)
            gate, up = gate_up.chunk(2, 1)
            activated = F.silu(gate)
            after = torch.addmm(x2, activated * up, layer.mlp.down_proj.weight.t())
            if keep:
                kept.append(_Kept(hat, inverse, qkv, p, o, hat2, inverse2, gate_up, activated))
            x = after
        hat, inverse = self._normed(x)
        return hat * self.model.model.norm.weight, _Way(kept, rotation, hat, inverse)

    def backward(self, part: MicroBatch, way: _Way, d_states: Tensor) -> None:
        """Adds the gradients of all parameters."""
        rows, length = part.input_ids.shape
        ids = torch.from_numpy(part.input_ids).reshape(-1)
        positions = torch.from_numpy(part.positions)
        rotation = way.rotation.conj()
        norm = self.model.model.norm.weight
        _add(norm, torch.linalg.vecdot(d_states, way.hat, dim=0))
        dx = _through_norm(d_states * norm, way.hat, way.inverse)
        for number in range(len(self.layers) - 1, -1, -1):
            layer, folded, was = self.layers[number], self.matrices[number], way.layers.pop()
            mlp, attention = layer.mlp, layer.self_attn
            gate, up = was.gate_up.chunk(2, 1)
            d_act = dx @ mlp.down_proj.weight
            _grad(mlp.down_proj.weight).addmm_(dx.t(), was.activated * up)
            d_gate_up = torch.empty_like(was.gate_up)
            torch.mul(d_act, was.activated, out=d_gate_up[:, gate.shape[1] :])
            torch.ops.aten.silu_backward.grad_input(
                d_act.mul_(up), gate, grad_input=d_gate_up[:, : gate.shape[1]]
            )
            folded.d_gate_up.addmm_(d_gate_up.t(), was.hat2)
            d_hat = d_gate_up @ folded.gate_up
            dx = _through_norm(d_hat, was.hat2, was.inverse2).add_(dx)
            d_o = dx @ attention.o_proj.weight
            _grad(attention.o_proj.weight).addmm_(dx.t(), was.o)
            if number == len(self.layers) - 1:
                dx = dx.new_zeros(ids.shape[0], dx.shape[1]).index_copy_(0, positions, dx)
                d_o = d_o.new_zeros(ids.shape[0], d_o.shape[1]).index_copy_(0, positions, d_o)
            d_o = d_o.view(rows, length, self.heads, self.width).permute(2, 0, 1, 3)
            d_qkv = self._attention_back(d_o.reshape(-1, length, self.width), was)
            torch.view_as_complex(
                d_qkv[: self.heads + self.groups].unflatten(-1, (self.width // 2, 2))
            ).mul_(rotation)
            d_made = d_qkv.permute(1, 2, 0, 3).reshape(rows * length, -1)
            if number == 0:
                tokens, of = torch.unique(ids, return_inverse=True)
                d_made = d_made.new_zeros(len(tokens), d_made.shape[1]).index_add_(0, of, d_made)
            folded.d_qkv.addmm_(d_made.t(), was.hat)
            if folded.offset is not None:
                folded.d_offset.add_(d_made.sum(0))
            d_hat = _through_norm(d_made @ folded.qkv, was.hat, was.inverse)
            if number == 0:
                embedding = self.model.model.embed_tokens
                share = d_hat.index_add_(0, of, dx)
                if embedding.padding_idx is not None:  # the library does not train it either
                    share[tokens == embedding.padding_idx] = 0.0
                _grad(embedding.weight).index_add_(0, tokens, share)
            else:
                dx = d_hat.add_(dx)

    def _attention_back(self, d_o: Tensor, was: _Kept) -> Tensor:
        """The gradient of query, key and value as they went into attention."""
        q, k, v = self._per_head(was.qkv)
        d_p = _bmm(d_o, v.transpose(1, 2))
        d_s = torch._softmax_backward_data(d_p, was.p, -1, d_p.dtype).mul_(self.scaling)
        d_qkv = torch.empty_like(was.qkv)
        d_q, *shared = d_qkv.split((self.heads, self.groups, self.groups))
        _bmm(d_s, k, d_q.view(q.shape))
        for into, left, right in zip(shared, (d_s, was.p), (q, d_o), strict=True):
            if self.heads == self.groups:
                _bmm(left.transpose(1, 2), right, into.view(right.shape))
            else:  # the heads of a group share their keys and values
                each = _bmm(left.transpose(1, 2), right)
                torch.sum(each.view(self.groups, -1, *into.shape[1:]), 1, out=into)
        return d_qkv

    def _per_head(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[heads * rows, length, width] each; the heads of a group share their keys."""
        share = self.heads // self.groups
        q, k, v = qkv.split((self.heads, self.groups, self.groups))
        if share > 1:
            k, v = k.repeat_interleave(share, 0), v.repeat_interleave(share, 0)
        return q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)

    def _normed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = norm.square_().div_(x.shape[-1]).add_(self.eps).rsqrt_()
        return x * inverse, inverse

    def _rotation(self, part: MicroBatch) -> Tensor:
        """[rows or 1, length, width / 2], complex."""
        length = part.input_ids.shape[1]
        place = torch.arange(length)[None]
        if part.position_ids is not None:
            place = torch.from_numpy(part.position_ids)
        cos, sin = self.model.model.rotary_emb(self.model.model.embed_tokens.weight, place)
        half = self.width // 2
        return torch.complex(cos[..., :half].contiguous(), sin[..., :half].contiguous())

    def _fold(self, layer: Any) -> _Folded:
        three, two = _projections(layer)
        qkv = torch.cat([each.weight for each in three]).index_select(0, self.order)
        offset = None
        if three[0].bias is not None:
            offset = torch.cat([each.bias for each in three]).index_select(0, self.order)
        gate_up = torch.cat([each.weight for each in two])
        return _Folded(
            qkv.mul_(layer.input_layernorm.weight),
            offset,
            gate_up.mul_(layer.post_attention_layernorm.weight),
            *(torch.zeros(*of) for of in (qkv.shape, qkv.shape[:1], gate_up.shape)),
        )

    def _unfold(self, layer: Any, folded: _Folded) -> None:
        """Adds the gradients of the matrices to those of what they are made of."""
        three, two = _projections(layer)
        _add_scaled(folded.d_qkv[self.back], layer.input_layernorm.weight, three)
        _add_scaled(folded.d_gate_up, layer.post_attention_layernorm.weight, two)
        if folded.offset is not None:
            sizes = [each.bias.shape[0] for each in three]
            for each, share in zip(three, folded.d_offset[self.back].split(sizes), strict=True):
                _add(each.bias, share)


def _projections(layer: Any) -> tuple[tuple[Any, Any, Any], tuple[Any, Any]]:
    attention, mlp = layer.self_attn, layer.mlp
    return (attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj)


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, llama: Llama, part: MicroBatch, mask: Tensor | None
    ) -> Tensor:
        states, ctx.way = llama.forward(part, mask, keep=True)
        ctx.llama, ctx.part = llama, part
        return states

    @staticmethod
    def backward(ctx: Any, *d_states: Tensor) -> tuple[None, None, None, None]:
        ctx.llama.backward(ctx.part, ctx.way, d_states[0])
        return None, None, None, None


def supported(model: Any, dtype: torch.dtype) -> bool:
    """Whether `Llama` computes what this model does, and trains all of it or nothing."""
    whole = len({parameter.requires_grad for parameter in model.parameters()}) == 1
    return is_llama(model) and dtype is torch.float32 and whole


def _bias(mask: Tensor | None, length: int) -> Tensor:
    """What is added to the scores, [rows or 1, query, key]."""
    if mask is None:
        return torch.full((length, length), -torch.inf).triu_(1)[None]
    return torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)


def _bmm(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Matrix products, pair by pair. Of small ones numpy makes, in one thread, up to twice as many a second."""
    if left.shape[1] > SHORT or torch.get_num_threads() > 1:
        return torch.bmm(left, right, out=out)
    if out is None:
        out = left.new_empty(*left.shape[:2], right.shape[2])
    with np.errstate(all="ignore"):  # of a loss that is not finite others tell, and whose it is
        np.matmul(left.numpy(), right.numpy(), out=out.numpy())
    return out


def _through_norm(d_hat: Tensor, hat: Tensor, inverse: Tensor) -> Tensor:
    """The gradient of x, where hat = x / rms(x)."""
    along = torch.linalg.vecdot(d_hat, hat).div_(hat.shape[-1])[:, None]
    return d_hat.addcmul_(hat, along, value=-1).mul_(inverse)


def _grad(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _add(parameter: Tensor, share: Tensor) -> None:
    _grad(parameter).add_(share)


def _add_scaled(d_scaled: Tensor, norm: Tensor, parts: tuple[Any, ...]) -> None:
    """From the gradient of [parts' weights] * norm to those of the weights and of the norm."""
    shares = d_scaled.split([each.weight.shape[0] for each in parts])
    for each, share in zip(parts, shares, strict=True):
        _add(norm, torch.linalg.vecdot(share, each.weight, dim=0))
        _grad(each.weight).addcmul_(share, norm)
