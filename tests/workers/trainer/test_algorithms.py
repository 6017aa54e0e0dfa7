"""Every algorithm against numbers worked out by hand."""

import math

import pytest
import torch
from roll_workers.trainer.algorithms import (
    Totals,
    discounted_returns,
    group_relative,
    kl_estimate,
    last_of_each,
    log_probs_and_entropy,
    ppo_clip,
    token_weights,
    total_loss,
)


def advantages(*groups: list[float], **options: bool) -> list[float]:
    """Of all samples of some whole groups."""
    rewards = [reward for group in groups for reward in group]
    peers = [reward for group in groups for _ in group for reward in group]
    sizes = torch.tensor([len(group) for group in groups for _ in group])
    return group_relative(
        torch.tensor(rewards, dtype=torch.double),
        torch.tensor(peers, dtype=torch.double),
        torch.arange(len(rewards)).repeat_interleave(sizes),
        **options,
    ).tolist()


def test_groups_are_normalised_with_their_own_mean_and_unbiased_deviation() -> None:
    # First group: mean 0.25; squares 0.5625 + 3 * 0.0625 = 0.75; / 3 = 0.25; std 0.5.
    # Second: mean 3; squares 1 + 1 = 2; / 1 = 2; std sqrt(2).
    first, second = 0.500001, math.sqrt(2) + 1e-6
    expected = [0.75 / first, *[-0.25 / first] * 3, -1 / second, 1 / second]
    assert advantages([1.0, 0.0, 0.0, 0.0], [2.0, 4.0]) == pytest.approx(expected)


def test_without_std_only_the_mean_is_taken_away() -> None:
    expected = [0.75, -0.25, -0.25, -0.25]
    assert advantages([1.0, 0.0, 0.0, 0.0], normalize_std=False) == pytest.approx(expected)


def test_equal_rewards_and_groups_of_one_have_no_advantage() -> None:
    assert advantages([3.0, 3.0], [5.0]) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [(1.0, [6.0, 5.0, 3.0, 10.0]), (0.5, [2.75, 3.5, 3.0, 10.0]), (0.0, [1.0, 2.0, 3.0, 10.0])],
)
def test_returns_are_discounted_inside_each_sequence(gamma: float, expected: list[float]) -> None:
    rewards = torch.tensor([1.0, 2.0, 3.0, 10.0])
    sequence = torch.tensor([0, 0, 0, 1])
    assert discounted_returns(rewards, sequence, gamma).tolist() == pytest.approx(expected)


def test_returns_of_a_batch_whose_first_sequence_is_not_number_zero() -> None:
    rewards = torch.tensor([0.0, 1.0, 2.0])
    returns = discounted_returns(rewards, torch.tensor([3, 3, 5]), 1.0)
    assert returns.tolist() == [1.0, 1.0, 2.0]


def test_the_last_token_of_each_sequence_is_found() -> None:
    assert last_of_each(torch.tensor([0, 0, 1, 2, 2])).tolist() == [False, True, True, False, True]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", (1 + 2 + 3 + 4 + 8) / 5),
        ("seq-mean-token-sum", ((1 + 2 + 3 + 4) + 8) / 2),
        ("seq-mean-token-mean", ((1 + 2 + 3 + 4) / 4 + 8 / 1) / 2),
        ("seq-mean-token-sum-norm", ((1 + 2 + 3 + 4) / 10 + 8 / 10) / 2),
    ],
)
def test_each_aggregation_weighs_an_answer_of_four_tokens_and_one_of_one(
    mode: str, expected: float
) -> None:
    losses = torch.tensor([1.0, 2.0, 3.0, 4.0, 8.0])
    sequence = torch.tensor([0, 0, 0, 0, 1])
    weights = token_weights(sequence, mode, Totals(tokens=5, sequences=2), horizon=10)  # type: ignore[arg-type]
    assert float((weights * losses).sum()) == pytest.approx(expected)


@pytest.mark.parametrize(
    "mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
)
def test_the_losses_of_two_ranks_add_up_to_the_loss_of_one(mode: str) -> None:
    losses = torch.tensor([1.0, 2.0, 3.0, 4.0, 8.0])
    sequence = torch.tensor([0, 0, 1, 1, 1])
    totals = Totals(tokens=5, sequences=2)
    whole = (token_weights(sequence, mode, totals, 3) * losses).sum()  # type: ignore[arg-type]
    first = (token_weights(torch.tensor([0, 0]), mode, totals, 3) * losses[:2]).sum()  # type: ignore[arg-type]
    second = (token_weights(torch.tensor([0, 0, 0]), mode, totals, 3) * losses[2:]).sum()  # type: ignore[arg-type]
    assert float(whole) == pytest.approx(float(first + second))


def test_kl_estimators() -> None:
    current, reference = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    d = math.log(2)
    assert float(kl_estimate(current, reference, "k1")) == pytest.approx(d)
    assert float(kl_estimate(current, reference, "k2")) == pytest.approx(d * d / 2)
    assert float(kl_estimate(current, reference, "k3")) == pytest.approx(0.5 - 1 + d)


def clip(
    current: list[float], advantage: list[float], *, decoupled: bool = False, **others: object
) -> tuple[list[float], list[float], list[bool]]:
    """Policy loss, its gradient and what was clipped, for given probabilities under an anchor of 0.5."""
    log_probs = torch.tensor(current).log().requires_grad_()
    anchor = torch.full((len(current),), 0.5).log()
    arguments: dict[str, object] = {"behaviour": anchor, "proximal": None, **others}
    loss = ppo_clip(
        log_probs,
        advantage=torch.tensor(advantage),
        clip_low=0.2,
        clip_high=0.4,
        decoupled=decoupled,
        importance_cap=2.0,
        **arguments,  # type: ignore[arg-type]
    )
    loss.policy.sum().backward()
    assert log_probs.grad is not None
    return loss.policy.tolist(), log_probs.grad.tolist(), loss.clipped.tolist()


def test_ratios_beyond_the_range_have_no_gradient_where_they_pay() -> None:
    # Ratios 1.2, 1.6 (> 1.4) and 0.6 (< 0.8).
    loss, gradient, clipped = clip([0.6, 0.8, 0.3], [1.0, 1.0, 1.0])
    assert loss == pytest.approx([-1.2, -1.4, -0.6])
    assert gradient == pytest.approx([-1.2, 0.0, -0.6])
    assert clipped == [False, True, False]
    loss, gradient, clipped = clip([0.6, 0.8, 0.3], [-1.0, -1.0, -1.0])
    assert loss == pytest.approx([1.2, 1.6, 0.8])
    assert gradient == pytest.approx([1.2, 1.6, 0.0])
    assert clipped == [False, False, True]


def test_decoupled_takes_the_ratio_to_the_proximal_policy_and_caps_the_weight() -> None:
    proximal = torch.tensor([0.4, 0.4]).log()
    behaviour = torch.tensor([0.5, 0.1]).log()  # weights 0.8 and 4, capped at 2
    loss, gradient, _ = clip(
        [0.44, 0.44], [1.0, 1.0], decoupled=True, proximal=proximal, behaviour=behaviour
    )
    assert loss == pytest.approx([-0.8 * 1.1, -2.0 * 1.1])
    assert gradient == pytest.approx([-0.8 * 1.1, -2.0 * 1.1])


def test_decoupled_with_one_update_is_weighted_policy_gradient() -> None:
    behaviour = torch.tensor([0.5, 0.1]).log()
    loss, gradient, clipped = clip([0.4, 0.4], [1.0, -3.0], decoupled=True, behaviour=behaviour)
    assert loss == pytest.approx([-0.8, 6.0])
    assert gradient == pytest.approx([-0.8, 6.0])
    assert clipped == [False, False]


def test_total_loss_adds_kl_and_takes_the_mean_entropy_away() -> None:
    policy, entropy = torch.tensor([1.0, 3.0]), torch.tensor([0.5, 1.5])
    current, reference = torch.tensor([0.0, 0.0]), torch.tensor([-1.0, -2.0])
    loss = total_loss(
        policy,
        entropy,
        weight=torch.tensor([0.5, 0.25]),
        entropy_weight=torch.tensor([0.5, 0.5]),
        entropy_coefficient=0.1,
        current=current,
        reference=reference,
        kl_coefficient=2.0,
        kl_estimator="k1",
    )
    assert float(loss) == pytest.approx(0.5 * (1 + 2 * 1) + 0.25 * (3 + 2 * 2) - 0.1 * 1.0)


def test_log_probs_are_taken_after_temperature() -> None:
    logits = torch.tensor([[0.0, 2.0 * math.log(3.0)]])
    log_probs, entropy = log_probs_and_entropy(
        logits, torch.tensor([0, 0]), torch.tensor([0, 1]), temperature=2.0
    )
    assert log_probs.tolist() == pytest.approx([math.log(0.25), math.log(0.75)])
    expected = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert entropy.tolist() == pytest.approx([expected, expected])
