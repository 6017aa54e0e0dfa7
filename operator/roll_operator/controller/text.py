"""What was said in a sample: its recorded tokens, put into text by the tokenizer of the run's model.

Invariant: a ledger is only read here, also while its scheduler writes. Where no tokenizer is to be found, tokens are
shown as the numbers that they are.
"""

import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from roll_api import RLJob
from roll_api.builtins import PREFIX
from roll_wire import control_pb2
from roll_wire.sample_pb2 import Piece, Trajectory

from roll_operator.controller.folder import RunFolder
from roll_operator.scheduler import record
from roll_operator.scheduler.ledger import rows
from roll_operator.scheduler.ledger.segments import SegmentStore
from roll_operator.scheduler.ledger.sqlite import check_format, connect, read_meta
from roll_operator.scheduler.ledger.story import read_story
from roll_operator.scheduler.lifecycle import Group, GroupState, Part
from roll_operator.scheduler.settings import Settings

KINDS = {Piece.PROMPT: "prompt", Piece.ACTION: "response", Piece.OBSERVATION: "observation"}
LIVE = (int(GroupState.OPEN), int(GroupState.READY))
GROUPS_AT_ONCE = 64
NUMBERS = "texts are shown as token numbers: the model's tokenizer is not here (a scheduler's pod has none)"

Decode = Callable[[Sequence[int], bool], str]


@dataclass(slots=True)
class Said:
    """The prompt, one answer of the policy, or what the environment replied."""

    kind: str
    turn: int
    tokens: int
    text: str
    finish: str = ""


@dataclass(slots=True)
class Told:
    """A sample as people read it."""

    state: control_pb2.SampleState
    reward: float | None
    parts: dict[str, float]
    facts: dict[str, Any]
    said: list[Said] = field(default_factory=list)

    def first(self, kind: str) -> str:
        return next((said.text for said in self.said if said.kind == kind), "")

    @property
    def response(self) -> str:
        """All that the policy said, turn by turn."""
        return " | ".join(said.text for said in self.said if said.kind == "response")


class Texts:
    """The samples whose details a ledger still holds. `note` tells why they are numbers; empty: they are text.

    `damaged` names those that were looked for and are on record, but whose payloads are not as they were written.
    """

    def __init__(self, folder: RunFolder) -> None:
        job = RLJob.from_json(folder.job_file.read_text(encoding="utf-8"))
        self._graph = Settings.from_job(job).graph
        self._db = connect(folder.ledger / "ledger.sqlite", read_only=True)
        check_format(read_meta(self._db), folder.ledger / "ledger.sqlite")
        self._store = SegmentStore(folder.ledger / "segments")
        self._decode, self.note = _decoder(folder, job)
        self.damaged: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._db.close()
        self._store.close()

    def of(self, group: int, index: int) -> Told | None:
        """None where its details were pruned or are damaged, or there is no such sample."""
        return next((t for g in self._groups([group]) for t in self._told(g, [index])), None)

    def ended(self, limit: int, *, reward_below: float | None = None) -> list[Told]:
        """The newest samples that have ended, newest first."""
        query = f"SELECT id FROM groups WHERE state NOT IN {LIVE} ORDER BY id DESC"
        ids, found = [i for (i,) in self._db.execute(query)], list[Told]()
        for first in range(0, len(ids), GROUPS_AT_ONCE):
            for group in self._groups(ids[first : first + GROUPS_AT_ONCE]):
                wanted = [
                    unit.index
                    for unit in group.units
                    if reward_below is None
                    or (unit.reward is not None and unit.reward < reward_below)
                ]
                found += self._told(group, wanted[: limit - len(found)])
            if len(found) >= limit:
                break
        return found

    def evaluated(self, version: int, positions: Sequence[int]) -> list[Told]:
        """What a version said to these held-out prompts, in this order."""
        marks = ",".join("?" * len(positions))
        query = (
            f"SELECT position, id FROM groups WHERE state = {int(GroupState.EVALUATED)} AND validation = ?"
            f" AND position IN ({marks}) ORDER BY lineage"
        )
        found = dict(self._db.execute(query, (version, *positions)))
        groups = self._groups([found[p] for p in positions if p in found])
        return [told for group in groups for told in self._told(group, [0])]

    def kept(self) -> tuple[int, int] | None:
        """The oldest and the newest group that has ended and still has its details."""
        query = f"SELECT min(id), max(id) FROM groups WHERE state NOT IN {LIVE}"
        oldest, newest = self._db.execute(query).fetchone()
        return None if oldest is None else (oldest, newest)

    def size(self, group: int) -> int | None:
        """Samples of a group that still has its details."""
        row = self._db.execute("SELECT size FROM groups WHERE id = ?", (group,)).fetchone()
        return None if row is None else int(row[0])

    def _groups(self, ids: Sequence[int]) -> list[Group]:
        return rows.read_groups(self._db, self._graph, ids)

    def _told(self, group: Group, indices: Sequence[int]) -> Iterator[Told]:
        parts = record.by_unit(group)
        for index in indices:
            story = read_story(self._db, self._graph, group.id, index)
            if story is None:
                continue
            trajectory = self._trajectory((*parts.get(-1, ()), *parts.get(index, ())))
            if trajectory is None:
                if self.size(group.id) is not None:  # else it was pruned while we were reading
                    self.damaged.append(f"{group.id}.{index}")
                continue
            scored = trajectory.HasField("reward")
            yield Told(
                story.state,
                group.units[index].reward,
                dict(trajectory.reward.parts) if scored else {},
                {key: json.loads(value) for key, value in sorted(trajectory.facts.items())},
                list(self._said(trajectory)),
            )

    def _trajectory(self, parts: Sequence[Part]) -> Trajectory | None:
        """None where not all of it is there any more."""
        trajectory = Trajectory()
        for part in parts:
            try:
                payload = self._store.read_part(part)
            except FileNotFoundError:
                return None
            if payload is None:
                return None
            trajectory.MergeFromString(payload)
        return trajectory

    def _said(self, trajectory: Trajectory) -> Iterator[Said]:
        """A turn that was interrupted and resumed is one."""
        turns: dict[tuple[str, int, int], tuple[array[int], str]] = {}
        for piece in trajectory.pieces:
            key = KINDS.get(piece.kind, "other"), piece.turn, piece.sequence
            tokens, _ = turns.setdefault(key, (array("i"), ""))
            for column in piece.columns:
                if column.name == "token":
                    # The wire is little-endian, and so is every machine that this runs on.
                    tokens.frombytes(column.data)
            turns[key] = tokens, piece.finish_reason
        for (kind, turn, _), (tokens, finish) in turns.items():
            yield Said(kind, turn, len(tokens), self._decode(tokens, kind == "response"), finish)


def _decoder(folder: RunFolder, job: RLJob) -> tuple[Decode, str]:
    """As a scorer reads an answer: without special tokens; a prompt is shown with them."""
    path = _tokenizer(folder, job)
    try:
        from tokenizers import Tokenizer
    except ImportError:
        path = None
    if path is None:
        return lambda tokens, _: "tokens " + " ".join(map(str, tokens)), NUMBERS
    tokenizer = Tokenizer.from_file(str(path))
    return lambda tokens, plain: str(tokenizer.decode(list(tokens), skip_special_tokens=plain)), ""


def _tokenizer(folder: RunFolder, job: RLJob) -> Path | None:
    """The `tokenizer.json` of the model that is trained: made in the run's folder, its own folder, a checkpoint's."""
    name = job.spec.model.path
    if name.startswith(PREFIX):
        found = list(folder.path.glob(f"models/{name.removeprefix(PREFIX)}-*/tokenizer.json"))
    else:
        found = [Path(folder.run().get("source", ""), Path(name).expanduser(), "tokenizer.json")]
    found += sorted(folder.path.glob("checkpoints/*/model/tokenizer.json"))
    return next((path for path in found if path.is_file()), None)


def shortened(text: str, width: int) -> str:
    """On one line."""
    line = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return line if len(line) <= width else line[: width - 1] + "…"
