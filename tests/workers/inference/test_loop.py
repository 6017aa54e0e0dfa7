"""The inference role against a real gRPC scheduler and really published weights."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from roll_api import RLJob
from roll_wire.ports import free_port
from roll_wire.sample_pb2 import Piece
from roll_wire.session_pb2 import (
    Cancel,
    Drain,
    Failure,
    Policy,
    PolicyVersion,
    ProgressItem,
    Result,
    Task,
)
from roll_workers.builtin.models import resolve_model
from roll_workers.inference import loop
from roll_workers.inference.loop import main as inference_role
from roll_workers.runtime import stream
from roll_workers.runtime.trajectory import (
    SequenceArrays,
    Trajectory,
    action_piece,
    prompt_piece,
    sequences,
)
from roll_workers.weights import publish
from scheduler import Scheduler, config_for, run, task
from transformers import AutoModelForCausalLM

PROMPT = [6, 13, 10, 13, 8, 14]
Body = Callable[[Scheduler], Awaitable[None]]


def job(
    new: int = 4,
    slots: int = 8,
    partial: str = "Resume",
    model: str = "builtin:tiny-qwen2",
    patience: float = 60.0,
    **sampling: Any,
) -> RLJob:
    return RLJob.parse(
        {
            "apiVersion": "roll.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "j"},
            "spec": {
                "model": {"path": model},
                "data": {"train": {"path": "builtin:largest-of-three"}},
                "rollout": {
                    "partial": partial,
                    "sampling": {"maxNewTokens": new, **sampling},
                    "retry": {"noProgressSeconds": patience},
                },
                "rewards": [{"name": "exact", "scorer": {"kind": "exactMatch"}}],
                "roles": {
                    "inference": {"replicas": 1, "engine": {"slots": slots}},
                    "reward": {"replicas": 1},
                    "environment": {"replicas": 1},
                },
            },
        }
    )


class Weights:
    """Versions whose weights differ, published into a folder as the trainer does."""

    def __init__(self, storage: Path) -> None:
        self.folder = storage / "weights"
        self.model = AutoModelForCausalLM.from_pretrained(
            resolve_model("builtin:tiny-qwen2", storage, storage)
        )

    def state(self, version: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(version)
        return {
            name: tensor + 0.02 * torch.randn(tensor.shape, generator=generator)
            for name, tensor in self.model.state_dict().items()
        }

    def policy(self, version: int, lineage: int = 1) -> Policy:
        manifest = publish(self.folder, (lineage, version), self.state(version), term=1)
        return Policy(
            version=PolicyVersion(lineage=lineage, number=version),
            manifest_digest=manifest.digest,
            locations=[str(self.folder)],
        )

    def logprobs(self, version: int, tokens: list[int]) -> np.ndarray:
        """Of tokens[1:], each given all before it."""
        model = AutoModelForCausalLM.from_config(self.model.config)
        model.load_state_dict(self.state(version))
        with torch.no_grad():
            logits = model.eval()(torch.tensor([tokens])).logits[0, :-1]
        return logits.log_softmax(-1).gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0].numpy()


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    return Weights(tmp_path)


@pytest.fixture
def endless(tmp_path: Path) -> str:
    """The same model without an end-of-text token: no sample ends by chance."""
    folder = tmp_path / "endless"
    shutil.copytree(resolve_model("builtin:tiny-qwen2", tmp_path, tmp_path), folder)
    for name in ("config.json", "generation_config.json"):
        config = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(config | {"eos_token_id": None}))
    return str(folder)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five milliseconds for every token, so that something happens while a sample is in flight, and is told."""
    monkeypatch.setattr(stream, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(loop, "LONG_STEP", -1.0)
    monkeypatch.setattr(loop, "BREATH", 0.005)
    monkeypatch.setattr(loop, "BEAT_SECONDS", 0.05)


def with_role(folder: Path, wanted: RLJob, body: Body) -> None:
    async def main() -> None:
        scheduler = Scheduler(free_port())
        await scheduler.start()
        config = config_for(scheduler.port, folder, role="inference", pod="j-inference-0")
        role = asyncio.create_task(inference_role(config, wanted))
        script = asyncio.create_task(body(scheduler))  # type: ignore[arg-type]
        try:
            await asyncio.wait({role, script}, return_when=asyncio.FIRST_COMPLETED)
            if not script.done():
                script.cancel()
                role.result()
            await script
            await role  # the script drained it
        finally:
            role.cancel()
            await asyncio.wait({role})
            await scheduler.kill()

    run(main, 240.0)


def drain(scheduler: Scheduler) -> None:
    scheduler.say(drain=Drain(reason="scale-down"))


def generate(
    number: int, *, seed: int = 0, kept: tuple[int, ...] = (), min_version: int = 0, **more: Any
) -> Task:
    made = task(number, stage="generate")
    made.seed, made.min_version, made.kept_tokens = seed, min_version, len(kept)
    made.payload = Trajectory.payload(prompt_piece(more.pop("prompt", PROMPT)))
    if kept:
        made.payload += Trajectory.payload(action_piece(kept, [-1.0] * len(kept), min_version))
    for name, value in more.items():
        setattr(made, name, value)
    return made


def holding(scheduler: Scheduler) -> list[int]:
    return [
        m.holding.version.number for m in scheduler.messages if m.WhichOneof("message") == "holding"
    ]


def credits(scheduler: Scheduler) -> list[int]:
    return [m.credit.credits for m in scheduler.messages if m.WhichOneof("message") == "credit"]


def partials(scheduler: Scheduler) -> list[ProgressItem]:
    return [i for m in scheduler.messages for i in m.progress.items if i.partial]


def waiting(scheduler: Scheduler) -> set[int]:
    items = [i for m in scheduler.messages for i in m.progress.items if i.waiting]
    return {item.lease.number for item in items}


def whole(of: Task, scheduler: Scheduler) -> SequenceArrays:
    """The sample as the scheduler has it: on a slow machine some of it comes before the result."""
    parts = [p.partial for p in partials(scheduler) if p.lease == of.lease]
    parts += [r.payload for r in scheduler.results() if r.lease == of.lease]
    (sequence,) = sequences(Trajectory.parse(of.payload + b"".join(parts)))
    return sequence


def only(results: list[Result]) -> Result:
    (result,) = results
    return result


def test_nothing_is_taken_before_a_published_version_is_held(
    tmp_path: Path, weights: Weights
) -> None:
    async def body(scheduler: Scheduler) -> None:
        await scheduler.until(lambda: scheduler.hellos)
        assert scheduler.hellos[0].credits == 0
        assert not scheduler.hellos[0].HasField("version")
        scheduler.say(policy=weights.policy(0))
        await scheduler.until(lambda: credits(scheduler))
        assert holding(scheduler) == [0]
        assert credits(scheduler) == [16]  # 8 slots, and as many short answers that wait for one
        drain(scheduler)

    with_role(tmp_path, job(), body)


def test_a_sample_comes_back_with_the_log_probs_of_the_published_weights(
    tmp_path: Path, weights: Weights
) -> None:
    tasks = [generate(n, seed=n) for n in range(20)]

    async def body(scheduler: Scheduler) -> None:
        scheduler.say(policy=weights.policy(0))
        scheduler.assign(*tasks)
        await scheduler.until(lambda: len(scheduler.results()) == 20)
        drain(scheduler)
        for result in scheduler.results():
            sample = whole(tasks[result.lease.number], scheduler)
            acted = sample.action_mask
            assert acted.tolist() == [False] * len(PROMPT) + [True] * (len(acted) - len(PROMPT))
            assert result.base_tokens + result.tokens == acted.sum() <= 4
            assert (result.oldest.number, result.newest.number) == (0, 0)
            assert (result.oldest.lineage, result.newest.lineage) == (1, 1)
            assert sample.finish_reason == ("stop" if sample.tokens[-1] == 1 else "length")
            assert set(sample.versions[acted].tolist()) == {0}
            expected = weights.logprobs(0, sample.tokens.tolist())[len(PROMPT) - 1 :]
            np.testing.assert_allclose(sample.logprobs[acted], expected, atol=2e-5)
        assert len({tuple(whole(t, scheduler).tokens) for t in tasks}) > 10  # seeds differ

    with_role(tmp_path, job(), body)


def test_a_task_waits_for_its_minimum_version(tmp_path: Path, weights: Weights) -> None:
    async def body(scheduler: Scheduler) -> None:
        scheduler.say(policy=weights.policy(0))
        scheduler.assign(generate(1, min_version=2), generate(2))
        await scheduler.until(lambda: scheduler.results())
        assert only(scheduler.results()).lease.number == 2
        scheduler.say(policy=weights.policy(2))
        await scheduler.until(lambda: len(scheduler.results()) == 2)
        drain(scheduler)
        late = scheduler.results()[1]
        assert (late.lease.number, late.oldest.number) == (1, 2)
        assert holding(scheduler) == [0, 2]

    with_role(tmp_path, job(), body)


def test_an_older_policy_is_ignored_and_a_newer_lineage_is_not(
    tmp_path: Path, weights: Weights
) -> None:
    async def body(scheduler: Scheduler) -> None:
        for version, lineage in ((3, 1), (2, 1), (1, 2)):
            scheduler.say(policy=weights.policy(version, lineage))
            if (version, lineage) != (2, 1):
                await scheduler.until(lambda v=version: holding(scheduler)[-1:] == [v])
        assert holding(scheduler) == [3, 1]
        drain(scheduler)

    with_role(tmp_path, job(), body)


def test_a_version_that_is_published_again_replaces_one_that_is_not_held_yet(
    tmp_path: Path, weights: Weights
) -> None:
    async def body(scheduler: Scheduler) -> None:
        scheduler.say(policy=weights.policy(0))
        await scheduler.until(lambda: holding(scheduler) == [0])
        gone = weights.policy(1)
        gone.manifest_digest = "0" * len(gone.manifest_digest)  # of a trainer that is no more
        scheduler.say(policy=gone)
        scheduler.assign(generate(1, min_version=1))
        scheduler.say(policy=weights.policy(1))
        await scheduler.until(lambda: scheduler.results())
        assert holding(scheduler) == [0, 1]
        scheduler.say(policy=gone)  # nothing is fetched for a version that is held
        scheduler.assign(generate(2, min_version=1))
        await scheduler.until(lambda: len(scheduler.results()) == 2)
        assert holding(scheduler) == [0, 1]
        drain(scheduler)

    with_role(tmp_path, job(), body)


def test_new_weights_in_flight_resume_with_the_tokens_and_versions_so_far(
    tmp_path: Path, weights: Weights, endless: str, unhurried: None
) -> None:
    long = generate(1, seed=5)

    async def body(scheduler: Scheduler) -> None:
        scheduler.say(policy=weights.policy(0))
        scheduler.assign(long)
        await scheduler.until(lambda: partials(scheduler))
        scheduler.say(policy=weights.policy(1))
        await scheduler.until(lambda: scheduler.results())
        drain(scheduler)
        parts = partials(scheduler)
        result = only(scheduler.results())
        sample = whole(long, scheduler)
        acted = sample.action_mask
        assert result.newest.number == 1
        assert parts[0].oldest.number == 0
        assert sum(p.partial_tokens for p in parts) + result.tokens == acted.sum()
        assert result.base_tokens == parts[-1].tokens
        versions = sample.versions[acted]
        assert versions.tolist() == sorted(versions.tolist())
        assert set(versions.tolist()) == {0, 1}
        for version in (0, 1):
            expected = weights.logprobs(version, sample.tokens.tolist())[len(PROMPT) - 1 :]
            mine = versions == version
            np.testing.assert_allclose(sample.logprobs[acted][mine], expected[mine], atol=3e-5)

    with_role(tmp_path, job(model=endless, new=160), body)


def test_samples_that_wait_for_a_slot_or_for_weights_say_so(
    tmp_path: Path, weights: Weights, endless: str, unhurried: None
) -> None:
    async def body(scheduler: Scheduler) -> None:
        scheduler.say(policy=weights.policy(0))
        scheduler.assign(generate(1), generate(2), generate(3, min_version=1))
        await scheduler.until(lambda: waiting(scheduler) == {2})
        scheduler.say(cancel=Cancel(leases=[generate(1).lease]))
        await scheduler.until(lambda: any(p.lease.number == 2 for p in partials(scheduler)))
        gone = weights.policy(1)
        gone.manifest_digest = "0" * len(gone.manifest_digest)
        scheduler.say(policy=gone)
        await scheduler.until(lambda: waiting(scheduler) == {2, 3})
        drain(scheduler)

    with_role(tmp_path, job(model=endless, new=900, slots=1, patience=0.4), body)


def test_with_discard_a_sample_starts_over_at_new_weights(
    tmp_path: Path, weights: Weights, endless: str, unhurried: None
) -> None:
    long = generate(1, seed=5)

    async def body(scheduler: Scheduler) -> None:
        scheduler.say(policy=weights.policy(0))
        scheduler.assign(long)
        await scheduler.until(
            lambda: any(i.tokens > 8 for m in scheduler.messages for i in m.progress.items)
        )
        scheduler.say(policy=weights.policy(1))
        await scheduler.until(lambda: scheduler.results())
        drain(scheduler)
        assert not partials(scheduler)
        result = only(scheduler.results())
        sample = whole(long, scheduler)
        assert set(sample.versions[sample.action_mask].tolist()) == {1}
        assert (result.oldest.number, result.newest.number) == (1, 1)

    with_role(tmp_path, job(model=endless, new=160, partial="Discard"), body)


def test_another_worker_goes_on_from_what_was_kept(tmp_path: Path, weights: Weights) -> None:
    first, other = generate(1, seed=9, kept=(3, 4, 5)), generate(2, seed=9, kept=(3, 4, 6))

    async def body(scheduler: Scheduler) -> None:
        scheduler.say(policy=weights.policy(0))
        scheduler.assign(first, other, generate(3, kept=(3, 1)), generate(4, kept=(3,) * 8))
        await scheduler.until(lambda: len(scheduler.results()) == 4)
        drain(scheduler)
        results = {r.lease.number: r for r in scheduler.results()}
        sample = whole(first, scheduler)
        assert sample.tokens[len(PROMPT) :][:3].tolist() == [3, 4, 5]
        assert 4 <= results[1].base_tokens + results[1].tokens == sample.action_mask.sum() <= 8
        assert all(p.tokens > 3 for p in partials(scheduler))
        expected = weights.logprobs(0, sample.tokens.tolist())[len(PROMPT) + 2 :]
        np.testing.assert_allclose(sample.logprobs[len(PROMPT) + 3 :], expected, atol=2e-5)
        # A turn that had ended before its worker died only lacks its end.
        for number, reason in ((3, "stop"), (4, "length")):
            assert results[number].tokens == 0
            (piece,) = Trajectory.parse(results[number].payload).pieces
            assert (piece.kind, piece.length, piece.finish_reason) == (Piece.ACTION, 0, reason)

    with_role(tmp_path, job(new=8), body)


def test_cancelled_samples_free_their_slots(
    tmp_path: Path, weights: Weights, endless: str, unhurried: None
) -> None:
    long = [generate(n, seed=n) for n in (1, 2)]

    async def body(scheduler: Scheduler) -> None:
        scheduler.say(policy=weights.policy(0))
        scheduler.assign(*long)
        await scheduler.until(lambda: partials(scheduler))
        scheduler.say(cancel=Cancel(leases=[t.lease for t in long]))
        scheduler.assign(generate(3, kept=(5,) * 158))
        await scheduler.until(lambda: scheduler.results())
        drain(scheduler)
        assert only(scheduler.results()).lease.number == 3

    with_role(tmp_path, job(model=endless, new=160, slots=2), body)


def test_a_draining_worker_returns_what_it_has(
    tmp_path: Path, weights: Weights, endless: str, unhurried: None
) -> None:
    tasks = [generate(n, seed=n) for n in range(1, 6)]

    async def body(scheduler: Scheduler) -> None:
        scheduler.say(policy=weights.policy(0))
        scheduler.assign(*tasks, generate(9, min_version=7))
        await scheduler.until(lambda: partials(scheduler))
        drain(scheduler)
        await scheduler.until(lambda: len(scheduler.failures()) + len(scheduler.results()) == 6)
        assert {f.kind for f in scheduler.failures()} == {Failure.RETURNED}
        assert 9 in {f.lease.number for f in scheduler.failures()}
        last = {p.lease.number: p for p in partials(scheduler)}
        returned = {f.lease.number for f in scheduler.failures()}
        assert returned & last.keys()
        for number in returned & last.keys():
            sample = whole(tasks[number - 1], scheduler)
            assert sample.action_mask.sum() == last[number].tokens

    with_role(tmp_path, job(model=endless, new=160, slots=4), body)


def test_a_prompt_that_does_not_fit_is_an_input_failure(tmp_path: Path, weights: Weights) -> None:
    async def body(scheduler: Scheduler) -> None:
        scheduler.say(policy=weights.policy(0))
        scheduler.assign(generate(1, prompt=[5] * 1000), generate(2))
        await scheduler.until(lambda: scheduler.failures() and scheduler.results())
        drain(scheduler)
        (failure,) = scheduler.failures()
        assert failure.kind == Failure.INPUT
        assert "1000 tokens" in failure.message
        assert "maxNewTokens = 32" in failure.message
        assert "context of 1024" in failure.message

    with_role(tmp_path, job(new=32), body)


def test_validation_is_greedy_by_default(tmp_path: Path, weights: Weights) -> None:
    tasks = [generate(n, seed=n, validation=True) for n in range(6)]

    async def body(scheduler: Scheduler) -> None:
        scheduler.say(policy=weights.policy(0))
        scheduler.assign(*tasks)
        await scheduler.until(lambda: len(scheduler.results()) == 6)
        drain(scheduler)
        answers = {tuple(whole(t, scheduler).tokens) for t in tasks}
        assert len(answers) == 1

    with_role(tmp_path, job(temperature=1.5), body)


def test_a_stop_text_ends_an_answer_where_it_is_complete(
    tmp_path: Path, weights: Weights, endless: str
) -> None:
    tasks = [generate(n, seed=n) for n in range(1, 9)]

    async def body(scheduler: Scheduler) -> None:
        scheduler.say(policy=weights.policy(0))
        scheduler.assign(*tasks)
        await scheduler.until(lambda: len(scheduler.results()) == 8)
        drain(scheduler)
        endings = set()
        for result in scheduler.results():
            sample = whole(tasks[result.lease.number - 1], scheduler)
            answer = "".join(
                "pes0123456789,="[t] for t in sample.tokens[sample.action_mask].tolist()
            )
            assert sample.finish_reason in ("stop", "length")
            assert "7=" not in answer[:-1]
            endings.add(answer[-2:])
        assert "7=" in endings

    with_role(tmp_path, job(model=endless, new=300, stop=["7="]), body)
