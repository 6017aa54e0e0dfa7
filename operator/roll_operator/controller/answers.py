"""The first held-out prompts with what the model said to them at the first and at the last validation.

The ledger prunes the details of early steps: the first answers are read when they are there, and kept with the state.
"""

import sqlite3
from typing import Any

from roll_api.figures import figure

from roll_operator.controller.folder import RunFolder

PROMPTS = 3
"""The first ones, whatever was said to them."""

Answers = dict[str, Any]
"""`step`, and `answers`: prompt, response and reward of each."""


def read_answers(folder: RunFolder, *, last: bool) -> Answers:
    """Of the first or the last validation on record; empty where there is none."""
    from roll_operator.controller.text import Texts
    from roll_operator.scheduler import offline
    from roll_operator.scheduler.ledger.sqlite import LedgerError
    from roll_operator.scheduler.lifecycle import Altered

    try:
        means = offline.held_out(folder.ledger)
        if not means:
            return {}
        step, _ = means[-1 if last else 0]
        with Texts(folder) as texts:
            found = texts.evaluated(step, range(PROMPTS))
    except (Altered, LedgerError, sqlite3.Error, OSError):
        return {}
    answers = [
        {"prompt": told.first("prompt"), "response": told.response, "reward": told.reward}
        for told in found
    ]
    return {"step": step, "answers": answers} if answers else {}


def side_by_side(first: Answers, last: Answers) -> list[str]:
    """Lines for people: what was said before and after; nothing where one of the two is not known."""
    if not first or not last or first["step"] == last["step"]:
        return []
    from roll_operator.controller.text import shortened

    after = {answer["prompt"]: answer for answer in last["answers"]}
    rows: list[tuple[str, ...]] = [
        ("held-out prompts", f"at step {first['step']}", f"at step {last['step']}")
    ]
    for before in first["answers"]:
        if before["prompt"] in after:
            texts = (before, after[before["prompt"]])
            said = (f"'{shortened(t['response'], 32)}' {_scored(t['reward'])}" for t in texts)
            rows.append((f"  {shortened(before['prompt'], 40)}", *said))
    widths = [max(len(row[n]) for row in rows) for n in range(3)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _scored(reward: float | None) -> str:
    return "" if reward is None else f"({figure(reward)})"
