"""Data sets that are made in place: the same rows on every machine, split by content and not by chance.

A row is in the held-out part or in the training part whatever the order of rows, the seed or the Python
version, because the split follows a hash of the prompt.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from typing import Any

from roll_workers.errors import UserError

Row = dict[str, Any]

# The characters of the prompts below, for tokenizers of tiny models: a small vocabulary decides whether
# a random model learns by RL alone.
DIGITS_CHARSET = "0123456789,="
FROZEN_LAKE_CHARSET = "FHGP#LDRU="

HELD_OUT = "/held-out"


def builtin_rows(name: str) -> list[Row]:
    """Rows of `builtin:NAME` or `builtin:NAME/held-out`."""
    base = name.removeprefix("builtin:")
    held_out = base.endswith(HELD_OUT)
    base = base.removesuffix(HELD_OUT)
    if base not in _SETS:
        known = ", ".join(f"builtin:{known}" for known in _SETS)
        raise UserError(f"there is no data set builtin:{base}; there are {known} (and /held-out)")
    rows, held = _SETS[base]()
    ordered = sorted(rows, key=_prompt_hash)
    return ordered[:held] if held_out else ordered[held:]


def _three_digits(pick: Callable[[list[int]], int]) -> tuple[list[Row], int]:
    rows = [
        {"prompt": f"{a},{b},{c}=", "answer": str(pick([a, b, c])), "tag": "number"}
        for a, b, c in itertools.product(range(10), repeat=3)
    ]
    return rows, 200


def _sums() -> tuple[list[Row], int]:
    rows = []
    for a, b in itertools.product(range(1, 21), repeat=2):
        question = f"What is {a} + {b}? Answer with the number only."
        messages = [{"role": "user", "content": question}]
        rows.append({"messages": messages, "answer": str(a + b), "tag": "number"})
    return rows, 80


def _prompt_hash(row: Row) -> bytes:
    prompt = row.get("prompt") or json.dumps(row["messages"], sort_keys=True)
    return hashlib.blake2b(prompt.encode(), digest_size=16).digest()


_SETS: dict[str, Callable[[], tuple[list[Row], int]]] = {
    "largest-of-three": lambda: _three_digits(max),
    "middle-of-three": lambda: _three_digits(lambda digits: sorted(digits)[1]),
    "sums": _sums,
}
