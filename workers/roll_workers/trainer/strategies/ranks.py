"""The trainer's ranks as one: collectives over gloo or NCCL, which do nothing when there is one rank."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Ranks:
    """Collectives work after `join`."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world

    def join(self) -> None:
        """Forms the group that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe."""
        if self.world > 1:
            # Objects travel over gloo even where tensors take NCCL. Batches may take long to arrive:
            # a dead peer breaks its connections at once, so the time-out need not find it.
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
                rank=self.rank,
                world_size=self.world,
                timeout=timedelta(hours=24),
            )

    def sum_(self, values: Tensor) -> Tensor:
        """In place. The order of additions is fixed by the ranks, so equal inputs give equal bits."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def gather(self, value: Any) -> list[Any]:
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def close(self) -> None:
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()
