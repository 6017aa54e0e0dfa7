"""What a job names is looked at before anything starts: all that is wrong is told at once, at its key."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from roll_api import builtins, load_job
from roll_operator.cli.named import Checked, check
from roll_operator.cli.rows import LINES
from roll_operator.cli.validate import validate_files
from roll_workers.builtin import data, models
from roll_workers.environment.envs.dataset import Columns, facts_of
from roll_workers.environment.envs.rows import read_rows
from roll_workers.errors import UserError
from roll_workers.reward.samples import scored_sample
from roll_workers.reward.scorers import Reward
from roll_workers.reward.scorers.python import Python
from ruamel.yaml import YAML
from support.objects import changed

BASE: dict[str, Any] = {
    "apiVersion": "roll.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "mine"},
    "spec": {
        "model": {"path": "builtin:tiny-qwen2"},
        "data": {"train": {"path": "rows.jsonl"}},
        "rewards": [{"name": "mine", "scorer": {"python": "rewards.py:score"}}],
        "roles": {"inference": {}, "reward": {}, "environment": {}},
    },
}
AGENTIC = {
    "spec.pipeline": "Agentic",
    "spec.rewards": [],
    "spec.environment": {"python": "world.py:World"},
}
ROW = {"prompt": "1,2,3=", "answer": "3"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    (tmp_path / "rewards.py").write_text("def score(response):\n    return 1.0\n")
    return tmp_path


def written(folder: Path, changes: dict[str, Any], remove: list[str] | None = None) -> Path:
    file = folder / "job.yaml"
    with file.open("w") as out:
        YAML().dump(changed(BASE, changes, remove), out)
    return file


def checked(folder: Path, changes: dict[str, Any], remove: list[str] | None = None) -> Checked:
    file = written(folder, changes, remove)
    return check(load_job(file), file)


def errors(folder: Path, changes: dict[str, Any], remove: list[str] | None = None) -> list[str]:
    found = checked(folder, changes, remove)
    assert found.warnings == []
    return [f"{p.key_path}: {p.message}".replace(f"{folder}/", "") for p in found.errors]


def test_what_is_there_and_in_order_is_not_mentioned(folder: Path) -> None:
    assert checked(folder, {}) == Checked()


@pytest.mark.parametrize(
    ("key", "template", "said"),
    [
        (
            "roles.trainer",
            {"spec": {"containers": [{"name": "trainer"}, {"image": "log:1"}]}},
            ".spec.containers[1].name: a text or a number is expected, not nothing",
        ),
        (
            "roles.inference",
            {"spec": {"volumes": {"name": "v"}}},
            ".spec.volumes: a list is expected, not {'name': 'v'}",
        ),
        ("scheduler", {"sepc": {}}, ".sepc: a pod template has metadata and spec only"),
    ],
)
def test_a_template_that_makes_no_pod(
    folder: Path, key: str, template: dict[str, Any], said: str
) -> None:
    assert errors(folder, {f"spec.{key}.template": template}) == [f"spec.{key}.template{said}"]


def test_a_template_is_told_with_its_line(folder: Path) -> None:
    found = checked(folder, {"spec.roles.reward.template": {"spec": {"volumes": 3}}})
    lines = (folder / "job.yaml").read_text().splitlines()
    assert "volumes: 3" in lines[found.errors[0].line - 1]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def score(:\n", "rewards.py, line 1: invalid syntax"),
        ("def scores(): ...\nx = 1\n", "rewards.py has no 'score'; it has scores"),
        ("", "rewards.py has no 'score'"),
        (None, "there is no file rewards.py"),
    ],
)
def test_a_reward_that_cannot_be_called(folder: Path, code: str | None, said: str) -> None:
    (folder / "rewards.py").unlink()
    if code is not None:
        (folder / "rewards.py").write_text(code)

    assert errors(folder, {}) == [f"spec.rewards[0].scorer.python: {said}"]


@pytest.mark.parametrize(
    "code",
    [
        "from others import score\n",
        "from others import other as score\n",
        "from others import *\n",
        "score = lambda response: 1.0\n",
        "score: object = print\n",
        "try:\n    from fast import score\nexcept ImportError:\n    def score(): ...\n",
        "if True:\n    pass\nelse:\n    async def score(): ...\n",
        "a, score = 1, 2\n",
        "def __getattr__(name): ...\n",
    ],
)
def test_a_name_may_come_into_a_file_in_any_way(folder: Path, code: str) -> None:
    (folder / "rewards.py").write_text(code)

    assert errors(folder, {}) == []


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("class Other: ...\n", ["world.py has no 'World'; it has Other"]),
        ("class World:\n    def reset(self, seed): ...\n", ["world.py, line 1: World has no step"]),
        ("class World(Base): ...\n", []),
        ("class World:\n    def reset(self): ...\n    def step(self, action): ...\n", []),
    ],
)
def test_an_environment_needs_its_two_methods(folder: Path, code: str, said: list[str]) -> None:
    (folder / "world.py").write_text(code)

    found = errors(folder, AGENTIC, ["spec.data"])

    assert found == [f"spec.environment.python: {words}" for words in said]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ["rows.jsonl has no rows"]),
        ("[1]\n", ["rows.jsonl, line 1: list instead of an object"]),
        (
            '{"messages": [{"role": "user"}]}\n',
            ["rows.jsonl, line 1: 'messages' is not a list of {role, content} messages"],
        ),
        (
            '{"prompt": "1"}\n{"prompt"\n\n{"q": "1"}\n',
            [
                "rows.jsonl, line 2: not JSON: Expecting ':' delimiter: line 2 column 1 (char 10)",
                "rows.jsonl, line 4: no text in 'prompt' and no 'messages'; its columns are q; "
                "promptKey and messagesKey name others",
            ],
        ),
    ],
)
def test_rows_that_cannot_be_used(folder: Path, text: str, said: list[str]) -> None:
    (folder / "rows.jsonl").write_text(text)

    assert errors(folder, {}) == [f"spec.data.train.path: {words}" for words in said]


def test_the_lines_of_one_mistake_stand_together_ten_by_number(folder: Path) -> None:
    (folder / "rows.jsonl").write_text(json.dumps(ROW) + "\n" + "[]\n" * 13)

    assert errors(folder, {}) == [
        "spec.data.train.path: rows.jsonl, lines 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 3 more: "
        "list instead of an object"
    ]


def test_ten_different_mistakes_are_told(folder: Path) -> None:
    (folder / "rows.jsonl").write_text("".join(f"[{' ' * n}\n" for n in range(13)))

    found = errors(folder, {})

    assert len(found) == 10
    assert found[-1].endswith("; and more")


def test_rows_need_an_answer_and_a_reward_where_they_are_judged_by_it(folder: Path) -> None:
    rows = [ROW | {"tag": "a"}, {"prompt": "x", "tag": "a"}, ROW | {"tag": "b"}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    exact = {"name": "exact", "tags": ["a"], "scorer": {"kind": "exactMatch"}}

    assert errors(folder, {"spec.rewards": [exact]}) == [
        "spec.data.train.path: rows.jsonl, line 2: no 'answer', which its rewards compare with; "
        "answerKey names another",
        "spec.data.train.path: rows.jsonl, line 3: no reward has the tag 'b' of this row",
    ]


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        ("def score(response, answer): ...", "answer"),
        ("async def score(response, level, *, hint, depth=1): ...", "hint, level"),
        ("def score(prompt, response, tag, tokens, turns, answer='', **facts): ...", None),
        ("def score(level, bonus, task): ...", "level"),
        ("import functools\n@functools.cache\ndef score(answer): ...", None),
        ("try:\n    from fast import score\nexcept ImportError:\n    def score(gold): ...", None),
        ("if 1:\n    def score(): ...\nelse:\n    def score(gold): ...", None),
        ("if 1:\n    def score(gold): ...", None),
        ("def score(gold): ...\nfrom other import *", None),
        ("def score(gold): ...\nscore = print", None),
        ("def __getattr__(name): ...", None),
    ],
)
def test_rows_have_the_columns_that_a_function_asks_for(
    folder: Path, code: str, missing: str | None
) -> None:
    (folder / "rewards.py").write_text(code)
    (folder / "rows.jsonl").write_text('{"prompt": "x", "task": "y"}\n')
    options = {"spec.rewards.0.scorer.options": {"bonus": 1}}

    assert errors(folder, options) == (
        []
        if missing is None
        else [
            f"spec.data.train.path: rows.jsonl, line 1: no {missing}, which rewards.py:score asks for; "
            "it is given bonus, prompt, response, tag, task, tokens, turns"
        ]
    )


@pytest.mark.parametrize(
    ("row", "keys"),
    [
        (ROW | {"level": None}, {}),
        ({"prompt": "x", "answer": None, "messages": None, "tag": None}, {}),
        (
            {"question": "x", "result": "y", "kind": "z"},
            {"prompt": "question", "answer": "result", "tag": "kind"},
        ),
        (
            {"prompt": "x", "result": None, "answer": "y", "tag": "z"},
            {"answer": "result", "tag": "kind"},
        ),
        ({"prompt": "x", "answer": None}, {"answer": "result"}),
        ({"talk": [{"role": "user", "content": "x"}], "messages": None}, {"messages": "talk"}),
        ({"prompt": "x", "talk": None, "messages": None}, {"messages": "talk"}),
    ],
)
def test_rows_have_what_a_worker_gives_of_them(
    folder: Path, row: dict[str, Any], keys: dict[str, str]
) -> None:
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    given = names_that_a_worker_gives(folder, row, keys)

    for name in {"prompt", "messages", "answer", "tag", "response", *row}:
        (folder / "rewards.py").write_text(f"def score({name}): ...")
        said = errors(folder, {f"spec.data.train.{role}Key": key for role, key in keys.items()})
        assert [f"no {name}, which" in words for words in said] == [True] * (name not in given)


def names_that_a_worker_gives(folder: Path, row: dict[str, Any], keys: dict[str, str]) -> set[str]:
    (folder / "rewards.py").write_text("def score(**facts): return dict.fromkeys(facts, 1.0)")
    facts = facts_of(row, Columns(**keys))
    written = {key: json.dumps(value) for key, value in facts.items()}

    async def judged() -> Reward:
        function = Python("rewards.py:score", folder, 20.0, {})
        await function.start()
        try:
            return await function.score(scored_sample(written, "", 0, []))
        finally:
            await function.close()

    return set(asyncio.run(judged()).parts)


def test_of_a_large_file_the_beginning_is_looked_at_and_that_is_said(folder: Path) -> None:
    (folder / "rows.jsonl").write_text((json.dumps(ROW) + "\n") * LINES + "nothing\n")

    found = checked(folder, {})

    assert found.errors == []
    assert found.notes == [f"the first {LINES} lines of rows.jsonl were looked at"]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("model.path", "builtin:tiny-qwen3", "there is no builtin:tiny-qwen3; there are builtin:"),
        ("model.path", "./model", "there is no file or folder model"),
        ("data.train.path", "builtin:nothing/held-out", "there is no builtin:nothing; there are"),
        ("data.train.path", "other.jsonl", "there is no file or folder other.jsonl"),
        ("data.train.path", "data/a.jsonl:main", "there is no file or folder data/a.jsonl:main"),
        ("data.train.path", "openai/gsm8k:", "there is no file or folder openai/gsm8k:"),
        ("model.path", "a/b:main", "there is no file or folder a/b:main"),
    ],
)
def test_what_is_not_there(folder: Path, key: str, value: Any, said: str) -> None:
    (found,) = errors(folder, {f"spec.{key}": value})

    assert found.startswith(f"spec.{key}")
    assert said in found


@pytest.mark.parametrize(
    ("file", "train", "validation"),
    [
        ("part.jsonl", True, True),
        ("train-0.jsonl", True, False),
        ("test/part.parquet", False, True),
        ("dataset_info.json", False, False),
        ("notes.txt", False, False),
    ],
)
def test_a_folder_without_files_of_the_split_is_told_as_its_worker_would(
    folder: Path, file: str, train: bool, validation: bool
) -> None:
    place = folder / "set" / file
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(ROW) + "\n")
    sources = {"train": {"path": "set"}, "validation": {"path": "set"}}
    told = errors(folder, {"spec.data": sources})
    assert [
        f"spec.data.{split}.path: the folder set has no " in "\n".join(told) for split in sources
    ] == [not train, not validation]
    for split, there in (("train", train), ("validation", validation)):
        if not there:
            with pytest.raises(UserError, match=rf"data\.{split}\.path: the folder .*/set has no "):
                read_rows("set", folder, split)


def test_an_id_of_a_hub_is_for_workers_to_judge(folder: Path) -> None:
    assert errors(folder, {"spec.model.path": "a/b", "spec.data.train.path": "c/d"}) == []
    assert errors(folder, {"spec.data.train.path": "c/d:main"}) == []


def test_an_absolute_path_may_be_there_on_a_cluster(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(folder, {"spec.data.train.path": "/nowhere/rows.jsonl"})

    assert validate_files([file], cluster=False, as_json=False) == 0
    shown = capsys.readouterr()
    assert "mine is valid" in shown.out
    assert "warning" in shown.err
    assert "/nowhere/rows.jsonl" in shown.err


def test_builtins_are_those_of_the_workers() -> None:
    assert set(builtins.MODELS) == {*models.CHARSETS, models.SMOLLM2}
    assert set(builtins.DATA) == set(data._SETS)
