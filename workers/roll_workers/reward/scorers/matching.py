"""Scorers that compare text: cheap enough to run where they stand."""

from __future__ import annotations

import re
from typing import Any

from roll_workers.errors import UserError
from roll_workers.reward.scorers import ScoredSample, ScorerError


class ExactMatch:
    """1 when the answer is exactly the expected one, else 0."""

    def __init__(self, strip: bool = True, ignoreCase: bool = False) -> None:
        self.strip = strip
        self.ignore_case = ignoreCase

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def score(self, sample: ScoredSample) -> float:
        expected = sample.answer
        if expected is None:
            raise ScorerError("exactMatch: the row has no answer")
        response = sample.response
        if not isinstance(expected, str):
            expected = str(expected)
        if self.strip:
            response, expected = response.strip(), expected.strip()
        if self.ignore_case:
            response, expected = response.casefold(), expected.casefold()
        return 1.0 if response == expected else 0.0


class Regex:
    """1 when `pattern` occurs in the answer; with a group, when the (last) group is the expected answer.

    A pattern without a group needs no answer. Python's `re` can take exponential time and can't be
    interrupted, so matching runs in a scorer process of its own with the scorer's time-out.
    """

    def __init__(
        self,
        pattern: str,
        timeout: float,
        strip: bool = True,
        ignoreCase: bool = False,
        match: str = "last",
    ) -> None:
        from roll_workers.reward.scorers.processes import ScorerProcesses

        try:
            compiled = re.compile(pattern, re.IGNORECASE if ignoreCase else 0)
        except re.error as error:
            raise UserError(f"regex: {pattern!r} is not a regular expression: {error}") from error
        if match not in ("first", "last"):
            raise UserError(f"regex: match is {match!r}, expected 'first' or 'last'")
        self._needs_answer = compiled.groups > 0
        options = {"pattern": pattern, "strip": strip, "ignore_case": ignoreCase, "match": match}
        self._processes = ScorerProcesses(
            f"{__name__}:regex_score", timeout=timeout, constants={"options": options}
        )

    async def start(self) -> None:
        await self._processes.start()

    async def close(self) -> None:
        await self._processes.close()

    async def score(self, sample: ScoredSample) -> float:
        if self._needs_answer and sample.answer is None:
            raise ScorerError("regex: the pattern has a group, but the row has no answer")
        reward = await self._processes.call({"response": sample.response, "answer": sample.answer})
        return reward.value


def regex_score(response: str, answer: Any, options: dict[str, Any]) -> float:
    """Runs in the scorer's process."""
    flags = re.IGNORECASE if options["ignore_case"] else 0
    pattern = re.compile(options["pattern"], flags)  # cached by `re`
    found = list(pattern.finditer(response))
    if not found:
        return 0.0
    if not pattern.groups:
        return 1.0
    chosen = found[0] if options["match"] == "first" else found[-1]
    got, expected = chosen.group(1) or "", str(answer)
    if options["strip"]:
        got, expected = got.strip(), expected.strip()
    if options["ignore_case"]:
        got, expected = got.casefold(), expected.casefold()
    return 1.0 if got == expected else 0.0
