"""The beginning of a data set, looked at: is every line a row, and has it what the job asks for?

Invariant: no more than LINES lines are read, however large the file; workers read all of it before they start.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from roll_api.data import DataSource
from roll_api.prompts import wrong_with_prompt
from roll_api.rewards import Reward
from roll_api.splits import NoFiles, files_of

LINES = 10_000
TOLD = 10
"""Different mistakes, and lines of each."""
GIVEN = {"prompt", "response", "tag", "tokens", "turns"}
"""What a function of the user's gets whatever its row has."""


@dataclass(slots=True)
class Looked:
    wrong: list[str] = field(default_factory=list)
    note: str = ""
    """How much of a large file was looked at."""


def look_at_data(
    place: Path,
    split: str,
    source: DataSource,
    rewards: Sequence[Reward],
    parameters: Mapping[str, frozenset[str]],
) -> Looked:
    """`place` is there; `parameters` are what rewards with a function of the user's cannot do without, by name."""
    if place.is_dir():
        try:
            files_of(place, split)
        except NoFiles as error:
            return Looked([str(error)])
        return Looked()
    try:
        with place.open("rb") as file:
            if place.suffix == ".parquet":
                return Looked([] if file.read(4) == b"PAR1" else [f"{place} is not a parquet file"])
            if place.suffix == ".arrow":
                return Looked()
            if place.suffix == ".json" and file.read(64).lstrip()[:1] == b"[":
                return Looked(note=f"{place.name}, one JSON list, was not looked at")
            file.seek(0)
            return _look_at_lines(
                place, file, lambda line: _wrong_with(line, source, rewards, parameters)
            )
    except OSError as error:
        return Looked([f"{place} cannot be read: {error.strerror}"])


def _look_at_lines(place: Path, lines: Any, wrong_with: Callable[[bytes], Iterator[str]]) -> Looked:
    rows, wrong = 0, dict[str, list[int]]()
    for number, line in enumerate(islice(lines, LINES), start=1):
        if line.strip():
            rows += 1
            for said in islice(wrong_with(line), 1):
                wrong.setdefault(said, []).append(number)
    looked = Looked([f"{place}, {_numbers(at)}: {said}" for said, at in wrong.items()][:TOLD])
    if len(wrong) > TOLD:
        looked.wrong[-1] += "; and more"
    if next(iter(lines), b""):
        looked.note = f"the first {LINES} lines of {place.name} were looked at"
    elif not rows:
        looked.wrong.append(f"{place} has no rows")
    return looked


def _numbers(lines: list[int]) -> str:
    if len(lines) == 1:
        return f"line {lines[0]}"
    more = f" and {len(lines) - TOLD} more" if len(lines) > TOLD else ""
    return f"lines {', '.join(map(str, lines[:TOLD]))}{more}"


def _wrong_with(
    line: bytes,
    source: DataSource,
    rewards: Sequence[Reward],
    parameters: Mapping[str, frozenset[str]],
) -> Iterator[str]:
    try:
        row = json.loads(line)
    except ValueError as error:
        yield f"not JSON: {error}"
        return
    if not isinstance(row, dict):
        yield f"{type(row).__name__} instead of an object"
        return
    if wrong := wrong_with_prompt(row, source.prompt_key, source.messages_key):
        yield wrong
    tag = source.tag if row.get(source.tag_key) is None else str(row[source.tag_key])
    judges = [reward for reward in rewards if not reward.tags or tag in reward.tags]
    if rewards and not judges:
        yield f"no reward has the tag {tag!r} of this row"
    if row.get(source.answer_key) is None and any(map(_needs_answer, judges)):
        yield f"no {source.answer_key!r}, which its rewards compare with; answerKey names another"
    for judge in judges:
        given = GIVEN | judge.scorer.options.keys() | _given(row, source)
        if missing := parameters.get(judge.name, frozenset()) - given:
            yield (
                f"no {', '.join(sorted(missing))}, which {judge.scorer.python} asks for; it is given "
                f"{', '.join(sorted(given))}"
            )


def _given(row: dict[str, Any], source: DataSource) -> set[str]:
    """The names under which a function gets a row's columns: as a worker gives them, and no others."""
    roles = (source.prompt_key, source.messages_key, source.answer_key, source.tag_key)
    given = {key: value for key, value in row.items() if key not in roles}
    for name, key in (("messages", source.messages_key), ("answer", source.answer_key)):
        if row.get(key) is not None:
            given[name] = row[key]
    return {name for name, value in given.items() if name != "answer" or value is not None}


def _needs_answer(reward: Reward) -> bool:
    if reward.scorer.kind == "regex":
        try:
            return re.compile(str(reward.scorer.options.get("pattern", ""))).groups > 0
        except re.error:  # the reward role says what is wrong with it
            return False
    return reward.scorer.kind in ("exactMatch", "math")
