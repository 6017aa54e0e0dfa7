"""Held-out questions, answered before and after:  python examples/smollm2/answers.py runs/smollm2

A checkpoint's `model` is an ordinary Hugging Face folder; nothing of ours is needed to use it.
"""

import sys
from pathlib import Path

import torch
from roll_workers.builtin.data import builtin_rows
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTIONS = 8


def answers(folder: Path, questions: list[str]) -> list[str]:
    """The most likely answer to each question."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    said = []
    for question in questions:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        tokens = model.generate(**prompt, do_sample=False, max_new_tokens=20)
        said.append(tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], True).strip())
    return said


def main(run: Path) -> None:
    rows = builtin_rows("builtin:sums/held-out")[:QUESTIONS]
    questions = [row["messages"][0]["content"] for row in rows]
    (before,) = (run / "models").glob("smollm2-*")
    after = max((run / "checkpoints").glob("step-*")) / "model"
    print("| question | answer | before | after |\n| --- | --- | --- | --- |")
    for row, question, *said in zip(
        rows, questions, answers(before, questions), answers(after, questions), strict=True
    ):
        print(f"| {question} | {row['answer']} | " + " | ".join(map(repr, said)) + " |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
