"""Tokens per second of the transformers engine and of the library's `generate`, in one run.

Both serve the same requests of the same tiny model: prompts in groups, answers whose lengths are mixed (as
the end-of-text token would make them, here by each request's own limit, so that both generate exactly the
same number of tokens). `generate` is a batch barrier: a batch lasts as long as its longest answer. Rates are
per second of CPU time of this process, so that others on the machine do not blur the ratio.

    OMP_NUM_THREADS=1 python benchmarks/engine.py
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from roll_workers.builtin.models import resolve_model
from roll_workers.inference.engines import Request
from roll_workers.inference.engines.transformers import TransformersEngine
from roll_workers.memory import keep_freed_memory
from transformers import AutoModelForCausalLM

PROMPT = 6


def requests(n: int, group: int, lengths: np.ndarray) -> list[Request]:
    rng = np.random.default_rng(0)
    prompts = rng.integers(3, 15, (n // group, PROMPT)).astype(np.int32)
    return [Request(i, prompts[i // group], i, int(lengths[i])) for i in range(n)]


def with_engine(engine: TransformersEngine, wanted: list[Request]) -> float:
    for request in wanted:
        engine.submit(request)
    began = time.process_time()
    tokens = 0
    while engine.busy:
        tokens += sum(len(delta.tokens) for delta in engine.step())
    assert tokens == sum(request.max_new_tokens for request in wanted)
    return tokens / (time.process_time() - began)


def with_generate(model: Any, wanted: list[Request], batch: int) -> float:
    """Each batch until its longest answer is done; only the wanted tokens count."""
    began = time.process_time()
    for start in range(0, len(wanted), batch):
        part = wanted[start : start + batch]
        model.generate(
            torch.from_numpy(np.stack([request.prompt for request in part])).long(),
            attention_mask=torch.ones(len(part), PROMPT, dtype=torch.long),
            max_new_tokens=max(request.max_new_tokens for request in part),
            do_sample=True,
            top_k=0,
            eos_token_id=None,
            pad_token_id=0,
        )
    return sum(request.max_new_tokens for request in wanted) / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2, help="the best of so many counts")
    options = parser.parse_args()
    keep_freed_memory()  # as the inference role does; `generate` gains by it too
    rng = np.random.default_rng(1)
    n = 3 * options.slots
    # Log-normal answers, as reasoning models give them: p99 is some ten times the median.
    lognormal = np.clip(np.exp(rng.normal(np.log(16), 1.0, n)), 1, 192).astype(int)
    cases = {
        "4 tokens each": np.full(n, 4),
        "64 tokens each": np.full(n, 64),
        "mixed, uniform 1..128": rng.integers(1, 129, n),
        "mixed, log-normal to 192": lognormal,
    }
    with tempfile.TemporaryDirectory() as storage:
        folder = resolve_model("builtin:tiny-qwen2", Path(storage), Path(storage))
        engine = TransformersEngine.from_folder(folder, slots=options.slots)
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
    print(
        f"{n} requests, {options.slots} at a time, groups of {options.group}, "
        f"{torch.get_num_threads()} thread(s)"
    )
    print(f"{'lengths':26} {'engine':>12} {'samples':>10} {'generate':>12} {'ratio':>7}")
    for name, lengths in cases.items():
        wanted = requests(n, options.group, lengths)
        ours = theirs = 0.0
        for _ in range(options.rounds):
            ours = max(ours, with_engine(engine, wanted))
            theirs = max(theirs, with_generate(model, wanted[: options.slots], options.slots))
        print(
            f"{name:26} {ours:8.0f} t/s {ours / lengths.mean():6.0f} /s {theirs:8.0f} t/s "
            f"{ours / theirs:6.1f}x"
        )


if __name__ == "__main__":
    main()
