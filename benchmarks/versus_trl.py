"""The same model, task, batch and optimizer under `roll run` and under TRL's GRPOTrainer, one after the other.

    python benchmarks/versus_trl.py              # about 6 minutes on two quiet cores
    python benchmarks/versus_trl.py --tokens 4 --json

Two questions. How many samples a second, with 4 and with 64 new tokens each (for 64 the model has no way to
stop, so that every answer has exactly 64)? And how many seconds and samples to a held-out reward of 0.5 and
0.9 on the largest of three digits (the median of five seeds: by luck one run takes twice the samples of
another, under both)? Loading and imports are not counted. Held-out prompts are answered in the
runs of the second question only, greedily every 10 steps by both: TRL's clock stops meanwhile, while
`roll run` does it beside training. TRL runs without gradient checkpointing, which it has on by default and which
costs it a seventh of its speed here; for the first question it runs once more as it comes.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

GROUPS, SIZE = 32, 8
SAMPLES = GROUPS * SIZE
WARM_STEPS = 5
ENTROPY = 0.01
SEEDS = range(1, 6)


def model_folder(where: Path, *, endless: bool) -> Path:
    """The example's model; `endless`: its end-of-text token is one that it cannot sample."""
    from roll_workers.builtin.models import resolve_model

    folder = resolve_model("builtin:tiny-qwen2", where, where)
    if endless:
        from transformers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        tokenizer.add_special_tokens({"eos_token": "<never>"})
        tokenizer.save_pretrained(folder)
        for name in ("config.json", "generation_config.json"):
            settings = json.loads((folder / name).read_text())
            settings["eos_token_id"] = tokenizer.eos_token_id
            (folder / name).write_text(json.dumps(settings))
    return folder


def with_roll(
    where: Path, tokens: int, steps: int, rate: float, every: int, seed: int = 42
) -> dict[str, Any]:
    job = {
        "apiVersion": "roll.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "versus-trl"},
        "spec": {
            "pipeline": "RLVR",
            "steps": steps,
            "seed": seed,
            "model": {"path": str(model_folder(where, endless=tokens > 4))},
            "data": {
                "train": {"path": "builtin:largest-of-three"},
                **(
                    {
                        "validation": {
                            "path": "builtin:largest-of-three/held-out",
                            "everySteps": every,
                        }
                    }
                    if every
                    else {}
                ),
            },
            "algorithm": {"learningRate": rate, "entropy": ENTROPY},
            "rollout": {
                "groupsPerStep": GROUPS,
                "groupSize": SIZE,
                "sampling": {"maxNewTokens": tokens},
            },
            "rewards": [{"name": "exact", "scorer": {"kind": "exactMatch"}}],
            "roles": {
                "trainer": {"replicas": 1, "threads": 2},
                "inference": {"replicas": 1, "engine": {"kind": "transformers", "slots": 256}},
                "reward": {"replicas": 1},
                "environment": {"replicas": 1},
            },
            "checkpoint": {"everySteps": steps, "keepLast": 10},
        },
    }
    (where / "job.yaml").write_text(json.dumps(job))
    run = where / "run"
    command = [sys.executable, "-m", "roll_operator.cli", "run", str(where / "job.yaml")]
    subprocess.run([*command, "--output", str(run)], check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first, last = lines[WARM_STEPS - 1], lines[-1]
    db = sqlite3.connect(run / "ledger" / "ledger.sqlite")
    admitted = db.execute("SELECT min(admitted) FROM groups WHERE validation IS NULL").fetchone()[0]
    held_out = [
        {"step": v, "seconds": ended - admitted, "reward": reward}
        for v, ended, reward in db.execute(
            "SELECT v.version, max(g.ended), v.total / v.scored FROM validations v JOIN groups g"
            " ON g.validation = v.version WHERE v.scored > 0 GROUP BY v.version ORDER BY v.version"
        )
    ]
    return {
        "samples_per_second": (last["step"] - first["step"])
        * SAMPLES
        / (last["time"] - first["time"]),
        "held_out": held_out,
    }


def with_trl(
    where: Path,
    tokens: int,
    steps: int,
    rate: float,
    every: int,
    seed: int = 42,
    *,
    as_it_comes: bool = False,
) -> dict[str, Any]:
    """In a process of its own: `--trl` below."""
    out = where / "trl.json"
    arguments = [str(where), str(tokens), str(steps), str(rate), str(every), str(seed), str(out)]
    subprocess.run(
        [sys.executable, __file__, "--trl", *arguments, str(int(as_it_comes))],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    return json.loads(out.read_text())  # type: ignore[no-any-return]


def trl_process(
    where: Path,
    tokens: int,
    steps: int,
    rate: float,
    every: int,
    seed: int,
    out: Path,
    as_it_comes: bool,
) -> None:
    import torch
    from datasets import Dataset
    from roll_workers.builtin.data import builtin_rows
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    folder = model_folder(where, endless=tokens > 4)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    train = list(builtin_rows("largest-of-three"))
    held_out = list(builtin_rows("largest-of-three/held-out"))

    def exact(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [float(c.strip() == str(a)) for c, a in zip(completions, answer, strict=True)]

    class Clock(TrainerCallback):
        """Training time only: the clock stands still while held-out prompts are answered."""

        def __init__(self) -> None:
            self.seconds, self.since = 0.0, 0.0
            self.steps: list[tuple[int, float]] = []
            self.held_out: list[dict[str, float]] = []

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.since = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.seconds += time.perf_counter() - self.since
            self.steps.append((state.global_step, self.seconds))
            if every and state.global_step % every == 0:
                self.held_out.append(
                    {"step": state.global_step, "seconds": self.seconds, "reward": greedy()}
                )
            self.since = time.perf_counter()

    def greedy() -> float:
        prompts = tokenizer(
            [r["prompt"] for r in held_out], return_tensors="pt", padding=True, padding_side="left",
            add_special_tokens=False,
        )  # fmt: skip
        prompts.pop("token_type_ids", None)
        with torch.inference_mode():
            made = model.generate(**prompts, max_new_tokens=tokens, do_sample=False)
        answers = tokenizer.batch_decode(
            made[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True
        )
        return sum(
            a.strip() == str(r["answer"]) for a, r in zip(answers, held_out, strict=True)
        ) / len(held_out)

    clock = Clock()
    config = GRPOConfig(
        output_dir=str(where / "trl"),
        per_device_train_batch_size=SAMPLES,
        num_generations=SIZE,
        max_completion_length=tokens,
        learning_rate=rate,
        lr_scheduler_type="constant",
        max_steps=steps,
        temperature=1.0,
        beta=0.0,
        entropy_coef=ENTROPY,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=50,
        disable_tqdm=True,
        gradient_checkpointing=as_it_comes,
        seed=seed,
    )
    rows = [{"prompt": r["prompt"], "answer": str(r["answer"])} for r in train]
    GRPOTrainer(
        model=model,
        reward_funcs=exact,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[clock],
    ).train()
    (first, began), (last, ended) = clock.steps[WARM_STEPS - 1], clock.steps[-1]
    out.write_text(
        json.dumps(
            {
                "samples_per_second": (last - first) * SAMPLES / (ended - began),
                "held_out": clock.held_out,
            }
        )
    )


def reached(held_out: list[dict[str, float]], goal: float) -> tuple[float, float]:
    """(seconds, samples) until the held-out reward first reached `goal`; infinite if it never did."""
    for point in held_out:
        if point["reward"] >= goal:
            return point["seconds"], point["step"] * SAMPLES
    return float("inf"), float("inf")


def measure(run: Callable[..., dict[str, Any]], *arguments: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder), *arguments)


def speed(tokens: int, steps: int, rate: float) -> dict[str, float]:
    sides = {"roll": with_roll, "TRL": with_trl, "as it comes": partial(with_trl, as_it_comes=True)}
    found: dict[str, float] = {
        side: measure(run, tokens, steps, rate, 0)["samples_per_second"]
        for side, run in sides.items()
    }
    ours = found["roll"]
    print(
        f"{tokens} new tokens: roll {ours:,.0f} samples/s, "
        + "; ".join(f"{side} {at:,.0f}: {ours / at:.2f}x" for side, at in list(found.items())[1:]),
        flush=True,
    )
    return found


def learning() -> dict[str, Any]:
    found = {
        side: [measure(run, 4, 100, 5e-4, 10, seed)["held_out"] for seed in SEEDS]
        for side, run in (("roll", with_roll), ("TRL", with_trl))
    }
    for goal in (0.5, 0.9):
        for side, runs in found.items():
            seconds, samples = zip(*(reached(held_out, goal) for held_out in runs), strict=True)
            each = ", ".join(f"{n:,.0f}" for n in samples)
            print(
                f"held-out reward {goal}, {side}: {median(seconds):.1f} s, "
                f"{median(samples):,.0f} samples (of each seed {each})",
                flush=True,
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trl", nargs=8, help=argparse.SUPPRESS)
    parser.add_argument(
        "--tokens", type=int, choices=(4, 64), help="only this length; both by default"
    )
    parser.add_argument("--json", action="store_true", help="print everything that was measured")
    args = parser.parse_args()
    if args.trl:
        where, tokens, steps, rate, every, seed, out, as_it_comes = args.trl
        numbers = int(tokens), int(steps), float(rate), int(every), int(seed)
        trl_process(Path(where), *numbers, Path(out), as_it_comes == "1")
        return
    measured: dict[str, Any] = {}
    if args.tokens != 64:
        measured["4 new tokens"] = speed(4, 200, 5e-4)
    if args.tokens != 4:
        measured["64 new tokens"] = speed(64, 25, 1e-9)
    if args.tokens != 64:
        measured["learning"] = learning()
    if args.json:
        print(json.dumps(measured))


if __name__ == "__main__":
    main()
