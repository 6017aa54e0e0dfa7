"""Continuous batching over slots on any Hugging Face causal language model.

Invariants:
- one forward pass a step decodes every live row. Rows that ended leave gaps, which are computed along
  and ignored while they are few, filled by new requests, or closed by moving the last rows into them;
- a live row's cache holds all its tokens but the last, which is the next pass's input;
- a request is waiting, live or forgotten. New weights put everything that is live back to the head of the
  waiting line with its tokens, and the next steps prefill it again: no token is lost, and none is sampled
  from a cache of older weights.

Equal prompts that start together (a group's samples) are prefilled once. What was sampled is handed out
every `stride` tokens, at the end and before a change of weights: a Python object per token would cost as
much as the pass itself on a small model.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from roll_workers.builtin.models import context_length
from roll_workers.inference.engines import Delta, Request, Tokens, kv
from roll_workers.inference.engines.llama import Llama
from roll_workers.inference.engines.passes import Generic, Passes
from roll_workers.inference.engines.sampling import sample, uniforms
from roll_workers.llama_family import is_llama

PREFILL_TOKENS = 1024  # in one go: bounds how long a step keeps the event loop waiting
PREFILL_SECONDS = 0.05  # after this time the step starts no further prefill
# A pass for one prompt costs nearly as much as for sixteen: they wait for each other this long.
GATHER_SHARE, GATHER_STEPS = 16, 4  # until 1/16 of the slots is free, or for four steps
GAPS_SHARE = 8  # gaps are closed when there is more than one for eight live rows
PADDING = 0.6  # prompts shorter than this share of the longest are prefilled apart
UNLIMITED = 1 << 20  # context of a model that names none

_ROW = np.dtype(
    [
        ("live", np.bool_),
        ("length", np.int64),  # tokens, prompt included
        ("limit", np.int64),  # tokens at which it ends
        ("sent", np.int64),  # tokens handed out, prompt included
        ("seed", np.uint64),
        ("drawn", np.uint64),  # random numbers used so far
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("top_k", np.int64),
        ("stop", np.int64),  # row of the stop table
        ("last", np.int64),  # newest token
    ],
    align=True,  # torch takes strides that are multiples of the item size only
)


@dataclass(slots=True)
class _Waiting:
    request: Request
    tokens: Tokens
    limit: int
    drawn: int = 0


class TransformersEngine:
    """`Engine` over a loaded model."""

    def __init__(self, model: Any, *, slots: int = 64, stride: int = 16, version: int = -1) -> None:
        self.model = model.eval().requires_grad_(False)
        self.version = version
        self.slots = slots
        self.stride = stride
        self.context = context_length(model.config) or UNLIMITED
        self.eos = _eos(model)
        self._device = next(model.parameters()).device
        self._passes: Passes = Llama(model, slots) if is_llama(model) else Generic(model, slots)
        self._rows = np.zeros(slots, _ROW)
        self._requests: list[Request | None] = [None] * slots
        self._tokens = np.zeros((slots, 0), np.int32)
        self._logprobs = np.zeros((slots, 0), np.float32)
        self._stops: dict[tuple[int, ...], int] = {}
        self._stop_table = np.zeros((0, model.get_output_embeddings().weight.shape[0]), np.bool_)
        self._waiting: deque[_Waiting] = deque()
        self._out: list[Delta] = []
        self._gathered = 0  # steps that a waiting request has seen a free slot pass

    @classmethod
    def from_folder(
        cls, folder: Path, *, dtype: str = "auto", slots: int = 64, stride: int = 16
    ) -> TransformersEngine:
        """The model of a checkpoint folder, on the GPU if there is one."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return cls(load_model(folder, dtype).to(device), slots=slots, stride=stride)

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._out or self._rows["live"].any())

    def waiting(self) -> list[Hashable]:
        return [each.request.id for each in self._waiting]

    def submit(self, request: Request) -> None:
        limit = len(request.prompt) + request.max_new_tokens
        if len(request.prompt) == 0 or request.max_new_tokens < 1 or limit > self.context:
            raise ValueError(
                f"{len(request.prompt)} tokens and {request.max_new_tokens} new ones do not fit into "
                f"a context of {self.context}"
            )
        self._waiting.append(_Waiting(request, np.asarray(request.prompt, np.int32), limit))

    def abort(self, id: Hashable) -> None:
        self._waiting = deque(w for w in self._waiting if w.request.id != id)
        self._out = [delta for delta in self._out if delta.id != id]
        for row in np.flatnonzero(self._rows["live"]).tolist():
            if self._request(row).id == id:
                self._release(row)

    @torch.inference_mode()
    def step(self) -> list[Delta]:
        if self._may_admit():
            deadline = time.perf_counter() + PREFILL_SECONDS
            while self._waiting and not self._rows["live"].all():
                for group in _alike(self._next_prompts()):
                    self._prefill(group)
                if time.perf_counter() > deadline:
                    break
        if self._rows["live"].any():
            self._decode()
        out, self._out = self._out, []
        return out

    def flush(self) -> list[Delta]:
        self._emit(np.flatnonzero(self._rows["live"] & (self._rows["length"] > self._rows["sent"])))
        out, self._out = self._out, []
        return out

    def load(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        _copy_weights(self.model, weights)
        with torch.inference_mode():
            self._passes.changed()
        self._out = self.flush()
        for row in np.flatnonzero(self._rows["live"])[::-1].tolist():
            state = self._rows[row]
            tokens = self._tokens[row, : state["length"]].copy()
            self._waiting.appendleft(
                _Waiting(self._request(row), tokens, int(state["limit"]), int(state["drawn"]))
            )
            self._release(row)
        self.version = version

    def _may_admit(self) -> bool:
        free = self.slots - int(self._rows["live"].sum())
        if not self._waiting or not free:
            return False
        self._gathered += 1
        enough = min(len(self._waiting), self.slots // GATHER_SHARE)
        if free < enough and self._gathered <= GATHER_STEPS:
            return False
        self._gathered = 0
        return True

    def _next_prompts(self) -> list[list[_Waiting]]:
        """The head of the waiting line as far as slots and PREFILL_TOKENS go, equal prompts together."""
        free = self.slots - int(self._rows["live"].sum())
        prompts: dict[bytes, list[_Waiting]] = {}
        tokens = 0
        while self._waiting and free:
            head = self._waiting[0]
            key = head.tokens.tobytes()
            if key not in prompts:
                if prompts and tokens + len(head.tokens) > PREFILL_TOKENS:
                    break
                tokens += len(head.tokens)
                prompts[key] = []
            prompts[key].append(self._waiting.popleft())
            free -= 1
        return list(prompts.values())

    def _prefill(self, prompts: list[list[_Waiting]]) -> None:
        """Compute distinct prompts once, copy each into the row of every request, draw their next tokens."""
        tokens = [same[0].tokens for same in prompts]
        self._fit(max(max(map(len, tokens)), self._longest()) + 1)
        of = np.repeat(np.arange(len(prompts)), [len(same) for same in prompts])
        rows = np.flatnonzero(~self._rows["live"])[: len(of)]
        logits = self._passes.prefill(tokens, of, rows)
        for row, waiting in zip(rows.tolist(), (w for same in prompts for w in same), strict=True):
            self._occupy(row, waiting)
        self._advance(rows, logits[torch.from_numpy(of).to(self._device)])

    def _decode(self) -> None:
        """One more token for every live row, in one pass."""
        live = np.flatnonzero(self._rows["live"])
        if live[-1] + 1 - len(live) > len(live) // GAPS_SHARE:
            self._close_gaps()
            live = np.arange(len(live))
        rows = self._rows[: live[-1] + 1]
        self._fit(self._longest() + 1)
        logits = self._passes.decode(rows["last"].copy(), rows["length"] - 1)
        if len(live) < len(rows):
            logits = logits[torch.from_numpy(live).to(self._device)]
        self._advance(live, logits)

    def _advance(self, rows: npt.NDArray[np.int64], logits: torch.Tensor) -> None:
        """Draw one token for each of `rows`; hand out what is due, free what has ended."""
        # The first rows of all are changed in place: copies of them take as long as the drawing.
        dense = int(rows[-1]) + 1 == len(rows)
        state = self._rows[: len(rows)] if dense else self._rows[rows]
        tokens, logprobs = sample(
            logits,
            uniforms(state["seed"], state["drawn"]),
            state["temperature"],
            state["top_k"],
            state["top_p"],
        )
        self._tokens[rows, state["length"]] = tokens
        self._logprobs[rows, state["length"]] = logprobs
        state["length"] += 1
        state["drawn"] += np.uint64(1)
        state["last"] = tokens
        if not dense:
            self._rows[rows] = state
        stopped = self._stop_table[state["stop"], tokens]
        ended = stopped | (state["length"] >= state["limit"])
        due = np.flatnonzero(ended | (state["length"] - state["sent"] >= self.stride))
        if due.size:
            why = np.where(ended, np.where(stopped, "stop", "length"), "")
            self._emit(rows[due], why[due].tolist())

    def _emit(self, rows: npt.NDArray[np.int64], finish: Iterable[str] = repeat("")) -> None:
        """Hand out what each of `rows` has sampled since the last time; free those that are finished."""
        state = self._rows[rows]
        for row, begin, end, why in zip(
            rows.tolist(), state["sent"].tolist(), state["length"].tolist(), finish, strict=False
        ):
            self._out.append(
                Delta(
                    self._request(row).id,
                    self._tokens[row, begin:end].tolist(),
                    self._logprobs[row, begin:end].tolist(),
                    self.version,
                    why,
                )
            )
            if why:
                self._release(row)
        self._rows["sent"][rows] = state["length"]

    def _occupy(self, row: int, waiting: _Waiting) -> None:
        request, length = waiting.request, len(waiting.tokens)
        if request.stop not in self._stops:
            self._stops[request.stop] = len(self._stops)
            table = np.zeros((1, self._stop_table.shape[1]), np.bool_)
            # A tokenizer may have more tokens than its model can sample.
            table[0, [token for token in request.stop if token < table.shape[1]]] = True
            self._stop_table = np.concatenate([self._stop_table, table])
        self._requests[row] = request
        self._tokens[row, :length] = waiting.tokens
        self._rows[row] = (
            True,
            length,
            waiting.limit,
            length,
            request.seed & 0xFFFFFFFFFFFFFFFF,
            waiting.drawn,
            request.temperature,
            request.top_p,
            request.top_k,
            self._stops[request.stop],
            0,
        )

    def _release(self, row: int) -> None:
        self._requests[row] = None
        self._rows["live"][row] = False
        self._rows["length"][row] = 1  # a gap is computed along, at a position that always exists

    def _request(self, row: int) -> Request:
        request = self._requests[row]
        assert request is not None, f"row {row} is not live"
        return request

    def _close_gaps(self) -> None:
        """Move the last live rows into the gaps before them."""
        live = self._rows["live"]
        running = int(live.sum())
        gaps = np.flatnonzero(~live[:running])
        if not gaps.size:
            return
        tail = running + np.flatnonzero(live[running:])
        longest = int(self._rows["length"][tail].max())
        self._passes.move(tail, gaps, longest)
        for table in (self._tokens, self._logprobs):
            table[gaps, :longest] = table[tail, :longest]
        self._rows[gaps] = self._rows[tail]
        for target, source in zip(gaps.tolist(), tail.tolist(), strict=True):
            self._requests[target] = self._requests[source]
            self._release(source)

    def _longest(self) -> int:
        return int(self._rows["length"].max(where=self._rows["live"], initial=0))

    def _fit(self, positions: int) -> None:
        self._passes.fit(positions)
        if (more := self._passes.capacity - self._tokens.shape[1]) > 0:
            self._tokens = np.pad(self._tokens, ((0, 0), (0, more)))
            self._logprobs = np.pad(self._logprobs, ((0, 0), (0, more)))


def load_model(folder: Path, dtype: str = "auto") -> Any:
    """The checkpoint with our attention where the architecture lets it in, its own otherwise."""
    logging.disable_progress_bar()
    try:
        return AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=kv.NAME
        )
    except ValueError:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def _eos(model: Any) -> tuple[int, ...]:
    """Chat models often name more than one, and in the generation config only."""
    found = model.generation_config.eos_token_id if model.can_generate() else None
    found = model.config.eos_token_id if found is None else found
    return tuple(found) if isinstance(found, list) else () if found is None else (found,)


def _alike(prompts: list[list[_Waiting]]) -> Iterator[list[list[_Waiting]]]:
    """Prompts of similar length together, so that little of a pass is padding."""
    prompts.sort(key=lambda same: len(same[0].tokens), reverse=True)
    start = 0
    for end in range(1, len(prompts) + 1):
        longest = len(prompts[start][0].tokens)
        if end == len(prompts) or len(prompts[end][0].tokens) < PADDING * longest:
            yield prompts[start:end]
            start = end


def _copy_weights(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """All or nothing, into the model's own tensors; of tied ones a single name is enough."""
    own = model.state_dict()
    wrong = [n for n, w in weights.items() if n not in own or own[n].shape != w.shape]
    given = {own[name].data_ptr() for name in weights if name in own}
    missing = [name for name, tensor in own.items() if tensor.data_ptr() not in given]
    if wrong or missing:
        raise ValueError(
            f"these weights are not this model's: unknown or of another shape {wrong[:3]}, "
            f"missing {missing[:3]}"
        )
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(tensor)
