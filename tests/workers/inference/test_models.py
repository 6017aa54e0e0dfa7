"""Where a model comes from: made in place, a folder, the hub; and what is wrong with it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from roll_workers.builtin import models
from roll_workers.errors import UserError
from transformers import AutoModelForCausalLM


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture
def copy(storage: Path, tmp_path: Path) -> Path:
    made = models.resolve_model("builtin:tiny-qwen2", storage, storage)
    return Path(shutil.copytree(made, tmp_path / "model"))


def test_a_builtin_model_is_a_real_checkpoint_of_a_third_of_a_million(storage: Path) -> None:
    folder = models.resolve_model("builtin:tiny-qwen2", storage, storage)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert 0.32e6 < sum(p.numel() for p in model.parameters()) < 0.34e6
    assert model.config.vocab_size == len(models.load_tokenizer(str(folder), storage, storage))


@pytest.mark.parametrize("name", sorted(models.CHARSETS))
def test_every_character_is_one_token_before_and_after_saving(storage: Path, name: str) -> None:
    made = models.load_tokenizer(f"builtin:{name}", storage, storage)
    folder = models.resolve_model(f"builtin:{name}", storage, storage)
    saved = models.load_tokenizer(str(folder), storage, storage)
    charset = models.CHARSETS[name]
    for tokenizer in (made, saved):
        ids = tokenizer(charset)["input_ids"]
        assert ids == list(range(3, 3 + len(charset)))
        assert tokenizer.decode(ids) == charset
        assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id) == (0, 1, 2)


def test_processes_that_race_get_one_complete_folder(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from roll_workers.builtin.models import resolve_model;"
        f"p = Path({str(tmp_path)!r}); print(resolve_model('builtin:tiny-qwen2', p, p))"
    )
    racing = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    found = {process.communicate(timeout=120)[0].strip() for process in racing}
    assert len(found) == 1
    assert [p.name for p in (tmp_path / "models").iterdir() if not p.name.endswith(".lock")] == [
        Path(found.pop()).name
    ]


def test_equal_recipes_give_equal_bytes(storage: Path, tmp_path: Path) -> None:
    first, second = (models.resolve_model("builtin:tiny-qwen2", s, s) for s in (storage, tmp_path))
    assert first.name == second.name
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes()


def test_the_tokenizer_needs_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from roll_workers.builtin.models import *;"
        "assert 'transformers' not in sys.modules;"
        f"load_tokenizer('builtin:tiny-qwen2', Path({str(tmp_path)!r}), Path());"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_relative_folder_resolves_against_the_job(copy: Path, storage: Path) -> None:
    assert models.resolve_model("model", storage, copy.parent) == copy


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_folder_is_named_with_what_it_lacks(
    copy: Path, storage: Path, missing: str
) -> None:
    (copy / missing).unlink()
    (copy / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match=missing) as error:
        models.resolve_model(str(copy), storage, storage)
    assert str(copy) in str(error.value)


def test_a_missing_shard_is_named(copy: Path, storage: Path) -> None:
    (copy / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"model-00001-of-00002\.safetensors"):
        models.resolve_model(str(copy), storage, storage)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("builtin:nothing", "there are builtin:tiny-qwen2"),
        ("./nowhere", "nowhere does not exist"),
        ("no-such-organisation/no-such-model", "neither a folder"),
    ],
)
def test_what_is_not_there_says_so(
    storage: Path, path: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=says):
        models.resolve_model(path, storage, storage)


def test_the_context_is_what_positions_and_window_allow() -> None:
    assert models.context_length({"max_position_embeddings": 512}) == 512
    assert models.context_length({"n_positions": 64}) == 64
    assert models.context_length({}) is None
    sliding = {"max_position_embeddings": 512, "sliding_window": 128}
    assert models.context_length(sliding) == 128
    assert models.context_length(sliding | {"use_sliding_window": False}) == 512
    assert models.context_length(sliding | {"layer_types": ["full_attention"]}) == 512
