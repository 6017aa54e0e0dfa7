"""Hugging Face models as a strategy uses them: loaded whole or not at all, and asked for hidden states."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roll_workers.errors import UserError
from roll_workers.trainer.strategies.layout import MicroBatch, Shape
from roll_workers.trainer.strategies.llama import Llama

Model = Any  # a transformers PreTrainedModel with a language-model head; the library is not typed

# Multiply-adds of attention run at a fraction of the speed of dense layers (measured: head size 32, CPU).
ATTENTION_PENALTY = 4.0


def load_model(folder: Path, dtype: str, device: torch.device) -> tuple[Model, torch.dtype]:
    """The model in float32, and the number format that its weights are published in.

    Training keeps float32 weights whatever the format: bfloat16 would swallow small updates.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder)
        wanted = config.dtype or torch.float32 if dtype == "auto" else getattr(torch, dtype)
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="sdpa",
            output_loading_info=True,
        )
    except Exception as error:  # transformers raises all kinds for a broken folder
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"model.path: can't load the model in {folder}: {reason}") from error
    if info["missing_keys"]:
        names = ", ".join(sorted(info["missing_keys"])[:3])
        raise UserError(
            f"model.path: the model in {folder} is incomplete: {len(info['missing_keys'])} weights "
            f"are missing ({names}, ...)"
        )
    # Dropout would make the trainer's log-probs differ from the engine's.
    return model.eval().to(device), wanted


def model_shape(model: Model, *, branching: bool) -> Shape:
    config = model.config
    embeddings = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    dense = sum(p.numel() for p in model.parameters() if id(p) not in embeddings)
    pair = 2.0 * config.hidden_size * config.num_hidden_layers
    return Shape(float(dense), ATTENTION_PENALTY * pair, config.vocab_size, branching)


def predicting_states(
    model: Model,
    part: MicroBatch,
    device: torch.device,
    autocast: contextlib.AbstractContextManager[Any] | None = None,
    llama: Llama | None = None,
) -> Tensor:
    """The hidden states at `part.positions`: logits are made only where an action is predicted.

    `llama` computes them in the library's stead where the model is one, and the pass fits.
    """
    arguments: dict[str, Any] = {}
    visible = None
    if part.branch is not None:
        visible = _visible(torch.from_numpy(part.branch).to(device))
        arguments["attention_mask"] = visible[:, None]
        arguments["position_ids"] = torch.from_numpy(part.position_ids).to(device)
    if llama is not None and llama.fits(part):
        return llama.states(part, visible)
    with autocast or contextlib.nullcontext():
        states = model.base_model(
            input_ids=torch.from_numpy(part.input_ids).to(device), use_cache=False, **arguments
        ).last_hidden_state
    positions = torch.from_numpy(part.positions).to(device)
    return states.reshape(-1, states.shape[-1]).index_select(0, positions)


def _visible(branch: Tensor) -> Tensor:
    """[rows, query, key]: a token sees the trunk and its own branch, up to itself.

    Padding (-1) sees padding: a row of the mask without any key would be NaN, also in the gradient.
    """
    query, key = branch[:, :, None], branch[:, None, :]
    length = branch.shape[1]
    before = torch.ones(length, length, dtype=torch.bool, device=branch.device).tril()
    return ((key == query) | ((key == 0) & (query >= 0))) & before


@torch.no_grad()
def attends_as_told(model: Model) -> bool:
    """Whether two branches on one trunk get the hidden states they get alone: some attention can't be masked."""
    vocabulary = model.config.vocab_size
    trunk, left, right = (np.arange(a, b) % vocabulary for a, b in ((1, 4), (4, 6), (5, 7)))
    device = next(model.parameters()).device

    def states(row: Any, position: Any = None, branch: Any = None) -> Tensor:
        ids = np.asarray(row, np.int64)[None]
        part = MicroBatch(ids, position, branch, np.arange(ids.shape[1]), trunk, trunk)
        return predicting_states(model, part, device)

    try:
        both = states(
            np.concatenate([trunk, left, right]),
            np.array([[0, 1, 2, 3, 4, 3, 4]]),
            np.array([[0, 0, 0, 1, 1, 2, 2]]),
        )
        alone = torch.cat(
            [
                states(np.concatenate([trunk, left])),
                states(np.concatenate([trunk, right]))[len(trunk) :],
            ]
        )
    except (TypeError, ValueError, RuntimeError):  # a model with another signature
        return False
    return bool(torch.allclose(both, alone, rtol=1e-3, atol=1e-3 * float(alone.abs().max())))
