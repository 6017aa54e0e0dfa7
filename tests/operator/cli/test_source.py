"""Which files go along with a job, and in what form: the rule, its limits, and what never leaves the machine."""

import gzip
import io
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
from roll_api import InvalidJob, RLJob, load_job
from roll_operator.cli.archive import LIMIT, pack
from roll_operator.cli.source import Files, collect
from roll_operator.controller.folder import RunError
from ruamel.yaml import YAML

BASE: dict[str, Any] = {
    "apiVersion": "roll.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "sums"},
    "spec": {
        "steps": 10,
        "model": {"path": "builtin:tiny-qwen2"},
        "data": {"train": {"path": "builtin:largest-of-three"}},
        "rewards": [{"name": "mine", "scorer": {"python": "rewards.py:score"}}],
        "roles": {r: {"replicas": 1} for r in ("trainer", "inference", "reward", "environment")},
    },
}
SCORE = "def score(response):\n    return 1.0\n"


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def job_in(folder: Path, **spec: Any) -> tuple[RLJob, Path]:
    file = folder / "job.yaml"
    with file.open("w") as target:
        YAML().dump(BASE | {"spec": BASE["spec"] | spec}, target)
    return load_job(file), file


def names(folder: Path, *include: str, **spec: Any) -> list[str]:
    return list(collect(*job_in(folder, **spec), include))


def test_a_reward_goes_along_with_what_it_imports_from_its_folder(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "rewards.py": "import json, words\nfrom checks.numbers import near\nimport torch.nn\n",
            "words.py": "def f():\n    import late\n",
            "late.py": "from . import nothing\n",
            "checks/__init__.py": "",
            "checks/numbers.py": "from .deep import more\nimport shared.x\n",
            "checks/deep/more.py": "",
            "checks/table.csv": "1",
            "checks/__pycache__/numbers.pyc": "",
            "shared/x.py": "",
            "unrelated.py": "",
            "notes.txt": "",
        },
    )
    assert names(tmp_path) == [
        "checks/__init__.py",
        "checks/deep/more.py",
        "checks/numbers.py",
        "late.py",
        "rewards.py",
        "shared/x.py",
        "words.py",
    ]


def test_neighbours_are_those_of_the_python_file(tmp_path: Path) -> None:
    write(tmp_path, {"code/rewards.py": "import words", "code/words.py": "", "words.py": "x"})
    rewards = [{"name": "mine", "scorer": {"python": "code/rewards.py:score"}}]
    assert names(tmp_path, rewards=rewards) == ["code/rewards.py", "code/words.py"]


def test_modules_that_import_each_other_end(tmp_path: Path) -> None:
    write(tmp_path, {"rewards.py": "import a", "a.py": "import b", "b.py": "import a, rewards"})
    assert names(tmp_path) == ["a.py", "b.py", "rewards.py"]


def test_data_models_and_folders_go_along_whole(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "rewards.py": SCORE,
            "data/train/0.jsonl": "{}",
            "data/train/more/1.jsonl": "{}",
            "data/train/.cache/x": "secret",
            "data/train/.env": "secret",
            "held_out.parquet": "",
            "tiny/config.json": "{}",
        },
    )
    data = {"train": {"path": "data/train"}, "validation": {"path": "./held_out.parquet"}}
    assert names(tmp_path, data=data, model={"path": "tiny"}) == [
        "data/train/0.jsonl",
        "data/train/more/1.jsonl",
        "held_out.parquet",
        "rewards.py",
        "tiny/config.json",
    ]


@pytest.mark.parametrize(
    "path",
    [
        *("builtin:largest-of-three", "openai/gsm8k", "openai/gsm8k:main", "gsm8k"),
        *("/data/train.jsonl", "~/train.jsonl"),
    ],
)
def test_what_pods_find_themselves_stays(tmp_path: Path, path: str) -> None:
    write(tmp_path, {"rewards.py": SCORE})
    assert names(tmp_path, data={"train": {"path": path}}) == ["rewards.py"]


def test_an_environment_of_ones_own_goes_along(tmp_path: Path) -> None:
    write(tmp_path, {"worlds/guess.py": "import dice", "worlds/dice.py": ""})
    agentic = {"pipeline": "Agentic", "data": None, "rewards": []}
    found = names(tmp_path, **agentic, environment={"python": "worlds/guess.py:Guess"})
    assert found == ["worlds/dice.py", "worlds/guess.py"]


def test_more_files_are_named_by_pattern(tmp_path: Path) -> None:
    write(tmp_path, {"rewards.py": SCORE, "w/a.txt": "", "w/b.txt": "", "c.txt": "", "d.txt": ""})
    assert names(tmp_path, "w", "c*.txt") == ["c.txt", "rewards.py", "w/a.txt", "w/b.txt"]


@pytest.mark.parametrize(
    ("spec", "key", "words"),
    [
        ({}, "spec.rewards[0].scorer.python", "there is no file"),
        ({"data": {"train": {"path": "no.jsonl"}}}, "spec.data.train.path", "there is no file"),
        ({"data": {"train": {"path": "./none"}}}, "spec.data.train.path", "there is no file"),
        ({"data": {"train": {"path": "d/a.jsonl:x"}}}, "spec.data.train.path", "there is no file"),
        ({"model": {"path": "a/b/c"}}, "spec.model.path", "there is no file or folder"),
        ({"model": {"path": "a/b:main"}}, "spec.model.path", "there is no file or folder"),
        ({"data": {"train": {"path": "../x.jsonl"}}}, "spec.data.train.path", "leads out"),
        ({"data": {"train": {"path": "a/../../x.jsonl"}}}, "spec.data.train.path", "leads out"),
        (
            {"rewards": [{"name": "a", "scorer": {"python": "../evil.py:score"}}]},
            "spec.rewards[0].scorer.python",
            "leads out",
        ),
    ],
)
def test_what_cannot_go_along_is_named_with_its_line(
    tmp_path: Path, spec: dict[str, Any], key: str, words: str
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    write(tmp_path, {"x.jsonl": "{}", "evil.py": ""})
    with pytest.raises(InvalidJob) as caught:
        names(folder, **spec)
    (problem,) = (p for p in caught.value.problems if p.key_path == key)
    assert words in problem.message
    assert problem.line is not None


def test_a_file_that_python_cannot_read_is_told_before_it_is_sent(tmp_path: Path) -> None:
    write(tmp_path, {"rewards.py": "import words", "words.py": "x = 1\ndef (:\n"})
    with pytest.raises(InvalidJob, match=r"words\.py, line 2"):
        names(tmp_path)


@pytest.mark.parametrize(("pattern", "words"), [("no*", "nothing"), ("../*", "leads out"), ("/etc/passwd", "leads out")])  # fmt: skip
def test_a_pattern_that_fits_nothing_or_leads_out_is_refused(
    tmp_path: Path, pattern: str, words: str
) -> None:
    write(tmp_path, {"rewards.py": SCORE})
    with pytest.raises(InvalidJob, match=words):
        names(tmp_path, pattern)


def test_a_link_to_a_file_becomes_the_file_and_links_to_folders_are_not_followed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "job"
    write(folder, {"rewards.py": SCORE, "data/a.jsonl": "{}"})
    write(tmp_path, {"far/b.jsonl": "far"})
    (folder / "data/b.jsonl").symlink_to(tmp_path / "far/b.jsonl")
    (folder / "data/loop").symlink_to(folder / "data")
    (folder / "data/dead.jsonl").symlink_to("nowhere")
    job, file = job_in(folder, data={"train": {"path": "data"}})
    archive = pack(collect(job, file))
    assert archive is not None
    with tarfile.open(fileobj=io.BytesIO(archive.packed)) as tar:
        assert tar.getnames() == ["data/a.jsonl", "data/b.jsonl", "rewards.py"]
        assert all(member.isreg() for member in tar)
        content = tar.extractfile("data/b.jsonl")
        assert content is not None
        assert content.read() == b"far"


def test_the_same_files_have_the_same_digest_wherever_and_whenever(tmp_path: Path) -> None:
    archives = []
    for name, mode, time in (("one", 0o600, 1.0), ("two", 0o755, 2e9)):
        folder = tmp_path / name
        write(folder, {"b.py": "b", "a.py": "a"})
        for file in folder.iterdir():
            file.chmod(mode)
            os.utime(file, (time, time))
        archives.append(pack({file.name: file for file in sorted(folder.iterdir())}))
    assert archives[0] == archives[1]
    (tmp_path / "two/a.py").write_text("c")
    changed = pack({name: tmp_path / "two" / name for name in ("a.py", "b.py")})
    assert changed is not None
    assert archives[0] is not None
    assert changed.digest != archives[0].digest


def test_a_job_without_files_has_no_archive() -> None:
    assert pack({}) is None


def test_what_is_too_large_is_named_with_a_way_out(tmp_path: Path) -> None:
    noise = random.Random(1)
    files: Files = {}
    for name, size in (("large.jsonl", LIMIT), ("small.py", 10), ("middle.bin", 5000)):
        files[name] = tmp_path / name
        files[name].write_bytes(noise.randbytes(size))
    with pytest.raises(RunError) as caught:
        pack(files)
    said = str(caught.value)
    assert "more than the 700 kB" in said
    assert "large.jsonl (700 kB), middle.bin (5 kB), small.py (10 bytes)" in said
    assert "claim" in said
    assert "hub" in said


def test_what_compresses_well_goes_along(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "1+1="}\n' * 200_000)
    archive = pack({"a.jsonl": tmp_path / "a.jsonl"})
    assert archive is not None
    assert len(archive.packed) < LIMIT
    assert len(gzip.decompress(archive.packed)) > 3_000_000


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "huge.parquet").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(RunError, match=r"1000\.0 GB.*huge\.parquet"):
        pack({"huge.parquet": tmp_path / "huge.parquet"})
