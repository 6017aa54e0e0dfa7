"""The mathematics of a training step: each algorithm one pure function of tensors.

All of them work on *action tokens laid end to end*: a value per action token, and `sequence`, the index of
the sequence that each token belongs to (rising, so that the tokens of a sequence lie together). Nothing is
padded, so no mask can be forgotten.
"""

from roll_workers.trainer.algorithms.advantages import (
    discounted_returns,
    group_relative,
    last_of_each,
)
from roll_workers.trainer.algorithms.aggregation import Totals, token_weights
from roll_workers.trainer.algorithms.distribution import log_probs_and_entropy
from roll_workers.trainer.algorithms.kl import kl_estimate
from roll_workers.trainer.algorithms.losses import PolicyLoss, ppo_clip, total_loss

__all__ = [
    "PolicyLoss",
    "Totals",
    "discounted_returns",
    "group_relative",
    "kl_estimate",
    "last_of_each",
    "log_probs_and_entropy",
    "ppo_clip",
    "token_weights",
    "total_loss",
]
