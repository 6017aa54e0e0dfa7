"""How much goes into one message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

MAX_ITEMS = 64
MAX_BYTES = 1 << 20


def chunks(sizes: Sequence[int], most: int = MAX_ITEMS) -> Iterator[tuple[int, int]]:
    """Which items go into one message each, from the first up to (not including) the last; at most so many."""
    first = total = 0
    for i, size in enumerate(sizes):
        total += size
        if i + 1 - first >= most or total >= MAX_BYTES:
            yield first, i + 1
            first, total = i + 1, 0
    if first < len(sizes):
        yield first, len(sizes)
