"""What the inference loop asks of an engine, whatever decodes underneath.

Invariants of every engine:
- a token's log-prob is that of the distribution it was drawn from: after temperature, top-k and top-p,
  renormalised (temperature 0 is greedy and reports the distribution at temperature 1);
- `Delta.version` is the version of the weights that sampled its tokens;
- a sample's random numbers come from its own seed, so its tokens do not depend on its neighbours;
- `load` takes effect between two steps; what is running goes on with a recomputed cache.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from roll_workers.errors import UserError

if TYPE_CHECKING:
    import torch
    from roll_api import RLJob

Tokens = npt.NDArray[np.int32]


@dataclass(slots=True)
class Request:
    """One sample to go on with: its tokens so far and how to draw the next ones."""

    id: Hashable
    prompt: Tokens  # everything before the next token, kept ones of this turn included
    seed: int
    max_new_tokens: int  # from here on: what was kept is not counted again
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    stop: tuple[int, ...] = ()  # token ids that end the turn; the one sampled is part of the answer
    kept: int = 0  # tokens at the end of `prompt` that belong to this turn


@dataclass(slots=True)
class Delta:
    """Tokens of one request since its last delta, all of one version."""

    id: Hashable
    tokens: list[int]
    logprobs: list[float]
    version: int
    finish: str = ""  # "stop", "length", or empty while it goes on


class Engine(Protocol):
    """Single-threaded: the loop alternates `step` with everything else."""

    version: int  # of the loaded weights; -1 before the first `load`
    slots: int  # requests that are decoded together; more may be submitted and wait
    context: int  # tokens that a sequence may have
    eos: tuple[int, ...]  # tokens that end an answer of this model

    def submit(self, request: Request) -> None: ...

    def abort(self, id: Hashable) -> None:
        """Forget a request and free its slot; an unknown one is none of our business."""
        ...

    def step(self) -> list[Delta]:
        """One decoding step for all running requests; [] when idle or when nothing is due."""
        ...

    def flush(self) -> list[Delta]:
        """What was sampled and not handed out yet."""
        ...

    def load(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        """Take new weights, by Hugging Face names; all or nothing."""
        ...

    def waiting(self) -> list[Hashable]:
        """The requests that have no slot."""
        ...

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        ...


def open_engine(job: RLJob, folder: Path) -> Engine:
    """The engine that the job asks for, over the model in `folder`."""
    wanted = job.spec.roles.inference.engine
    if wanted.kind != "transformers":
        raise UserError(f"roles.inference.engine.kind: {wanted.kind} is not supported yet")
    if wanted.options:
        raise UserError(
            "roles.inference.engine.options: the transformers engine has no option "
            + ", ".join(sorted(wanted.options))
        )
    from roll_workers.inference.engines.transformers import TransformersEngine

    return TransformersEngine.from_folder(folder, dtype=job.spec.model.dtype, slots=wanted.slots)
