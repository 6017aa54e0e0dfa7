"""Passes side by side: the same update as one after the other, the same bits every time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from roll_workers.trainer.batch import Shard, build_shard
from roll_workers.trainer.objective import Objective
from roll_workers.trainer.strategies import NonFinite, lanes
from roll_workers.trainer.strategies.torch import TorchStrategy
from trainer_world import job, samples

KL = {"learningRate": 1e-2, "kl": {"coefficient": 0.1}}


def strategy(model_folder: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> TorchStrategy:
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    made = TorchStrategy(0, 1)
    made.load(model_folder, job(model_folder, algorithm=KL).spec)
    made.max_tokens = 30  # of a batch of some 130
    return made


def shard(step: int) -> Shard:
    return build_shard(samples(step, groups=8), 15, 100)


def trained(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> tuple[dict[str, torch.Tensor], torch.Tensor, float]:
    """Weights after three updates, the reference's log-probs, and the number of passes."""
    of = strategy(model_folder, monkeypatch, threads)
    objective = Objective(job(model_folder, algorithm=KL).spec)
    passes = 0.0
    for step in (1, 2, 3):
        given = shard(step)
        [batch] = objective.minibatches(given, objective.prepare(given, of), of)
        figures, _ = of.train_step(batch, objective.loss, 1e-2)
        passes += figures["actor/backward_steps"]
    return (
        {k: v.clone() for k, v in of.weights().items()},
        of.log_probs(shard(4).batch),
        passes,
    )


def test_lanes_make_the_update_of_one_thread_and_the_same_bits_every_time(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, beside, again = (trained(model_folder, monkeypatch, n) for n in (1, 2, 2))
    assert alone[2] == beside[2] >= 12, "so that each lane has two of a step"
    assert torch.equal(beside[1], again[1])
    torch.testing.assert_close(beside[1], alone[1], rtol=1e-4, atol=1e-4)
    for name, value in alone[0].items():
        assert torch.equal(beside[0][name], again[0][name]), name
        torch.testing.assert_close(beside[0][name], value, rtol=1e-3, atol=1e-4)


def test_every_lane_sees_restored_weights(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of, batch = strategy(model_folder, monkeypatch, 3), shard(1).batch
    before = of.log_probs(batch)
    of.save(tmp_path)
    with torch.no_grad():
        of.model.model.norm.weight.mul_(2.0)
    assert (of.log_probs(batch) - before).abs().min() > 0, "each pass, in whatever lane"
    of.restore(tmp_path)
    assert torch.equal(of.log_probs(batch), before)


def test_a_loss_that_is_no_number_names_its_samples_from_any_lane(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, given = strategy(model_folder, monkeypatch, 2), shard(1)
    objective = Objective(job(model_folder, algorithm=KL).spec)
    [batch] = objective.minibatches(given, objective.prepare(given, of), of)
    weights = {k: v.clone() for k, v in of.weights().items()}
    bad = int(batch.sequence[-1])
    advantage = batch.advantage.clone()
    advantage[batch.sequence == bad] = torch.nan
    with pytest.raises(NonFinite) as error:
        of.train_step(batch.with_columns(advantage=advantage), objective.loss, 1e-2)
    assert bad in error.value.sequences and len(error.value.sequences) < len(batch)
    assert all(torch.equal(weights[k], v) for k, v in of.weights().items())


def test_a_large_model_has_one_lane_whose_products_share_the_threads(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(strategy(model_folder, monkeypatch, 2).lanes.all) == 2
    monkeypatch.setattr(lanes, "SMALL", 1000)
    try:
        assert len(strategy(model_folder, monkeypatch, 2).lanes.all) == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
