"""The files of a strategy's checkpoint.

`model/` is an ordinary Hugging Face folder, so that a checkpoint can be used as it is. Rank 0 writes it with
the optimizer's state, which all ranks hold alike; every rank writes its own random state.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

# What stands beside the weights in a model's folder: config, tokenizer, chat template, license.
_BESIDE = ("*.json", "*.model", "*.txt", "*.jinja", "LICENSE*")


def save_state(
    folder: Path,
    rank: int,
    model_folder: Path,
    weights: dict[str, Tensor],
    optimizer: dict[str, Any],
) -> list[str]:
    names = [_rng_name(rank)]
    _save(_rng(), folder / names[0])
    if rank == 0:
        (folder / "model").mkdir(exist_ok=True)
        tensors = {name: value.contiguous().cpu() for name, value in weights.items()}
        save_file(tensors, folder / "model" / "model.safetensors", metadata={"format": "pt"})
        for pattern in _BESIDE:
            for file in model_folder.glob(pattern):
                if not file.name.endswith(".index.json"):
                    shutil.copyfile(file, folder / "model" / file.name)
        _save(optimizer, folder / "optimizer.pt")
        names += [
            "optimizer.pt",
            *(f"model/{f.name}" for f in sorted((folder / "model").iterdir())),
        ]
    return names


def restore_state(folder: Path, rank: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and optimizer; the random state is put in place. A world that grew has ranks without one."""
    if (folder / _rng_name(rank)).exists():
        _set_rng(torch.load(folder / _rng_name(rank), weights_only=True))
    weights = load_file(folder / "model" / "model.safetensors")
    return weights, torch.load(folder / "optimizer.pt", weights_only=True)


def _save(value: Any, path: Path) -> None:
    # Through a file of ours: with a path torch reports a full disk as a mistake in its own arithmetic.
    with path.open("wb") as file:
        torch.save(value, file)


def _rng_name(rank: int) -> str:
    return f"rng-{rank:05d}.pt"


def _rng() -> dict[str, Any]:
    version, internal, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, list(internal), gauss],
        "numpy": [kind, [int(k) for k in keys], place, has_gauss, cached],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_rng(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, place, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), place, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
