"""The decode loop against plain forward passes and the library's own `generate`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from roll_workers.builtin.models import resolve_model
from roll_workers.inference.engines import Delta, Request
from roll_workers.inference.engines.llama import Llama
from roll_workers.inference.engines.passes import Generic
from roll_workers.inference.engines.sampling import reseed, uniforms
from roll_workers.inference.engines.transformers import TransformersEngine, load_model
from roll_workers.truncation import ruled_out
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

EOS = 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    storage = tmp_path_factory.mktemp("storage")
    return resolve_model("builtin:tiny-qwen2", storage, storage)


@pytest.fixture
def engine(folder: Path) -> TransformersEngine:
    return TransformersEngine.from_folder(folder, slots=4, stride=3)


class Answer:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.finish = ""

    def add(self, delta: Delta) -> None:
        assert not self.finish
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs
        self.versions += [delta.version] * len(delta.tokens)
        self.finish = delta.finish


def collect(deltas: Iterable[Delta], into: dict[Any, Answer]) -> None:
    for delta in deltas:
        into.setdefault(delta.id, Answer()).add(delta)


def run(engine: TransformersEngine, requests: Iterable[Request]) -> dict[Any, Answer]:
    for request in requests:
        engine.submit(request)
    answers: dict[Any, Answer] = {}
    while engine.busy:
        collect(engine.step(), answers)
    return answers


def prompts(n: int, vocabulary: int = 15, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 40, n)
    return [rng.integers(3, vocabulary, k).astype(np.int32) for k in lengths]


def truncate(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    return logits.masked_fill(ruled_out(logits, top_k, top_p), -torch.inf)


def forward_logits(model: Any, prompt: np.ndarray, tokens: list[int]) -> torch.Tensor:
    """The logits that each of `tokens` was drawn from, by one plain pass."""
    ids = torch.tensor([[*prompt.tolist(), *tokens]])
    with torch.no_grad():
        return model(ids).logits[0, len(prompt) - 1 : -1].float()


def of_tokens(logprobs: torch.Tensor, tokens: list[int]) -> np.ndarray:
    return logprobs.gather(-1, torch.tensor(tokens)[:, None])[:, 0].numpy()


def assert_greedy_equals_generate(model_folder: Path, vocabulary: int, dtype: str = "auto") -> None:
    engine = TransformersEngine.from_folder(model_folder, dtype=dtype, slots=4, stride=3)
    reference = AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype)
    given = prompts(13, vocabulary)
    requests = [
        Request(i, p, seed=i, max_new_tokens=3 + 5 * (i % 4), temperature=0.0, stop=(EOS,))
        for i, p in enumerate(given)
    ]
    answers = run(engine, requests)
    for i, prompt in enumerate(given):
        expected = reference.generate(
            torch.tensor([prompt.tolist()]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=requests[i].max_new_tokens,
            do_sample=False,
            eos_token_id=EOS,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
        assert answers[i].tokens == expected
        assert answers[i].finish == ("stop" if expected[-1] == EOS else "length")


def test_greedy_tokens_equal_generate_with_mixed_lengths_in_reused_slots(folder: Path) -> None:
    assert_greedy_equals_generate(folder, vocabulary=15)


def test_grouped_heads_and_tied_embeddings_decode_as_generate_does(tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    assert load_model(tmp_path).config._attn_implementation == "roll_slots"
    assert_greedy_equals_generate(tmp_path, vocabulary=40)


def tiny_llama(where: Path, vocabulary: int = 40, width: int = 8) -> Path:
    """Grouped heads, tied embeddings, positions scaled as in Llama 3, and norms that are not 1."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=width,
        initializer_range=0.2,
        tie_word_embeddings=True,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0, 0.3)
    model.save_pretrained(where)
    return where


@pytest.mark.parametrize("looked_up", [True, False])
@pytest.mark.parametrize("family", ["qwen2", "llama", "llama of few tokens"])
def test_the_written_out_passes_give_the_log_probs_of_the_library(
    folder: Path, tmp_path: Path, family: str, looked_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not looked_up:
        monkeypatch.setattr("roll_workers.inference.engines.llama.LOOKED_UP", 0)
    where = {
        "qwen2": lambda: folder,
        "llama": lambda: tiny_llama(tmp_path),
        "llama of few tokens": lambda: tiny_llama(tmp_path, vocabulary=15, width=16),
    }[family]()
    ours = TransformersEngine.from_folder(where, slots=5, stride=7)
    library = TransformersEngine.from_folder(where, slots=5, stride=7)
    library._passes = Generic(library.model, 5)
    assert isinstance(ours._passes, Llama)
    assert ours._passes.shares == (looked_up and family != "llama")
    given = prompts(11)
    requests = [Request(i, p, seed=i, max_new_tokens=5 + 9 * (i % 5)) for i, p in enumerate(given)]
    a, b = run(ours, requests), run(library, requests)
    for i in range(len(given)):
        assert a[i].tokens == b[i].tokens
        np.testing.assert_allclose(a[i].logprobs, b[i].logprobs, atol=1e-5)


def test_what_the_written_out_passes_do_not_know_is_left_to_the_library(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, mlp_bias=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    assert isinstance(TransformersEngine.from_folder(tmp_path, slots=2)._passes, Generic)


def test_learnt_positions_decode_as_generate_does(tmp_path: Path) -> None:
    torch.manual_seed(5)
    config = GPT2Config(vocab_size=40, n_embd=48, n_layer=2, n_head=4, initializer_range=0.2)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    assert_greedy_equals_generate(tmp_path, vocabulary=40)


def test_bfloat16_follows_a_bfloat16_forward(folder: Path) -> None:
    engine = TransformersEngine.from_folder(folder, dtype="bfloat16", slots=4)
    prompt = prompts(1)[0]
    answer = run(engine, [Request(0, prompt, seed=1, max_new_tokens=20)])[0]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    expected = forward_logits(model, prompt, answer.tokens).log_softmax(-1)
    np.testing.assert_allclose(answer.logprobs, of_tokens(expected, answer.tokens), atol=0.05)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.3, 5, 1.0), (1.0, 0, 0.6), (0.8, 6, 0.7)]
)  # fmt: skip
def test_log_probs_are_those_of_the_distribution_sampled_from(
    engine: TransformersEngine, folder: Path, temperature: float, top_k: int, top_p: float
) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    given = prompts(9)
    answers = run(
        engine,
        [Request(i, p, i, 12, temperature, top_p, top_k) for i, p in enumerate(given)],
    )
    for i, prompt in enumerate(given):
        scaled = forward_logits(model, prompt, answers[i].tokens) / temperature
        kept = truncate(
            scaled, torch.full((12,), top_k), torch.full((12,), top_p, dtype=torch.float32)
        )
        expected = of_tokens(kept.log_softmax(-1), answers[i].tokens)
        np.testing.assert_allclose(answers[i].logprobs, expected, atol=2e-5)


def test_truncation_keeps_the_smallest_set_that_reaches_p() -> None:
    logits = torch.tensor([[0.1, 0.5, 0.15, 0.25]]).log()
    kept = truncate(logits, torch.tensor([0]), torch.tensor([0.7])).softmax(-1)
    torch.testing.assert_close(kept, torch.tensor([[0.0, 2 / 3, 0.0, 1 / 3]]))
    kept = truncate(logits, torch.tensor([3]), torch.tensor([1.0])).softmax(-1)
    torch.testing.assert_close(kept, torch.tensor([[0.0, 5 / 9, 1.5 / 9, 2.5 / 9]]))
    # p applies to what top-k left: 0.5 / 0.75 reaches 0.6.
    kept = truncate(logits, torch.tensor([2]), torch.tensor([0.6])).softmax(-1)
    torch.testing.assert_close(kept, torch.tensor([[0.0, 1.0, 0.0, 0.0]]))


def test_a_sample_does_not_depend_on_its_neighbours(folder: Path) -> None:
    prompt = prompts(1)[0]
    mine = Request("mine", prompt, seed=77, max_new_tokens=24, stop=(EOS,))
    alone = run(TransformersEngine.from_folder(folder, slots=1), [mine])["mine"]
    for seed in (1, 2):
        others = [
            Request(i, p, seed=1000 * seed + i, max_new_tokens=1 + i, temperature=0.5 + i / 10)
            for i, p in enumerate(prompts(20, seed=seed))
        ]
        crowd = run(TransformersEngine.from_folder(folder, slots=5), [*others, mine])["mine"]
        assert crowd.tokens == alone.tokens
        np.testing.assert_allclose(crowd.logprobs, alone.logprobs, atol=2e-5)


def test_seeds_decide_and_equal_prompts_share_their_prefill_only(
    engine: TransformersEngine,
) -> None:
    prompt = prompts(1)[0]
    answers = run(engine, [Request(i, prompt, seed=i // 2, max_new_tokens=16) for i in range(8)])
    assert all(answers[2 * i].tokens == answers[2 * i + 1].tokens for i in range(4))
    assert len({tuple(answer.tokens) for answer in answers.values()}) == 4


def test_random_numbers_are_uniform_and_uncorrelated_between_seeds_and_positions() -> None:
    seeds, counters = np.meshgrid(np.arange(300, dtype=np.uint64), np.arange(300, dtype=np.uint64))
    drawn = uniforms(seeds, counters)
    assert ((drawn >= 0) & (drawn < 1)).all()
    counts = np.histogram(drawn, bins=50, range=(0, 1))[0]
    expected = drawn.size / 50
    assert ((counts - expected) ** 2 / expected).sum() < 85.4  # 49 degrees of freedom, 1 in 1,000
    for other in (drawn[1:, :], drawn[:, 1:]):
        mine = drawn[: other.shape[0], : other.shape[1]]
        assert abs(np.corrcoef(mine.ravel(), other.ravel())[0, 1]) < 0.012
    again = {
        reseed(seed, turn, kept) for seed in range(20) for turn in range(20) for kept in range(20)
    }
    assert len(again) == 8000


def test_frequencies_follow_the_probabilities(folder: Path) -> None:
    n = 20_000
    engine = TransformersEngine.from_folder(folder, slots=n)
    prompt = np.array([5, 13, 9, 13, 4, 14], np.int32)
    answers = run(engine, [Request(i, prompt, seed=i, max_new_tokens=1) for i in range(n)])
    counts = np.bincount([answers[i].tokens[0] for i in range(n)], minlength=15)
    model = AutoModelForCausalLM.from_pretrained(folder)
    p = forward_logits(model, prompt, [0]).softmax(-1)[0].double().numpy()
    chi2 = ((counts - n * p) ** 2 / (n * p)).sum()
    assert chi2 < 36.1  # 14 degrees of freedom: exceeded once in a thousand by chance


def test_stop_token_is_the_last_one_and_frees_its_slot(folder: Path) -> None:
    engine = TransformersEngine.from_folder(folder, slots=2)
    stop = tuple(range(3, 15))  # nearly every token ends it
    answers = run(engine, [Request(i, p, i, 500, stop=stop) for i, p in enumerate(prompts(12))])
    assert len(answers) == 12
    for answer in answers.values():
        assert answer.finish == "stop"
        assert answer.tokens[-1] in stop
        assert not set(answer.tokens[:-1]) & set(stop)


def test_new_weights_in_flight_keep_tokens_and_sample_the_rest_from_them(
    engine: TransformersEngine, folder: Path
) -> None:
    old, new = (AutoModelForCausalLM.from_pretrained(folder) for _ in range(2))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    given = prompts(7)
    engine.version = 3
    for i, prompt in enumerate(given):
        engine.submit(Request(i, prompt, seed=i, max_new_tokens=10 + i))
    answers: dict[Any, Answer] = {}
    for _ in range(6):
        collect(engine.step(), answers)
    engine.load(4, new.state_dict())
    while engine.busy:
        collect(engine.step(), answers)
    mixed = 0
    for i, prompt in enumerate(given):
        answer = answers[i]
        assert len(answer.tokens) == 10 + i
        assert answer.versions == sorted(answer.versions)
        mixed += len(set(answer.versions)) == 2
        for version, model in ((3, old), (4, new)):
            mask = np.array(answer.versions) == version
            logprobs = forward_logits(model, prompt, answer.tokens).log_softmax(-1)
            np.testing.assert_allclose(
                np.array(answer.logprobs)[mask],
                of_tokens(logprobs, answer.tokens)[mask],
                atol=2e-5,
            )
    assert mixed == 4  # the four slots; the others started after the swap


def test_the_same_weights_again_change_nothing(folder: Path) -> None:
    requests = [Request(i, p, i, 12) for i, p in enumerate(prompts(6))]
    undisturbed = run(TransformersEngine.from_folder(folder, slots=4), requests)
    engine = TransformersEngine.from_folder(folder, slots=4)
    for request in requests:
        engine.submit(request)
    answers: dict[Any, Answer] = {}
    steps = 0
    while engine.busy:
        collect(engine.step(), answers)
        steps += 1
        if steps % 3 == 0:
            engine.load(steps, engine.model.state_dict())
    assert {i: a.tokens for i, a in answers.items()} == {
        i: a.tokens for i, a in undisturbed.items()
    }


def test_tied_weights_load_by_one_name_and_wrong_ones_change_nothing(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    engine = TransformersEngine.from_folder(tmp_path, slots=2)
    weights = {n: torch.full_like(p, 0.25) for n, p in engine.model.named_parameters()}
    assert "lm_head.weight" not in weights
    engine.load(1, weights)
    assert (engine.model.lm_head.weight == 0.25).all()
    before = {n: p.clone() for n, p in engine.model.named_parameters()}
    name = next(iter(weights))
    for bad in ({name: weights[name] * 2}, {**weights, name: torch.zeros(1)}):
        with pytest.raises(ValueError, match="not this model's"):
            engine.load(2, bad)
    assert engine.version == 1
    assert all((before[n] == p).all() for n, p in engine.model.named_parameters())


def test_an_aborted_request_is_never_heard_of_again(engine: TransformersEngine) -> None:
    for i, prompt in enumerate(prompts(8)):
        engine.submit(Request(i, prompt, i, 20))
    answers: dict[Any, Answer] = {}
    collect(engine.step(), answers)
    heard_before = {i: len(a.tokens) for i, a in answers.items()}
    for i in (0, 2, 6):  # two are running, one waits
        engine.abort(i)
    while engine.busy:
        collect(engine.step(), answers)
    for i in range(8):
        if i in (0, 2, 6):
            assert len(answers[i].tokens if i in answers else []) == heard_before.get(i, 0)
        else:
            assert answers[i].finish == "length"
            assert len(answers[i].tokens) == 20


def test_flush_hands_out_what_a_stride_holds_back(folder: Path) -> None:
    engine = TransformersEngine.from_folder(folder, slots=4, stride=100)
    engine.submit(Request(0, prompts(1)[0], 0, 50))
    for _ in range(5):
        assert engine.step() == []
    (delta,) = engine.flush()
    assert len(delta.tokens) == len(delta.logprobs) == 6  # the first step prefills and decodes
    assert engine.flush() == []


def test_what_does_not_fit_is_refused(engine: TransformersEngine) -> None:
    assert engine.context == 1024
    with pytest.raises(ValueError, match="1000 tokens and 25 new ones"):
        engine.submit(Request(0, np.full(1000, 5, np.int32), 0, 25))
    answers = run(engine, [Request(0, np.full(1000, 5, np.int32), 0, 24)])
    assert len(answers[0].tokens) == 24
