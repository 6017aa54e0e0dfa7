"""Several rewards of a job become one number, by tag and weight."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from roll_api.rewards import Reward as RewardSpec
from roll_workers.errors import UserError
from roll_workers.reward.rewards import Entry, Rewards
from roll_workers.reward.scorers import Reward, ScoredSample, ScorerError


class Fixed:
    """A scorer that always says the same."""

    def __init__(self, said: float | Reward | Exception) -> None:
        self.said = said

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def score(self, sample: ScoredSample) -> float | Reward:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


def entry(name: str, said: Any, *tags: str, weight: float = 1.0) -> Entry:
    return Entry(name, frozenset(tags), weight, Fixed(said))


def score(*entries: Entry, tag: str = "number", turns: int = 0) -> Reward:
    sample = ScoredSample("p", "r", tag=tag, turns=[{}] * turns)
    return asyncio.run(Rewards(entries).score(sample))


def test_the_value_is_the_weighted_sum_and_the_parts_have_the_rewards_names() -> None:
    reward = score(entry("exact", 1.0, weight=2.0), entry("form", 0.5, "number", weight=-1.0))
    assert reward == Reward(1.5, {"exact": 1.0, "form": 0.5})


def test_a_rewards_own_parts_stand_under_its_name() -> None:
    reward = score(entry("mine", Reward(3.0, {"a": 1.0, "b": 2.0}, [1.0, 2.0]), weight=2.0))
    assert reward == Reward(6.0, {"mine": 3.0, "mine.a": 1.0, "mine.b": 2.0}, [2.0, 4.0])


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (0, [2.0 - 0.5, 4.0]),  # no episode: all of it is one turn
        (2, [2.0, 4.0 - 0.5]),
        (4, [2.0, 4.0, 0.0, -0.5]),
    ],
)
def test_a_reward_without_turns_beside_one_with_them_is_the_last_turns(
    turns: int, expected: list[float]
) -> None:
    by_turn = entry("steps", Reward(3.0, turns=[1.0, 2.0]), weight=2.0)
    whole = entry("form", 0.5, weight=-1.0)
    for entries in ((by_turn, whole), (whole, by_turn)):
        reward = score(*entries, turns=turns)
        assert (reward.value, reward.turns) == (5.5, expected)


def test_only_rewards_with_the_rows_tag_judge_it() -> None:
    entries = [entry("a", 1.0, "number"), entry("b", 10.0, "word"), entry("c", 100.0)]
    assert score(*entries, tag="word") == Reward(110.0, {"b": 10.0, "c": 100.0})


def test_a_tag_without_a_reward_is_a_failure_that_names_it() -> None:
    with pytest.raises(ScorerError, match="'verse'"):
        score(entry("a", 1.0, "number"), tag="verse")


def test_one_failing_reward_fails_the_whole() -> None:
    with pytest.raises(ScorerError, match="broken"):
        score(entry("a", 1.0), entry("b", ScorerError("broken")))


@pytest.mark.parametrize(
    ("scorer", "expected"),
    [
        ({"kind": "exactMatch", "options": {"trim": True}}, "unexpected keyword argument 'trim'"),
        ({"kind": "regex"}, "missing 1 required positional argument: 'pattern'"),
        ({"kind": "regex", "options": {"pattern": "("}}, "not a regular expression"),
    ],
)
def test_options_that_a_scorer_does_not_know_are_the_users_error(
    scorer: dict[str, Any], expected: str
) -> None:
    spec = RewardSpec.model_validate({"name": "mine", "scorer": scorer})
    with pytest.raises(UserError, match="rewards: mine") as caught:
        Rewards.of_job([spec], Path())
    assert expected in str(caught.value)
