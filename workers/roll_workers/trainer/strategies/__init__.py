"""How a model is held, stepped and spread over the trainer's ranks, behind one small interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from roll_api import JobSpec
from roll_api.roles import Strategy as StrategySpec
from torch import Tensor

from roll_workers.errors import UserError
from roll_workers.trainer.batch import TokenBatch


class Policy(NamedTuple):
    """What a pass of the model says about some action tokens of a batch."""

    actions: npt.NDArray[np.int64]  # which action tokens
    log_probs: Tensor  # after temperature, top-k and top-p
    entropy: Tensor


LossFn = Callable[[TokenBatch, Policy], tuple[Tensor, Tensor]]
"""(batch, policy) -> (the share of the loss, a vector of sums for the metrics)."""


class NonFinite(Exception):
    """Loss or gradient is not a number. Nothing was updated."""

    def __init__(self, message: str, sequences: Sequence[int]) -> None:
        super().__init__(message)
        self.sequences = sequences  # of this rank's batch


class Strategy(Protocol):
    """Every rank holds one. Calls are collective: all ranks make them, in the same order."""

    vocabulary: int
    context: int
    """Tokens of the longest sequence."""

    def load(self, model_path: Path, spec: JobSpec, reference_path: Path | None = None) -> None:
        """Needs no other rank."""
        ...

    def join(self) -> None:
        """Waits for the other ranks; nothing collective works before."""
        ...

    def log_probs(self, batch: TokenBatch, *, reference: bool = False) -> Tensor:
        """Of every action token, after temperature, top-k and top-p, without gradient."""
        ...

    def train_step(
        self, batch: TokenBatch, loss_fn: LossFn, learning_rate: float
    ) -> tuple[dict[str, float], Tensor]:
        """One optimizer update; the shares of all micro-batches and ranks add up to the loss.

        Returns figures of the update and the sum of the metric vectors over all ranks. Raises NonFinite, on
        every rank, and leaves weights and optimizer as they were.
        """
        ...

    def weights(self) -> dict[str, Tensor]:
        """Gathered, with the names of Hugging Face, in the job's number format."""
        ...

    def save(self, folder: Path) -> list[str]:
        """Writes this rank's shard and returns the names of its files, relative to the folder."""
        ...

    def restore(self, folder: Path) -> None: ...

    def all_sum(self, values: Tensor) -> Tensor:
        """The sum over ranks."""
        ...

    def all_gather(self, value: Any) -> list[Any]:
        """One small object of every rank, in the order of ranks."""
        ...

    def close(self) -> None: ...


def make_strategy(wanted: StrategySpec, rank: int, world: int, local_rank: int = 0) -> Strategy:
    if wanted.kind != "torch":
        raise UserError(f"roles.trainer.strategy.kind: {wanted.kind} is not supported yet")
    if wanted.options:
        raise UserError(
            "roles.trainer.strategy.options: the torch strategy has no option "
            + ", ".join(sorted(wanted.options))
        )
    from roll_workers.trainer.strategies.torch import TorchStrategy

    return TorchStrategy(rank, world, local_rank)


__all__ = ["LossFn", "NonFinite", "Policy", "Strategy", "make_strategy"]
