"""What a row of data must have to be a prompt: one rule for who looks at a job and for who runs it."""

from collections.abc import Mapping
from typing import Any


def wrong_with_prompt(
    row: Mapping[str, Any], prompt_key: str, messages_key: str, where: str = ""
) -> str:
    """Why the row asks nothing, or not as a prompt is written; empty: it does. `where` leads to the keys' names."""
    prompt, messages = row.get(prompt_key), row.get(messages_key)
    if messages is None:
        if isinstance(prompt, str) and prompt:
            return ""
        return (
            f"no text in {prompt_key!r} and no {messages_key!r}; its columns are "
            f"{', '.join(row) or '(none)'}; {where}promptKey and messagesKey name others"
        )
    if (
        isinstance(messages, list)
        and messages
        and all(isinstance(m, dict) and "role" in m and "content" in m for m in messages)
    ):
        return ""
    return f"{messages_key!r} is not a list of {{role, content}} messages"
