"""The examples are valid jobs whose data, environment and rewards load as they are."""

import asyncio
from pathlib import Path

import pytest
from roll_api import RLJob
from roll_workers.environment.setup import Setup
from roll_workers.reward.rewards import Rewards
from roll_workers.reward.scorers import ScoredSample
from ruamel.yaml import YAML

EXAMPLES = Path(__file__).parents[3] / "examples"


def example(name: str) -> tuple[RLJob, Path]:
    file = EXAMPLES / name
    return RLJob.parse(YAML(typ="safe").load(file)), file.parent


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        ("arithmetic.yaml", {"train": 800, "validation": 200}),
        ("custom_reward/job.yaml", {"train": 800, "validation": 200}),
        ("frozenlake.yaml", {"train": -1, "validation": 200}),
        ("guess/job.yaml", {"train": -1, "validation": 100}),
    ],
)
def test_an_examples_environment_is_set_up(
    name: str, declared: dict[str, int], tmp_path: Path
) -> None:
    job, source = example(name)
    setup = Setup.of_job(job, tmp_path, source)
    assert {of.split: of.rows for of in setup.declared} == declared


def test_guesses_narrow_the_range_until_the_secret_is_found(tmp_path: Path) -> None:
    job, source = example("guess/job.yaml")
    world = Setup.of_job(job, tmp_path, source).world
    assert world is not None
    for seed in range(20):
        env = world.make()
        low, high = map(int, env.reset(seed).text.rstrip("=").split(","))
        assert (low, high) == (0, 9)
        for _ in range(4):
            step = env.step(str((low + high) // 2))
            world.codec.encode(step.observation.text)  # in characters that the model knows
            if step.done:
                break
            low, high = map(int, step.observation.text.rstrip("=").split(","))
        assert (step.done, step.reward) == (True, 1.0), "halving takes at most 4 guesses"


def test_the_custom_reward_is_loaded_and_judges() -> None:
    job, source = example("custom_reward/job.yaml")

    async def main() -> tuple[float, dict[str, float]]:
        rewards = Rewards.of_job(job.spec.rewards, source)
        await rewards.start()
        try:
            reward = await rewards.score(ScoredSample("3,7,5=", "7", "7", "number"))
            return reward.value, reward.parts
        finally:
            await rewards.close()

    value, parts = asyncio.run(main())
    assert value == pytest.approx(1.3)
    assert parts == pytest.approx(
        {"mine": 1.3, "mine.right": 1.0, "mine.near": 0.2, "mine.short": 0.1}
    )


def test_the_reward_of_the_pretrained_model_wants_the_number_alone() -> None:
    job, source = example("smollm2.yaml")

    async def main() -> list[float]:
        rewards = Rewards.of_job(job.spec.rewards, source)
        await rewards.start()
        try:
            said = ("12", "7 + 5 = 12.", "12 is 7 + 5", "13", "")
            samples = [ScoredSample("", response, "12", "number") for response in said]
            return [(await rewards.score(sample)).value for sample in samples]
        finally:
            await rewards.close()

    assert asyncio.run(main()) == [1.0, 0.5, 0.0, 0.5, 0.0]
