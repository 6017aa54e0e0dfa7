"""Text of a certain form: the pattern for machines, and beside it the words for people."""

from typing import Any

from pydantic import Field

WORDS: dict[str, str] = {}
"""What to write, by the pattern that something else does not fit."""


def shaped(pattern: str, words: str, *, max_length: int, min_length: int | None = None) -> Any:
    """A field of text; `words` say what to write instead of what was written."""
    WORDS[pattern] = words
    return Field(pattern=pattern, min_length=min_length, max_length=max_length)
