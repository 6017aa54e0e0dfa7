"""Passes of a small model side by side: a thread per lane, and a gradient of its own in each.

Threads inside one operation wait for each other hundreds of times per pass, and beside an engine that wants
the same cores one of them is always late. Lanes wait for each other once a step.

Invariant: pass i lies in lane i mod lanes, and lanes are added in their order: equal batches give equal bits.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor, nn

from roll_workers.trainer.strategies.layout import MicroBatch
from roll_workers.trainer.strategies.llama import Llama, supported
from roll_workers.trainer.strategies.model import Model

T = TypeVar("T")

# Weights. A lane needs a gradient and what a pass keeps; the products of larger models share threads well.
SMALL = 16 << 20
MOST = 8


class Lane:
    """A model, and the gradient that passes in this lane add to. `llama` is None where it can't be written out."""

    def __init__(self, model: Model, llama: Llama | None) -> None:
        self.model, self.llama = model, llama
        trained = [p for p in model.parameters() if p.requires_grad]
        # All gradients lie in one buffer: one memset, one norm, one all-reduce.
        size = sum(p.numel() for p in trained)
        self.gradient = torch.zeros(size, device=next(model.parameters()).device)
        place = 0
        for p in trained:
            p.grad = self.gradient[place : place + p.numel()].view_as(p)
            place += p.numel()

    def passes(self) -> contextlib.AbstractContextManager[None]:
        return self.llama.folded() if self.llama is not None else contextlib.nullcontext()


class Lanes:
    def __init__(self, model: Model, dtype: torch.dtype, threads: int) -> None:
        written_out = supported(model, dtype)
        small = sum(p.numel() for p in model.parameters()) <= SMALL
        count = min(threads, MOST) if small and written_out else 1
        models = [model, *(_same_weights(model) for _ in range(count - 1))]
        self.all = [Lane(each, Llama(each, count) if written_out else None) for each in models]
        self.pool = ThreadPoolExecutor(count, "lane", torch.set_num_threads, (1,))

    def run(
        self, work: Callable[[Lane, MicroBatch], T], parts: Sequence[MicroBatch], *, grad: bool
    ) -> list[T]:
        """What `work` makes of each part, in their order."""
        lanes = self.all[: max(len(parts), 1)]

        def share(number: int) -> list[T]:
            lane = lanes[number]
            with torch.set_grad_enabled(grad), lane.passes():
                return [work(lane, part) for part in parts[number :: len(lanes)]]

        if len(lanes) == 1:
            return share(0)
        shares = list(self.pool.map(share, range(len(lanes))))
        return [shares[i % len(lanes)][i // len(lanes)] for i in range(len(parts))]

    def clear(self) -> None:
        for lane in self.all:
            lane.gradient.zero_()

    def gradient(self) -> Tensor:
        """The sum of all lanes, in the first one's buffer."""
        whole = self.all[0].gradient
        for lane in self.all[1:]:
            whole.add_(lane.gradient)
        return whole


def _same_weights(model: Model) -> Model:
    """A copy whose parameters lie in the same memory; only their gradients are its own."""
    return copy.deepcopy(
        model, {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in model.parameters()}
    )
