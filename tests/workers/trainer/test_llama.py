"""The passes written out against the library's: states, gradients, and a whole update."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from roll_workers.trainer.strategies import llama as passes
from roll_workers.trainer.strategies.layout import MicroBatch
from roll_workers.trainer.strategies.llama import Llama, supported
from roll_workers.trainer.strategies.model import predicting_states
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "initializer_range": 0.2,
}
# Two branches on a trunk and padding; and plain rows, of which some positions are not asked for.
BRANCHES = np.array([[0, 0, 0, 1, 1, 1, 2, 2, -1]] * 3)
PLACES = np.array([[0, 1, 2, 3, 4, 5, 3, 4, 0]] * 3)


def model(family: str) -> Any:
    torch.manual_seed(3)
    if family == "qwen2":
        # The library gives no gradient to the embedding of a padding token, also where it is a real one.
        made: Any = Qwen2ForCausalLM(Qwen2Config(**SMALL, num_key_value_heads=6, pad_token_id=3))
    else:
        made = LlamaForCausalLM(
            LlamaConfig(**SMALL, num_key_value_heads=2, tie_word_embeddings=True)
        )
    with torch.no_grad():
        for parameter in made.parameters():  # norms and biases that are not 1 and 0
            if parameter.ndim == 1:
                parameter.normal_(0.5, 0.3)
    return made.eval()


def micro_batch(branches: bool) -> MicroBatch:
    ids = np.random.default_rng(0).integers(0, 15, (3, 9))
    asked = np.array([1, 3, 4, 12, 13, 20])
    ids[:, 0] = 3
    if branches:
        return MicroBatch(ids, PLACES, BRANCHES, asked, asked, asked)
    return MicroBatch(ids, None, None, asked, asked, asked)


@pytest.mark.parametrize("short", [0, passes.SHORT])
@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_states_and_gradients_are_the_librarys(
    family: str, branches: bool, short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention is multiplied by torch, and for short rows by numpy."""
    monkeypatch.setattr(passes, "SHORT", short)
    whole, part = model(family), micro_batch(branches)
    assert supported(whole, torch.float32)
    toward = torch.randn(6, 48)

    def run(llama: Llama | None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        whole.zero_grad()
        with llama.folded() if llama is not None else contextlib.nullcontext():
            states = predicting_states(whole, part, CPU, llama=llama)
            (whole.lm_head(states).sin().sum() + (states * toward).sum()).backward()
        return states, {name: p.grad.clone() for name, p in whole.named_parameters()}

    (theirs, expected), (ours, actual) = run(None), run(Llama(whole))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(
            actual[name], gradient, rtol=1e-4, atol=1e-5 * max(scale, 1.0), msg=name
        )


def test_gradients_add_up_over_passes_and_are_the_same_bits_every_time() -> None:
    whole, part = model("qwen2"), micro_batch(branches=True)
    llama = Llama(whole)

    def gradients(passes: int) -> list[torch.Tensor]:
        whole.zero_grad()
        with llama.folded():
            for _ in range(passes):
                whole.lm_head(llama.states(part, None)).square().sum().backward()
        return [p.grad.clone() for p in whole.parameters()]

    once, again, twice = gradients(1), gradients(1), gradients(2)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    for a, b in zip(once, twice, strict=True):
        torch.testing.assert_close(2 * a, b, rtol=1e-5, atol=1e-5)


def test_without_gradient_nothing_is_kept_and_the_states_are_the_same() -> None:
    whole, part = model("llama"), micro_batch(branches=False)
    llama = Llama(whole)
    with torch.no_grad(), llama.folded():
        states = llama.states(part, None)
    assert not states.requires_grad
    with llama.folded():
        assert torch.equal(states, llama.states(part, None).detach())


def test_a_pass_whose_attention_would_fill_the_memory_is_left_to_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = model("llama")
    llama = Llama(whole)
    attention = 3 * 6 * 3 * 9 * 9 * 4  # layers, heads, rows, queries, keys, bytes
    forwards = []
    whole.model.register_forward_hook(lambda *_: forwards.append(1))
    for room in (attention, attention - 1):
        monkeypatch.setattr(passes, "ATTENTION_BYTES", room)
        with llama.folded():
            predicting_states(whole, micro_batch(branches=True), CPU, llama=llama)
    assert len(forwards) == 1, "the second pass, by the library"


def test_a_model_with_frozen_parameters_is_left_to_the_library() -> None:
    whole = model("llama")
    whole.model.norm.weight.requires_grad_(False)
    assert not supported(whole, torch.float32)
    assert supported(whole.requires_grad_(False), torch.float32), "a reference is frozen as a whole"


def test_other_models_are_left_to_the_library() -> None:
    other = GPT2LMHeadModel(GPT2Config(vocab_size=15, n_embd=16, n_layer=1, n_head=2))
    biased = LlamaForCausalLM(LlamaConfig(**SMALL, mlp_bias=True))
    windowed = Qwen2ForCausalLM(
        Qwen2Config(**SMALL, num_key_value_heads=6, use_sliding_window=True, max_window_layers=1)
    )
    assert not any(supported(each, torch.float32) for each in (other, biased, windowed))
    assert not supported(model("llama"), torch.bfloat16)
