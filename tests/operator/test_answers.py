"""Held-out prompts with the first and the last answer, as people read them."""

from typing import Any

import pytest
from roll_operator.controller.answers import side_by_side
from roll_operator.controller.text import shortened


def answers(step: int, *said: tuple[str, str, float | None]) -> dict[str, Any]:
    found = [{"prompt": p, "response": text, "reward": reward} for p, text, reward in said]
    return {"step": step, "answers": found}


def test_each_prompt_has_its_answers_beside_it() -> None:
    first = answers(0, ("1,2,3=", "", 0.0), ("4,5,6=", "66\n6", 0.5))
    last = answers(120, ("4,5,6=", "6", 1.0), ("1,2,3=", "3", None))

    assert side_by_side(first, last) == [
        "held-out prompts  at step 0      at step 120",
        "  1,2,3=          '' (0)         '3'",
        r"  4,5,6=          '66\n6' (0.5)  '6' (1)",
    ]


@pytest.mark.parametrize(
    ("first", "last"),
    [({}, {}), ({}, answers(3)), (answers(0), {}), (answers(0), answers(0))],
)
def test_without_two_validations_there_is_nothing_to_compare(
    first: dict[str, Any], last: dict[str, Any]
) -> None:
    assert side_by_side(first, last) == []


def test_a_long_answer_is_one_short_line() -> None:
    assert shortened("one\ntwo\tthree", 10) == r"one\ntwo\…"
