"""The trainer's loop against a scheduler played over real gRPC, in one process."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from roll_api import RLJob
from roll_api.roles import Strategy as StrategySpec
from roll_workers.errors import Fenced, Unreachable, UserError
from roll_workers.runtime.trainer_session import TrainerSession
from roll_workers.trainer import checkpoint as checkpoints
from roll_workers.trainer.loop import Trainer
from roll_workers.trainer.strategies import make_strategy
from roll_workers.weights.manifest import versions
from safetensors.torch import load_file
from trainer_world import Scheduler, dialogue, job, sample

Schedulers = Callable[..., Scheduler]


def train(
    scheduler: Scheduler,
    of: RLJob,
    attempt: int = 0,
    before: Callable[[Trainer], None] | None = None,
) -> Trainer:
    """Runs a trainer to its end."""
    with TrainerSession(scheduler.config(attempt)) as session:
        trainer = Trainer(scheduler.config(attempt), of, session, output=scheduler.storage)
        if before is not None:
            before(trainer)
        try:
            trainer.run()
        finally:
            trainer.close()
    return trainer


class Killed(Exception):
    pass


def die_in_step(step: int) -> Callable[[Trainer], None]:
    """The trainer dies after the update of `step` and before anybody hears of it."""

    def arm(trainer: Trainer) -> None:
        write = trainer.write_weights

        def die(version: int) -> None:
            if version == step:
                raise Killed
            write(version)

        trainer.write_weights = die  # type: ignore[method-assign]

    return arm


def weights(scheduler: Scheduler) -> dict[str, torch.Tensor]:
    newest = scheduler.storage / scheduler.checkpoints[0].path
    return load_file(newest / "model" / "model.safetensors")


def test_the_order_of_calls_is_the_contract(scheduler: Scheduler, model_folder: Path) -> None:
    train(scheduler, job(model_folder, steps=3))
    assert scheduler.log == [
        "position",
        "rewind 0",
        "position",  # what the ledger knows now
        "commit 0",  # checkpoint 0 exists before the version that lets samples in
        "publish 0",
        "acquire 1",
        "report 1",
        "acquire 2",
        "report 2",
        "commit 2",
        "acquire 3",
        "report 3",
        "commit 3",  # the last step is always kept
    ]


def test_every_step_has_its_figures(scheduler: Scheduler, model_folder: Path) -> None:
    train(scheduler, job(model_folder, steps=2))
    lines = scheduler.figures()
    assert [line["step"] for line in lines] == [1, 2]
    line = lines[0]
    rewards = [s.reward for s in scheduler.batch(1)]
    assert line["critic/rewards/mean"] == pytest.approx(sum(rewards) / len(rewards))
    assert line["system/samples"] == 16
    assert line["scheduler/staleness/max"] == 0.0
    assert line["actor/lr"] == pytest.approx(1e-3)
    for name in ("actor/pg_loss", "actor/grad_norm", "critic/entropy/mean", "actor/clipfrac"):
        assert isinstance(line[name], float)
    assert line["time/step_total"] >= line["time/step_train"] > 0
    assert scheduler.reports[0][2]["actor/grad_norm"] == pytest.approx(line["actor/grad_norm"])
    assert list((scheduler.storage / "tensorboard").glob("events.*"))


def test_the_weights_of_a_version_are_those_of_its_checkpoint(
    scheduler: Scheduler, model_folder: Path
) -> None:
    train(scheduler, job(model_folder, steps=2))
    newest = scheduler.checkpoints[0]
    manifest = checkpoints.verify(scheduler.storage / newest.path, newest.digest)
    assert (2, manifest.weights_digest) in scheduler.versions
    assert scheduler.figures()[-1]["weights_digest"] == manifest.weights_digest
    published = load_file(scheduler.storage / "weights" / "l1-v000002" / "weights.safetensors")
    saved = weights(scheduler)
    assert all(torch.equal(value, saved[name]) for name, value in published.items())
    assert versions(scheduler.storage / "weights")[-1] == (1, 2)


def test_a_checkpoint_is_a_model_folder(scheduler: Scheduler, model_folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    train(scheduler, job(model_folder, steps=1))
    folder = scheduler.storage / scheduler.checkpoints[0].path / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(model.lm_head.weight, weights(scheduler)["lm_head.weight"])
    assert (folder / "tokenizer.json").exists()


@pytest.mark.parametrize("dies_in", [1, 3, 4])
def test_a_trainer_that_died_ends_with_the_same_bits(
    schedulers: Schedulers, model_folder: Path, dies_in: int
) -> None:
    undisturbed, disturbed = schedulers("a"), schedulers("b")
    of = job(model_folder, steps=5)
    train(undisturbed, of)
    with pytest.raises(Killed):
        train(disturbed, of, before=die_in_step(dies_in))
    train(disturbed, of, attempt=1)

    assert disturbed.rewinds == [0, (dies_in - 1) // 2 * 2]
    assert disturbed.term == 2
    last, expected = disturbed.versions[-1], undisturbed.versions[-1]
    assert last == expected and last[0] == 5
    assert [line["step"] for line in disturbed.figures()] == [1, 2, 3, 4, 5]
    for ours, theirs in zip(disturbed.figures(), undisturbed.figures(), strict=True):
        assert ours["weights_digest"] == theirs["weights_digest"]


def test_a_corrupt_checkpoint_is_passed_over_with_a_warning(
    scheduler: Scheduler, model_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(scheduler, job(model_folder, steps=4))
    expected = scheduler.versions[-1]
    newest = scheduler.storage / scheduler.checkpoints[0].path / "optimizer.pt"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)

    train(scheduler, job(model_folder, steps=4), attempt=1)
    assert scheduler.rewinds == [0, 2]
    assert "checkpoint of step 4" in caplog.text and "falling back" in caplog.text
    assert "optimizer.pt does not match its checksum" in caplog.text
    assert scheduler.versions[-1] == expected
    assert not newest.parent.exists(), "nobody vouches for it any more"


@pytest.mark.parametrize("name", ["manifest.json", "optimizer.pt"])
def test_a_checkpoint_that_cannot_be_read_now_is_not_a_damaged_one(
    scheduler: Scheduler, model_folder: Path, name: str
) -> None:
    train(scheduler, job(model_folder, steps=4))
    file = scheduler.storage / scheduler.checkpoints[0].path / name
    whole = file.rename(scheduler.storage / "whole")
    file.symlink_to(file)  # which the system refuses to open, whoever asks

    with pytest.raises(Unreachable, match=rf"step-000004-t1/{name} can't be read: Too many levels"):
        train(scheduler, job(model_folder, steps=4), attempt=1)
    whole.rename(file)
    train(scheduler, job(model_folder, steps=4), attempt=2)
    assert scheduler.rewinds == [0, 4]


def test_a_checkpoint_names_the_settings_of_the_steps_after_it(
    scheduler: Scheduler, model_folder: Path
) -> None:
    def rate(step: int) -> float:
        [kept] = [c for c in scheduler.checkpoints if c.step == step]
        manifest = checkpoints.verify(scheduler.storage / kept.path, kept.digest)
        assert manifest.arithmetic is not None
        return float(manifest.arithmetic["algorithm"]["learningRate"])

    scheduler.keep_last = 9
    train(scheduler, job(model_folder, steps=2, algorithm={"learningRate": 1e-3}))
    train(scheduler, job(model_folder, steps=4, algorithm={"learningRate": 2e-3}), attempt=1)
    train(scheduler, job(model_folder, steps=4, algorithm={"learningRate": 2e-3}), attempt=2)
    assert [rate(step) for step in (0, 2, 4)] == [1e-3, 2e-3, 2e-3]
    commits = [what for what in scheduler.log if what.startswith("commit")]
    assert commits == ["commit 0", "commit 2", "commit 2", "commit 4"], "again where they changed"
    left = {path.name for path in (scheduler.storage / "checkpoints").iterdir()}
    assert left == {"step-000000-t1", "step-000002-t2", "step-000004-t2"}


def test_only_what_the_ledger_keeps_stays_on_disk(scheduler: Scheduler, model_folder: Path) -> None:
    torn = (
        scheduler.storage / "checkpoints" / "step-000001-t0"
    )  # of a trainer that died while saving
    torn.mkdir(parents=True)
    (torn / "optimizer.pt").write_bytes(b"half")
    train(scheduler, job(model_folder, steps=6))
    kept = sorted(path.name for path in (scheduler.storage / "checkpoints").iterdir())
    assert kept == ["step-000004-t1", "step-000006-t1"]
    assert [c.path for c in scheduler.checkpoints] == [f"checkpoints/{n}" for n in reversed(kept)]


def test_without_an_intact_checkpoint_it_starts_from_the_model(
    scheduler: Scheduler, model_folder: Path
) -> None:
    train(scheduler, job(model_folder, steps=2))
    newest = scheduler.storage / scheduler.checkpoints[0].path
    for checkpoint in scheduler.checkpoints:
        (scheduler.storage / checkpoint.path / "manifest.json").unlink()
    train(scheduler, job(model_folder, steps=2), attempt=1)
    assert scheduler.rewinds == [0, 0]
    assert scheduler.log.count("commit 0") == 2
    assert (newest / "optimizer.pt").exists(), "for who can mend it"


def test_a_job_that_runs_out_of_batches_keeps_its_last_step(
    scheduler: Scheduler, model_folder: Path
) -> None:
    scheduler.finished_at = 3
    train(scheduler, job(model_folder, steps=10))
    assert scheduler.checkpoints[0].step == 3


def test_a_trainer_that_was_replaced_is_fenced(scheduler: Scheduler, model_folder: Path) -> None:
    def replaced(trainer: Trainer) -> None:
        acquire = trainer.acquire

        def wait(step: int) -> bool:
            if step == 2:
                scheduler.term += 1
            return acquire(step)

        trainer.acquire = wait  # type: ignore[method-assign]

    with pytest.raises(Fenced):
        train(scheduler, job(model_folder), before=replaced)
    assert scheduler.checkpoints[0].step == 0


def test_a_loss_that_is_not_a_number_names_step_and_samples(
    scheduler: Scheduler, model_folder: Path
) -> None:
    bad = sample(5, 0, dialogue([3, 4], ([5], [])), [float("nan"), 1.0], position=99)
    scheduler.batches[2] = [*scheduler.batch(2), bad]
    with pytest.raises(FloatingPointError, match=r"step 2: the loss is not .*\(5, 0\)"):
        train(scheduler, job(model_folder))
    assert scheduler.versions[-1][0] == 1


def test_a_model_without_some_of_its_weights_is_refused(
    scheduler: Scheduler, model_folder: Path, tmp_path: Path
) -> None:
    import shutil

    from safetensors.torch import save_file

    broken = tmp_path / "broken"
    shutil.copytree(model_folder, broken)
    tensors = load_file(broken / "model.safetensors")
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"incomplete: 1 weights are missing"):
        train(scheduler, job(broken))
    (broken / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(UserError, match=r"can't load the model in .*broken"):
        train(scheduler, job(broken), attempt=1)
    (broken / "config.json").unlink()
    with pytest.raises(UserError, match=r"incomplete: no config.json"):
        train(scheduler, job(broken), attempt=2)


ALGORITHMS = [
    {"advantage": "reinforce", "gamma": 0.9, "loss": "ppo", "learningRate": 1e-3},
    {"learningRate": 1e-3, "kl": {"coefficient": 0.1, "estimator": "k3"}},
    {"learningRate": 1e-3, "kl": {"coefficient": 0.1, "estimator": "k1", "in": "Reward"}},
    {"learningRate": 1e-3, "epochs": 2, "minibatches": 2, "decoupled": "Always"},
    {
        "learningRate": 1e-3,
        "epochs": 2,
        "decoupled": "Never",
        "lossAggregation": "seq-mean-token-mean",
    },
    {
        "learningRate": 1e-3,
        "warmupSteps": 4,
        "weightDecay": 0.1,
        "rewardClip": 0.5,
        "advantageClip": 1,
    },
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: json.dumps(a)[:60])
def test_each_algorithm_runs_and_resumes_bit_for_bit(
    schedulers: Schedulers, model_folder: Path, algorithm: dict[str, object]
) -> None:
    of = job(model_folder, steps=3, algorithm=algorithm)
    whole, broken = schedulers("a"), schedulers("b")
    train(whole, of)
    with pytest.raises(Killed):
        train(broken, of, before=die_in_step(3))
    train(broken, of, attempt=1)
    assert whole.versions[-1] == broken.versions[-1]
    assert whole.versions[-1][1] != whole.versions[0][1]


def test_the_learning_rate_rises_during_warm_up(scheduler: Scheduler, model_folder: Path) -> None:
    train(scheduler, job(model_folder, algorithm={"learningRate": 1e-3, "warmupSteps": 2}))
    rates = [line["actor/lr"] for line in scheduler.figures()]
    assert rates == pytest.approx([0.5e-3, 1e-3, 1e-3, 1e-3])


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ({"kind": "fsdp2"}, r"strategy\.kind: fsdp2 is not supported yet"),
        ({"options": {"offload": True}}, r"strategy\.options: .* has no option offload"),
    ],
)
def test_a_strategy_that_is_not_there_is_refused(strategy: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_strategy(StrategySpec.model_validate(strategy), 0, 1)
