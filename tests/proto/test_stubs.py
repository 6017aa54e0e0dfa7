"""The checked-in stubs are those of the .proto files, and the .proto files explain themselves."""

import importlib
import re
from pathlib import Path

import pytest
import roll_wire
from roll_wire.generate import PROTOS, generate

PACKAGE = Path(roll_wire.__file__).parent
SOURCES = sorted(PROTOS.glob("*.proto"))


def test_the_checked_in_stubs_are_what_the_generator_writes(tmp_path: Path) -> None:
    fresh = {path.name: path.read_text() for path in generate(tmp_path)}
    stored = {path.name: path.read_text() for path in PACKAGE.glob("*_pb2*.py*")}
    assert stored.keys() == fresh.keys()
    changed = [name for name in fresh if fresh[name] != stored[name]]
    assert not changed, f"run `make generate`: {changed}"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_message_and_service_is_explained(source: Path) -> None:
    lines = source.read_text().splitlines()
    assert lines[0].startswith("// "), "the file says what it is for"
    declared = [i for i, line in enumerate(lines) if re.match(r"(message|service) ", line)]
    bare = [lines[i] for i in declared if not lines[i - 1].startswith("// ")]
    assert declared
    assert not bare


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_stubs_are_imported_through_roll_wire_alone(source: Path) -> None:
    module = importlib.import_module(f"roll_wire.{source.stem}_pb2")
    assert module.DESCRIPTOR.name == f"roll/v1/{source.name}"
    assert not [
        p for p in PACKAGE.glob("*.py*") if "from roll.v1" in p.read_text() and "_pb2" in p.name
    ]


def test_concatenated_payloads_are_the_merged_trajectory() -> None:
    from roll_wire.sample_pb2 import Piece, Reward, Trajectory

    prompt = Trajectory(pieces=[Piece(kind=Piece.PROMPT, length=2)], facts={"answer": "1"})
    action = Trajectory(pieces=[Piece(kind=Piece.ACTION, length=3)])
    score = Trajectory(reward=Reward(value=0.5))
    merged = Trajectory.FromString(b"".join(t.SerializeToString() for t in (prompt, action, score)))
    assert [piece.length for piece in merged.pieces] == [2, 3]
    assert dict(merged.facts) == {"answer": "1"}
    assert merged.reward.value == 0.5
