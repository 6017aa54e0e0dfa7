"""The data set: an environment whose reset returns a row, rendered to tokens here and nowhere else.

Invariants: the row at a position is a function of (seed, epoch, content hash), so that any environment
worker gives the same answer; a row is rendered the same way each time. What can be wrong with rows is
found at the start: missing columns, tags without a reward, prompts that do not fit the model.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from roll_api.prompts import wrong_with_prompt

from roll_workers.environment.envs.rows import Row, Rows
from roll_workers.errors import UserError
from roll_workers.runtime.trajectory import Trajectory, prompt_piece
from roll_workers.text import Codec, Message

if TYPE_CHECKING:
    from roll_api.data import DataSource
    from roll_api.rewards import Reward, Scorer

CACHED_PROMPTS = 16_384


@dataclass(frozen=True, slots=True)
class Columns:
    """Where in a row things are."""

    prompt: str = "prompt"
    messages: str = "messages"
    answer: str = "answer"
    tag: str = "tag"
    default_tag: str = "default"

    @classmethod
    def of(cls, source: DataSource) -> Columns:
        return cls(
            source.prompt_key, source.messages_key, source.answer_key, source.tag_key, source.tag
        )


def tag_of(row: Row, columns: Columns) -> str:
    tag = row.get(columns.tag)
    return columns.default_tag if tag is None else str(tag)


def facts_of(row: Row, columns: Columns) -> dict[str, Any]:
    """What scorers may know of a row, by name: its own columns, and those of a role under the role's name."""
    roles = (columns.prompt, columns.messages, columns.answer, columns.tag)
    facts = {key: value for key, value in row.items() if key not in roles}
    messages = row.get(columns.messages)
    if messages is None:
        facts["prompt"] = row.get(columns.prompt)
    else:  # a scorer reads the question, and the conversation if it likes
        facts |= {"messages": messages, "prompt": messages[-1]["content"]}
    facts["tag"] = tag_of(row, columns)
    if row.get(columns.answer) is not None:
        facts["answer"] = row[columns.answer]
    return facts


def check_prompt(rows: Rows, index: int, row: Row, columns: Columns, split: str) -> None:
    """UserError for a row that asks nothing, or not as a prompt is written."""
    wrong = wrong_with_prompt(row, columns.prompt, columns.messages, f"data.{split}.")
    if wrong:
        raise UserError(f"{rows.where(index)}: {wrong}")


def permutation(seed: int, epoch: int, content_hash: str, rows: int) -> npt.NDArray[np.int64]:
    """The order of the rows in one epoch."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{content_hash}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little"))).permutation(rows)


class DataSet:
    def __init__(
        self,
        rows: Rows,
        codec: Codec,
        *,
        split: str = "train",
        columns: Columns | None = None,
        chat: str = "Auto",
        system: str | None = None,
        chat_options: dict[str, Any] | None = None,
        seed: int = 0,
        max_prompt_tokens: int | None = None,
    ) -> None:
        self.rows, self.codec, self.split, self.seed = rows, codec, split, seed
        self.columns = columns or Columns()
        self.content_hash = rows.content_hash
        self.chat = codec.has_chat if chat == "Auto" else chat == "Always"
        self.system, self.chat_options = system, chat_options or {}
        self.max_prompt_tokens = max_prompt_tokens
        self.payload = lru_cache(CACHED_PROMPTS)(self._payload)
        self._order = lru_cache(2)(self._order_of_epoch)

    def row(self, position: int, *, validation: bool = False) -> int:
        """The row's index at a position of the data cursor; a validation position is the index itself."""
        count = len(self.rows)
        if validation:
            return position % count
        epoch, place = divmod(position, count)
        return int(self._order(epoch)[place])

    def prompt(self, index: int) -> tuple[str | list[Message], list[int]]:
        """A row's prompt as it was written and as tokens."""
        row, columns = self.rows[index], self.columns
        messages = row.get(columns.messages)
        if messages is not None:
            return messages, self._chat_tokens(index, messages)
        check_prompt(self.rows, index, row, columns, self.split)
        prompt: str = row[columns.prompt]
        if self.chat:
            return prompt, self._chat_tokens(index, [{"role": "user", "content": prompt}])
        return prompt, self._encoded(index, lambda: self.codec.encode(prompt))

    def check(self, rewards: Sequence[Reward]) -> None:
        """UserError for the first row that can't be used; the message names it."""
        allowed: dict[str, tuple[bool, bool]] = {}
        rendered = self.chat
        for index, row in enumerate(self.rows):
            check_prompt(self.rows, index, row, self.columns, self.split)
            rendered = rendered or row.get(self.columns.messages) is not None
            tag = tag_of(row, self.columns)
            if tag not in allowed:
                matching = [r for r in rewards if not r.tags or tag in r.tags]
                needs = any(_needs_answer(r.scorer) for r in matching)
                allowed[tag] = bool(matching) or not rewards, needs
            has_reward, needs_answer = allowed[tag]
            if not has_reward:
                raise UserError(
                    f"{self.rows.where(index)}: no reward has the tag {tag!r} of this row: add it to "
                    "the tags of a reward, or leave the tags of one empty"
                )
            if needs_answer and row.get(self.columns.answer) is None:
                raise UserError(
                    f"{self.rows.where(index)}: no {self.columns.answer!r}, which the rewards of tag "
                    f"{tag!r} compare with; data.{self.split}.answerKey names another column"
                )
        if not rendered and (self.system is not None or self.chat_options):
            raise UserError(
                f"data.{self.split}.chatTemplate: system and options have no effect: no prompt goes through "
                "a chat template (the tokenizer has none, or use is Never)"
            )
        self._check_lengths()

    def _check_lengths(self) -> None:
        """Tokens are counted only where the number of bytes leaves a doubt: a token is at least one."""
        self.prompt(0)  # a first rendering, so that a missing template is found now
        if self.max_prompt_tokens is None:
            return
        overhead = 32 + len(self.prompt(0)[1]) if self.chat else 8
        for index, row in enumerate(self.rows):
            written = row.get(self.columns.messages) or row.get(self.columns.prompt)
            size = len((written if isinstance(written, str) else json.dumps(written)).encode())
            if size + overhead > self.max_prompt_tokens:
                self.prompt(index)

    def _payload(self, index: int) -> bytes:
        """What the reset stage adds: the prompt's tokens, and the row's columns as facts."""
        _, tokens = self.prompt(index)
        facts = facts_of(self.rows[index], self.columns)
        return Trajectory.payload(
            prompt_piece(tokens),
            facts={key: json.dumps(value, default=str) for key, value in facts.items()},
        )

    def _chat_tokens(self, index: int, messages: list[Message]) -> list[int]:
        if self.system is not None and messages[0].get("role") != "system":
            messages = [{"role": "system", "content": self.system}, *messages]
        return self._encoded(index, lambda: self.codec.encode_chat(messages, **self.chat_options))

    def _encoded(self, index: int, encode: Any) -> list[int]:
        try:
            tokens: list[int] = encode()
        except UserError as error:
            raise UserError(f"{self.rows.where(index)}: {error}") from error
        limit = self.max_prompt_tokens
        if limit is not None and len(tokens) > limit:
            raise UserError(
                f"{self.rows.where(index)}: the prompt has {len(tokens)} tokens, but the model's context "
                f"of {self.codec.context} leaves {limit} beside rollout.sampling.maxNewTokens"
            )
        return tokens

    def _order_of_epoch(self, epoch: int) -> npt.NDArray[np.int64]:
        return permutation(self.seed, epoch, self.content_hash, len(self.rows))


def _needs_answer(scorer: Scorer) -> bool:
    """Whether a scorer compares with the row's answer."""
    if scorer.kind == "regex":
        try:
            return re.compile(str(scorer.options.get("pattern", ""))).groups > 0
        except re.error:  # the reward role says what is wrong with it
            return False
    return scorer.kind in ("exactMatch", "math")
