"""Questions, answered before and after a run:  python examples/answers.py runs/arithmetic

Held-out ones where the job has some. A checkpoint's `model` is an ordinary Hugging Face folder: `generate`
is all that is used of it here.
"""

import json
import sys
from pathlib import Path

import torch
from roll_workers.builtin.models import load_tokenizer, resolve_model
from roll_workers.environment.envs.rows import read_rows
from transformers import AutoModelForCausalLM
from transformers.utils import logging

QUESTIONS = 8


def answers(folder: Path, rows: list[dict], new_tokens: int) -> list[str]:
    """The most likely answer to each row's prompt."""
    tokenizer = load_tokenizer(str(folder), folder, folder)
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    said = []
    for row in rows:
        text = row.get("prompt") or tokenizer.apply_chat_template(
            row["messages"], add_generation_prompt=True, tokenize=False
        )
        prompt = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        tokens = model.generate(prompt, do_sample=False, max_new_tokens=new_tokens)
        said.append(tokenizer.decode(tokens[0, prompt.shape[1] :], skip_special_tokens=True))
    return said


def main(run: Path) -> None:
    run = run.resolve()  # a relative path would name folders beside the job's file
    spec = json.loads((run / "job.json").read_text())["spec"]
    source = Path(json.loads((run / "run.json").read_text())["source"])
    if not spec.get("data"):
        sys.exit(f"{run}: its questions come from an environment, not from a data set")
    split = "validation" if spec["data"].get("validation") else "train"
    asked = read_rows(spec["data"][split]["path"], source, split)
    rows = [asked[i] for i in range(min(QUESTIONS, len(asked)))]
    before = resolve_model(spec["model"]["path"], run, source)
    after = max((run / "checkpoints").glob("step-*")) / "model"
    limit = spec["rollout"]["sampling"]["maxNewTokens"]
    print("| question | answer | before | after |\n| --- | --- | --- | --- |")
    for row, *said in zip(
        rows, answers(before, rows, limit), answers(after, rows, limit), strict=True
    ):
        question = row.get("prompt") or row["messages"][-1]["content"]
        print(f"| {question} | {row.get('answer')} |", " | ".join(map(repr, said)), "|")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "run.json").is_file():
        sys.exit("usage: python examples/answers.py RUN, the folder of a run, e.g. runs/arithmetic")
    main(Path(sys.argv[1]))
