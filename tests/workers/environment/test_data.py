"""Rows from wherever they lie; what is wrong with them is said with the file and the line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from roll_api.rewards import Reward
from roll_wire.sample_pb2 import Piece, Trajectory
from roll_workers.builtin.data import DIGITS_CHARSET, builtin_rows
from roll_workers.environment.envs.dataset import Columns, DataSet, permutation
from roll_workers.environment.envs.rows import read_rows
from roll_workers.errors import UserError
from roll_workers.runtime.trajectory import sequences
from roll_workers.text import Codec

CODEC = Codec.of_model("builtin:tiny-qwen2", Path(), Path())
ROWS = [{"prompt": f"{n}=", "answer": str(n), "tag": "number"} for n in range(5)]


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def data_set(folder: Path, rows: list[dict[str, Any]], **options: Any) -> DataSet:
    jsonl(folder / "data.jsonl", rows)
    return DataSet(read_rows("data.jsonl", folder, "train"), CODEC, **options)


def reward(*tags: str, kind: str = "exactMatch", **options: Any) -> Reward:
    return Reward.model_validate(
        {"name": "r", "tags": list(tags), "scorer": {"kind": kind, "options": options}}
    )


def refused(data: DataSet, *rewards: Reward) -> str:
    with pytest.raises(UserError) as caught:
        data.check(rewards or [reward()])
    return str(caught.value)


@pytest.mark.parametrize("name", ["largest-of-three", "middle-of-three", "sums"])
def test_a_builtin_data_set_and_its_held_out_part_are_disjoint_and_always_the_same(
    name: str,
) -> None:
    train, held_out = builtin_rows(f"builtin:{name}"), builtin_rows(f"builtin:{name}/held-out")
    prompts = [json.dumps(row.get("prompt") or row["messages"]) for row in train + held_out]
    assert len(set(prompts)) == len(prompts)
    assert train == builtin_rows(f"builtin:{name}")
    assert len(held_out) * 4 == len(train)


def test_largest_of_three_asks_for_the_largest_in_characters_of_the_tiny_model() -> None:
    train, held_out = (
        builtin_rows("builtin:largest-of-three"),
        builtin_rows("builtin:largest-of-three/held-out"),
    )
    assert (len(train), len(held_out)) == (800, 200)
    for row in train + held_out:
        digits = row["prompt"].removesuffix("=").split(",")
        assert row["answer"] == max(digits)
        assert set(row["prompt"]) <= set(DIGITS_CHARSET)


def test_an_unknown_builtin_names_those_that_exist() -> None:
    with pytest.raises(UserError, match="builtin:largest-of-three"):
        read_rows("builtin:nope", Path(), "train")


def test_the_same_rows_are_read_from_every_format(tmp_path: Path) -> None:
    table = pyarrow.Table.from_pylist(ROWS)
    jsonl(tmp_path / "a.jsonl", ROWS)
    (tmp_path / "b.json").write_text(json.dumps(ROWS))
    pyarrow.parquet.write_table(table, tmp_path / "c.parquet")
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "state.json").write_text("{}")
    with pyarrow.ipc.new_stream(saved / "data-00000-of-00001.arrow", table.schema) as stream:
        stream.write_table(table)
    for name in ("a.jsonl", "b.json", "c.parquet", "saved"):
        rows = read_rows(name, tmp_path, "train")
        assert list(rows) == ROWS, name
        assert [rows[i] for i in range(len(rows))] == ROWS, name


def test_a_folder_gives_the_files_of_the_split(tmp_path: Path) -> None:
    folder = tmp_path / "set" / "data"
    folder.mkdir(parents=True)
    jsonl(folder / "train-0.jsonl", ROWS[:2])
    jsonl(folder / "train-1.jsonl", ROWS[2:4])
    jsonl(folder / "test-0.jsonl", ROWS[4:])
    train = read_rows("set", tmp_path, "train")
    assert list(train) == ROWS[:4]
    assert train.where(2).endswith("train-1.jsonl, line 1")
    assert list(read_rows("set", tmp_path, "validation")) == ROWS[4:]


@pytest.mark.parametrize(
    ("name", "train", "validation"),
    [
        ("latest.jsonl", True, True),  # no "test"
        ("device-contrain.jsonl", True, True),  # no "dev", no "train"
        ("Train_0.jsonl", True, False),
        ("train1.jsonl", True, False),
        ("dev/part.jsonl", False, True),
        ("test/train.jsonl", True, False),  # its own name counts before its folder's
        ("train-test.jsonl", True, True),
    ],
)
def test_a_split_is_a_whole_word_of_a_files_name(
    tmp_path: Path, name: str, train: bool, validation: bool
) -> None:
    file = tmp_path / "set" / name
    file.parent.mkdir(parents=True)
    jsonl(file, ROWS)
    for split, there in (("train", train), ("validation", validation)):
        if there:
            assert list(read_rows("set", tmp_path, split)) == ROWS
        else:
            with pytest.raises(UserError, match=rf"data\.{split}\.path: the folder .*/set has no"):
                read_rows("set", tmp_path, split)


def test_files_of_no_split_are_taken_where_none_is_of_the_split(tmp_path: Path) -> None:
    jsonl(tmp_path / "latest.jsonl", ROWS[:2])
    jsonl(tmp_path / "test.jsonl", ROWS[2:])
    assert list(read_rows(".", tmp_path, "train")) == ROWS[:2]
    assert list(read_rows(".", tmp_path, "validation")) == ROWS[2:]


def test_a_broken_line_is_named_with_its_file_and_number(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"prompt": "1="}\n\n{"prompt": \n')
    with pytest.raises(UserError, match=r"data\.jsonl, line 3: not JSON"):
        read_rows("data.jsonl", tmp_path, "train")
    (tmp_path / "data.jsonl").write_text('{"prompt": "1="}\n[1]\n')
    with pytest.raises(UserError, match=r"data\.jsonl, line 2: list instead of an object"):
        read_rows("data.jsonl", tmp_path, "train")


@pytest.mark.parametrize("name", ["no.jsonl", "./no", "a/b/c", "a/no.jsonl:main"])
def test_missing_data_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"data\.train\.path: there is no file or folder /[^,]*$"):
        read_rows(name, tmp_path, "train")


def test_unreadable_data_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"not parquet")
    with pytest.raises(UserError, match=r"bad\.parquet: not a parquet file"):
        read_rows("bad.parquet", tmp_path, "train")
    (tmp_path / "loop.jsonl").mkdir()
    with pytest.raises(UserError, match=r"has no \.jsonl"):
        read_rows("loop.jsonl", tmp_path, "train")


def test_an_empty_data_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text("\n\n")
    with pytest.raises(UserError, match="has no rows"):
        read_rows("data.jsonl", tmp_path, "train")


def test_the_content_hash_follows_the_content_and_not_the_place(tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", ROWS)
    jsonl(tmp_path / "b.jsonl", ROWS)
    jsonl(tmp_path / "c.jsonl", ROWS[:4])
    hashes = [read_rows(f"{n}.jsonl", tmp_path, "train").content_hash for n in "abc"]
    assert hashes[0] == hashes[1] != hashes[2]


def test_an_epoch_visits_every_row_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    data = data_set(tmp_path, ROWS * 4, seed=3)
    first = [data.row(position) for position in range(20)]
    second = [data.row(position) for position in range(20, 40)]
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    assert first == list(permutation(3, 0, data.content_hash, 20))
    assert [data.row(position, validation=True) for position in range(3)] == [0, 1, 2]


def from_hub(folder: Path, *asked: tuple[str, str]) -> list[Any]:
    """(id, split) read by a process of its own, whose folder `hub` is what the library finds without a network."""
    program = (
        "import json, sys; from pathlib import Path\n"
        "from roll_workers.environment.envs.rows import read_rows\n"
        "from roll_workers.errors import UserError\n"
        "for path, split in json.loads(sys.argv[1]):\n"
        "    try:\n"
        "        rows = read_rows(path, Path(sys.argv[2]), split)\n"
        "        told = [rows[0], rows.where(1), [row['prompt'] for row in rows], rows.content_hash]\n"
        "    except UserError as error:\n"
        "        told = str(error)\n"
        "    print(json.dumps(told))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, json.dumps(asked), str(folder / "job")],
        cwd=folder / "hub",
        env=os.environ | {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_a_hugging_face_id_is_read_with_its_splits_whatever_they_are_called(tmp_path: Path) -> None:
    for name in ("digits", "exam", "odd", "both"):
        (tmp_path / "hub" / "team" / name).mkdir(parents=True)
    hub = tmp_path / "hub" / "team"
    jsonl(hub / "digits" / "train.jsonl", ROWS)
    jsonl(hub / "digits" / "test.jsonl", ROWS[3:])
    jsonl(hub / "exam" / "test.jsonl", ROWS[1:])
    (hub / "odd" / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n"
        "  - {split: easy, path: easy.jsonl}\n  - {split: hard, path: hard.jsonl}\n---\n"
    )
    jsonl(hub / "odd" / "easy.jsonl", ROWS)
    jsonl(hub / "odd" / "hard.jsonl", ROWS)
    (hub / "both" / "README.md").write_text(
        "---\nconfigs:\n- {config_name: main, data_files: main.jsonl}\n"
        "- {config_name: short, data_files: short.jsonl}\n---\n"
    )
    jsonl(hub / "both" / "main.jsonl", ROWS)
    jsonl(hub / "both" / "short.jsonl", ROWS[3:])

    train, held_out, again, only, odd, none, short, unnamed = from_hub(
        tmp_path,
        ("team/digits", "train"),
        ("team/digits", "validation"),
        ("team/digits", "train"),
        ("team/exam", "train"),
        ("team/odd", "train"),
        ("team/nothing", "train"),
        ("team/both:short", "train"),
        ("team/both", "train"),
    )
    assert train[:3] == [ROWS[0], "team/digits, row 2", [row["prompt"] for row in ROWS]]
    assert held_out[2] == ["3=", "4="]
    assert again == train and held_out[3] != train[3]
    assert only[2] == ["1=", "2=", "3=", "4="], "of one split there is no choice"
    assert "team/odd has the splits easy, hard, none of which is called train" in odd
    assert "there is no file or folder" in none and "team/nothing" in none
    assert short[2] == ["3=", "4="]
    assert "write team/both:CONFIG" in unnamed and "['main', 'short']" in unnamed


def test_the_order_is_the_same_on_every_machine() -> None:
    assert list(permutation(42, 1, "abc", 8)) == [5, 4, 3, 2, 6, 1, 7, 0]


def test_a_row_becomes_prompt_tokens_and_facts(tmp_path: Path) -> None:
    data = data_set(tmp_path, [{"prompt": "3,7=", "answer": 7, "level": {"a": [1]}}])
    trajectory = Trajectory.FromString(data.payload(0))
    [sequence] = sequences(trajectory)
    assert list(sequence.tokens) == CODEC.encode("3,7=")
    assert not sequence.action_mask.any()
    assert trajectory.pieces[0].kind == Piece.PROMPT
    facts = {key: json.loads(value) for key, value in trajectory.facts.items()}
    assert facts == {"prompt": "3,7=", "answer": 7, "tag": "default", "level": {"a": [1]}}


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    columns = Columns(prompt="question", answer="solution", tag="kind")
    row = {"question": "1=", "solution": "1", "kind": "number"}
    data = data_set(tmp_path, [row], columns=columns)
    data.check([reward("number")])
    facts = Trajectory.FromString(data.payload(0)).facts
    assert (facts["prompt"], facts["answer"], facts["tag"]) == ('"1="', '"1"', '"number"')


def test_a_row_without_a_prompt_is_named_with_its_columns(tmp_path: Path) -> None:
    message = refused(data_set(tmp_path, [ROWS[0], {"question": "1=", "answer": "1"}]))
    assert "data.jsonl, line 2: no text in 'prompt'" in message
    assert "question, answer" in message
    assert "data.train.promptKey" in message


def test_a_tag_without_a_reward_is_named_with_its_row(tmp_path: Path) -> None:
    rows = [*ROWS, {"prompt": "1=", "answer": "1", "tag": "verse"}]
    message = refused(data_set(tmp_path, rows), reward("number"))
    assert "line 6: no reward has the tag 'verse'" in message
    data_set(tmp_path, rows).check([reward("number"), reward("verse")])
    data_set(tmp_path, rows).check([reward()])


def test_a_row_without_the_answer_that_its_reward_needs_is_named(tmp_path: Path) -> None:
    data = data_set(tmp_path, [ROWS[0], {"prompt": "1="}])
    assert "line 2: no 'answer'" in refused(data)
    assert "line 2: no 'answer'" in refused(data, reward(kind="regex", pattern="(a)"))
    data.check([reward(kind="regex", pattern="a")])
    data.check([reward(kind="regex", pattern="(")])  # for the reward role to tell


def test_a_system_message_that_no_prompt_would_show_is_refused(tmp_path: Path) -> None:
    row = {"prompt": "1=", "answer": "1"}
    assert "chatTemplate" in refused(data_set(tmp_path, [row], chat="Never", system="Be brief."))
    assert "chatTemplate" in refused(data_set(tmp_path, [row], chat_options={"thinking": False}))


def test_a_prompt_that_does_not_fit_the_model_is_named(tmp_path: Path) -> None:
    data = data_set(tmp_path, [ROWS[0], {"prompt": "1" * 11, "answer": "1"}], max_prompt_tokens=10)
    assert "line 2: the prompt has 11 tokens" in refused(data)
    with pytest.raises(UserError, match="line 2"):
        data.payload(1)


def test_a_character_without_a_token_is_named(tmp_path: Path) -> None:
    data = data_set(tmp_path, [ROWS[0], {"prompt": "a=", "answer": "1"}])
    told = r"line 2: the model's tokenizer can't encode 'a=': it knows only the characters 0123456789,="
    with pytest.raises(UserError, match=told):
        data.payload(1)


def test_messages_without_a_chat_template_are_refused(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "1="}], "answer": "1"}
    assert "no chat template" in refused(data_set(tmp_path, [row]))
    row = {"messages": "1=", "answer": "1"}
    assert "not a list of {role, content} messages" in refused(data_set(tmp_path, [row]))
