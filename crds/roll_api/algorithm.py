"""What the trainer does with a batch."""

from typing import Annotated, Literal

from pydantic import Field

from roll_api.base import Model


class Kl(Model):
    """The pull towards the reference model."""

    coefficient: Annotated[float, Field(ge=0, le=100)] = 0.0
    """Weight of the KL term. 0 turns it off and no reference model is loaded."""

    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the divergence from the log-probs of the sampled tokens."""

    place: Literal["Loss", "Reward"] = Field(default="Loss", alias="in")
    """Whether the term is added to the loss or taken from the reward."""


class Algorithm(Model):
    """Advantage, loss and optimizer."""

    advantage: Literal["grpo", "reinforce"] = "grpo"
    """Estimator of the advantage. `grpo`: against the group; `reinforce`: discounted return."""

    normalize_std: bool = True
    """Whether advantages are divided by the group's standard deviation."""

    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Discount per token of a return."""

    loss: Literal["ppo"] = "ppo"
    """Policy loss."""

    loss_aggregation: Literal[
        "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ] = "token-mean"
    """How token losses become one number."""

    clip: Annotated[float, Field(gt=0, le=10)] = 0.2
    """Clip range of the probability ratio, below 1 and, without `clipHigh`, above it."""

    clip_high: Annotated[float, Field(gt=0, le=10)] | None = None
    """Clip range of the probability ratio above 1."""

    decoupled: Literal["Auto", "Always", "Never"] = "Auto"
    """Whether the ratio is taken against a proximal policy instead of the sampling one. `Auto`: if `maxStaleness` > 0."""

    importance_cap: Annotated[float, Field(ge=1, le=1000)] = 2.0
    """Cap of the importance weight between proximal and sampling policy, when decoupled."""

    entropy: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Weight of the entropy bonus."""

    kl: Kl = Kl()
    """The pull towards the reference model."""

    advantage_clip: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Largest absolute advantage."""

    reward_clip: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Largest absolute reward."""

    epochs: Annotated[int, Field(ge=1, le=100)] = 1
    """Passes over a batch."""

    minibatches: Annotated[int, Field(ge=1, le=1024)] = 1
    """Optimizer updates per pass."""

    learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-6
    """Learning rate of AdamW after warm-up."""

    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Steps over which the learning rate rises linearly from 0."""

    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Weight decay of AdamW."""

    betas: Annotated[
        list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)
    ] = [0.9, 0.999]
    """Moment decay rates of AdamW."""

    max_grad_norm: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    """Gradient norm to which larger gradients are scaled."""
