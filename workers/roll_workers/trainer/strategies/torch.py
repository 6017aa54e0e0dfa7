"""Plain torch: the whole model in every rank, gradients summed over ranks.

Invariant: the same model, batches, ranks, threads and micro-batch size give the same weights, bit for bit.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from roll_api import JobSpec
from torch import Tensor

from roll_workers.builtin.models import context_length
from roll_workers.memory import keep_freed_memory
from roll_workers.trainer import arithmetic
from roll_workers.trainer.algorithms import log_probs_and_entropy
from roll_workers.trainer.batch import TokenBatch
from roll_workers.trainer.strategies import LossFn, NonFinite, Policy
from roll_workers.trainer.strategies.lanes import Lane, Lanes
from roll_workers.trainer.strategies.layout import MicroBatch, micro_batches
from roll_workers.trainer.strategies.llama import PASS_TOKENS
from roll_workers.trainer.strategies.model import (
    Model,
    attends_as_told,
    load_model,
    model_shape,
    predicting_states,
)
from roll_workers.trainer.strategies.ranks import Ranks
from roll_workers.trainer.strategies.state import restore_state, save_state


class TorchStrategy:
    """One process per rank, on a GPU where there is one."""

    model: Model
    reference: Model | None = None

    def __init__(self, rank: int, world: int, local_rank: int = 0) -> None:
        self.ranks = Ranks(rank, world)
        gpu = torch.cuda.is_available()
        own = local_rank % max(torch.cuda.device_count(), 1)
        self.device = torch.device("cuda", own) if gpu else torch.device("cpu")

    def join(self) -> None:
        self.ranks.join()

    def load(self, model_path: Path, spec: JobSpec, reference_path: Path | None = None) -> None:
        _same_bits_every_time()
        threads = arithmetic.threads(spec)
        torch.manual_seed(spec.seed)
        self.path = model_path
        self.model, self.dtype = load_model(model_path, spec.model.dtype, self.device)
        if spec.algorithm.kl.coefficient > 0:
            self.reference, _ = load_model(
                reference_path or model_path, spec.model.dtype, self.device
            )
            self.reference.requires_grad_(False)
        self.vocabulary = self.model.config.vocab_size
        self.context = context_length(self.model.config) or 1 << 62
        sampling = spec.rollout.sampling
        self.temperature = sampling.temperature
        self.truncation = sampling.top_k, sampling.top_p
        self.max_tokens = spec.roles.trainer.strategy.micro_batch_tokens
        self.lanes = Lanes(self.model, self.dtype, threads)
        # Lanes are threads themselves; a single one shares its products among them.
        torch.set_num_threads(1 if len(self.lanes.all) > 1 else threads)
        if self.reference is not None:
            self.reference_lanes = Lanes(self.reference, self.dtype, threads)
        if self.lanes.all[0].llama is not None:
            self.max_tokens = min(self.max_tokens, PASS_TOKENS)
        self.max_grad_norm = spec.algorithm.max_grad_norm
        self.shape = model_shape(self.model, branching=attends_as_told(self.model))
        self.optimizer = torch.optim.AdamW(
            [p for p in self.model.parameters() if p.requires_grad],
            lr=spec.algorithm.learning_rate,
            betas=(spec.algorithm.betas[0], spec.algorithm.betas[1]),
            weight_decay=spec.algorithm.weight_decay,
            fused=True,
        )

    def log_probs(self, batch: TokenBatch, *, reference: bool = False) -> Tensor:
        lanes = self.reference_lanes if reference else self.lanes
        result = torch.zeros(len(batch.action))

        parts = self._passes(batch)
        for policy in lanes.run(partial(self._forward, batch), parts, grad=False):
            result[policy.actions] = policy.log_probs.cpu()
        return result

    def train_step(
        self, batch: TokenBatch, loss_fn: LossFn, learning_rate: float
    ) -> tuple[dict[str, float], Tensor]:
        def one(lane: Lane, part: MicroBatch) -> tuple[Tensor, Tensor]:
            loss, share = loss_fn(batch, self._forward(batch, lane, part))
            loss.backward()
            return loss.detach(), share

        parts = self._passes(batch)
        self.lanes.clear()
        made = self.lanes.run(one, parts, grad=True)
        gradient = self.ranks.sum_(self.lanes.gradient())
        norm = torch.linalg.vector_norm(gradient)
        if not torch.isfinite(norm):
            raise _blame(batch, parts, [loss for loss, _ in made])
        gradient.mul_((self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        if made:
            sums = sum((share for _, share in made[1:]), made[0][1])
        else:  # this rank's share is empty; its peers still expect it
            sums = torch.zeros_like(loss_fn(batch, _no_actions())[1])
        figures = {"actor/grad_norm": float(norm), "actor/backward_steps": float(len(made))}
        return figures, self.ranks.sum_(sums)

    def weights(self) -> dict[str, Tensor]:
        """With both names of tied weights, which share their memory also after the cast."""
        cast: dict[int, Tensor] = {}
        return {
            name: cast.setdefault(value.data_ptr(), value.detach().to(self.dtype))
            for name, value in self.model.state_dict().items()
        }

    def save(self, folder: Path) -> list[str]:
        return save_state(
            folder, self.ranks.rank, self.path, self._named(), self.optimizer.state_dict()
        )

    def restore(self, folder: Path) -> None:
        weights, optimizer = restore_state(folder, self.ranks.rank)
        with torch.no_grad():
            for name, value in self._named().items():
                value.copy_(weights[name])
        self.optimizer.load_state_dict(optimizer)

    def all_sum(self, values: Tensor) -> Tensor:
        return self.ranks.sum_(values.clone())

    def all_gather(self, value: Any) -> list[Any]:
        return self.ranks.gather(value)

    def close(self) -> None:
        self.ranks.close()

    def _passes(self, batch: TokenBatch) -> list[MicroBatch]:
        return list(micro_batches(batch, self.shape, self.max_tokens, lanes=len(self.lanes.all)))

    def _forward(self, batch: TokenBatch, lane: Lane, part: MicroBatch) -> Policy:
        states = predicting_states(lane.model, part, self.device, self._autocast(), lane.llama)
        tokens = torch.from_numpy(batch.tokens[batch.action[part.actions]]).to(self.device)
        logits = lane.model.get_output_embeddings()(states)
        row = torch.from_numpy(part.row).to(self.device)
        figures = log_probs_and_entropy(logits, row, tokens, self.temperature, *self.truncation)
        return Policy(part.actions, *figures)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.dtype is torch.bfloat16:
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()

    def _named(self) -> dict[str, Tensor]:
        """Parameters by their Hugging Face names; a weight that two modules share is there once."""
        return {name: p.detach() for name, p in self.model.named_parameters()}


def _no_actions() -> Policy:
    return Policy(np.empty(0, np.int64), torch.zeros(0), torch.zeros(0))


def _blame(batch: TokenBatch, parts: list[MicroBatch], losses: list[Tensor]) -> NonFinite:
    """Names the sequences whose pass went wrong; a rank without any leaves it to the others."""
    sequences: set[int] = set()
    for part, loss in zip(parts, losses, strict=True):
        if not torch.isfinite(loss):
            sequences.update(batch.sequence[part.actions].tolist())
    what = "loss" if sequences else "gradient"
    return NonFinite(f"the {what} is not a finite number", sorted(sequences))


def _same_bits_every_time() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Otherwise every fresh tensor is filled with NaN first.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
    keep_freed_memory()
