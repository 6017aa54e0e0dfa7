"""The same tensors through TRL's GRPOTrainer and through ours give the same loss and gradient.

TRL's loss is a method that takes its log-probs from the model; here the model is replaced by given
log-probs, everything else is TRL's own code.
"""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from roll_workers.trainer.algorithms import (
    Totals,
    group_relative,
    log_probs_and_entropy,
    ppo_clip,
    token_weights,
    total_loss,
)

pytestmark = pytest.mark.slow  # importing TRL takes long
grpo = pytest.importorskip("trl.trainer.grpo_trainer")
utils = pytest.importorskip("trl.trainer.utils")

SAMPLES, LENGTH, HORIZON = 8, 5, 7


class OneProcess:
    num_processes = 1
    sync_gradients = True

    def gather(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def reduce(self, value: torch.Tensor, reduction: str) -> torch.Tensor:
        return value


def trl_loss(
    inputs: dict[str, Any], log_probs: torch.Tensor, entropy: torch.Tensor, **options: Any
):
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (log_probs, entropy, None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        epsilon_low=0.2,
        epsilon_high=0.3,
        use_adaptive_entropy=False,
        entropy_coef=0.05,
        _entropy_bonus_enabled=True,
        current_gradient_accumulation_steps=1,
        max_completion_length=HORIZON,
        model=SimpleNamespace(training=True),
        accelerator=OneProcess(),
        _metrics={"train": defaultdict(list)},
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        **options,
    )
    return grpo.GRPOTrainer._compute_loss(trainer, None, inputs)


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)

    def around(center: torch.Tensor, width: float) -> torch.Tensor:
        return center + width * torch.randn(SAMPLES, LENGTH, generator=generator)

    current = around(torch.full((SAMPLES, LENGTH), -1.5), 0.5)
    lengths = torch.tensor([5, 3, 1, 4, 2, 5, 5, 2])
    return {
        "current": current,
        "old": around(current, 0.4),
        "sampling": around(current, 0.8),
        "reference": around(current, 0.3),
        "entropy": torch.rand(SAMPLES, LENGTH, generator=generator),
        "advantage": torch.randn(SAMPLES, generator=generator),
        "mask": (torch.arange(LENGTH) < lengths[:, None]).long(),
    }


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize(
    ("loss_type", "mode"),
    [
        ("dapo", "token-mean"),
        ("grpo", "seq-mean-token-mean"),
        ("dr_grpo", "seq-mean-token-sum-norm"),
        ("luspo", "seq-mean-token-sum"),
    ],
)
def test_loss_and_gradient_equal_trls(
    loss_type: str, mode: str, beta: float, decoupled: bool
) -> None:
    given = tensors()
    mask = given["mask"].bool()
    importance = torch.exp(given["old"] - given["sampling"]).clamp(max=2.0)

    theirs = given["current"].clone().requires_grad_()
    their_entropy = given["entropy"].clone().requires_grad_()
    expected = trl_loss(
        {
            "prompt_ids": torch.zeros(SAMPLES, 1, dtype=torch.long),
            "prompt_mask": torch.ones(SAMPLES, 1, dtype=torch.long),
            "completion_ids": torch.zeros(SAMPLES, LENGTH, dtype=torch.long),
            "completion_mask": given["mask"],
            "advantages": given["advantage"],
            "old_per_token_logps": given["old"],
            "ref_per_token_logps": given["reference"],
            "num_items_in_batch": given["mask"].sum(),
            "importance_sampling_ratio": importance,
        },
        theirs,
        their_entropy,
        loss_type=loss_type,
        beta=beta,
        use_vllm=decoupled,
        vllm_importance_sampling_correction=decoupled,
    )
    expected.backward()

    ours = given["current"][mask].clone().requires_grad_()
    our_entropy = given["entropy"][mask].clone().requires_grad_()
    sequence = torch.arange(SAMPLES).repeat_interleave(given["mask"].sum(1))
    tokens = len(sequence)
    ppo = ppo_clip(
        ours,
        given["sampling"][mask] if decoupled else given["old"][mask],
        given["old"][mask],
        given["advantage"][sequence],
        clip_low=0.2,
        clip_high=0.3,
        decoupled=decoupled,
        importance_cap=2.0,
    )
    loss = total_loss(
        ppo.policy,
        our_entropy,
        token_weights(sequence, mode, Totals(tokens, SAMPLES), HORIZON),  # type: ignore[arg-type]
        torch.full((tokens,), 1 / tokens),
        entropy_coefficient=0.05,
        current=ours,
        reference=given["reference"][mask],
        kl_coefficient=beta,
        kl_estimator="k3",
    )
    loss.backward()

    torch.testing.assert_close(loss, expected)
    assert theirs.grad is not None and their_entropy.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad[mask])
    torch.testing.assert_close(our_entropy.grad, their_entropy.grad[mask])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_and_entropy_equal_trls(temperature: float) -> None:
    logits = 3 * torch.randn(6, 11, generator=torch.Generator().manual_seed(3))
    tokens = torch.arange(6)
    log_probs, entropy = log_probs_and_entropy(logits, torch.arange(6), tokens, temperature)
    theirs = utils.selective_log_softmax(logits[None], tokens[None], temperature=temperature)[0]
    torch.testing.assert_close(log_probs, theirs)
    torch.testing.assert_close(entropy, utils.entropy_from_logits(logits / temperature))


def test_group_advantages_equal_trls_up_to_its_larger_epsilon() -> None:
    rewards = torch.tensor([0.0, 1.0, 0.5, 0.25])
    # trl/trainer/grpo_trainer.py, _generate_and_score_completions, scale_rewards="group".
    expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    ours = group_relative(rewards, rewards.repeat(4), torch.arange(4).repeat_interleave(4))
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=0.0)
