"""FrozenLake: equal seeds, equal lakes; compact text in the characters of the tiny model."""

from collections import deque

import pytest
from roll_workers.builtin.data import FROZEN_LAKE_CHARSET
from roll_workers.environment.envs import InvalidAction, Replay
from roll_workers.environment.envs.frozen_lake import FrozenLake, is_held_out
from roll_workers.errors import UserError

MOVES = {"L": (0, -1), "D": (1, 0), "R": (0, 1), "U": (-1, 0)}


def way_to_the_goal(rows: list[str]) -> str:
    """A shortest way, by breadth-first search."""
    size = len(rows)
    queue, seen = deque([((0, 0), "")]), {(0, 0)}
    while queue:
        (row, column), way = queue.popleft()
        if rows[row][column] == "G":
            return way
        for name, (down, right) in MOVES.items():
            cell = row + down, column + right
            inside = 0 <= cell[0] < size and 0 <= cell[1] < size
            if inside and cell not in seen and rows[cell[0]][cell[1]] != "H":
                seen.add(cell)
                queue.append((cell, way + name))
    raise AssertionError("no way to the goal")


def test_equal_seeds_give_equal_lakes_and_others_differ() -> None:
    texts = [FrozenLake(size=4).reset(seed).text for seed in (5, 5, 6, 2**63 + 5)]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


def test_the_goal_is_worth_one_and_ends_the_episode() -> None:
    for seed in range(20):
        lake = FrozenLake(size=3)
        rows = lake.reset(seed).facts["map"]
        *before, last = [lake.step(action) for action in way_to_the_goal(rows)]
        assert not any(step.done or step.reward for step in before)
        assert (last.done, last.reward) == (True, 1.0)


def test_a_hole_ends_the_episode_without_a_reward() -> None:
    for seed in range(100):
        lake = FrozenLake(size=3, frozen=0.5, stepPenalty=0.1)
        text = lake.reset(seed).text
        if text[1] == "H":
            step = lake.step("R")
            assert (step.done, step.reward) == (True, -0.1)
            return
    raise AssertionError("no lake with a hole beside the start")


def test_the_compact_text_marks_the_player_and_uses_few_characters() -> None:
    lake = FrozenLake(size=3, frozen=1.0)
    assert lake.reset(1).text == "PFFFFFFFG="
    assert lake.step("R").observation.text == "FPFFFFFFG="
    assert lake.step("D").observation.text == "FFFFPFFFG="
    assert set("PFHG#=LDRU") == set(FROZEN_LAKE_CHARSET)


def test_the_local_text_tells_what_is_around_the_player() -> None:
    lake = FrozenLake(size=3, frozen=1.0, render="local")
    assert lake.reset(1).text == "##FF="
    assert lake.step("R").observation.text == "#FFF="
    assert lake.step("D").observation.text == "FFFF="
    assert lake.step("D").observation.text == "FFG#="
    assert lake.step("U").observation.text == "FFFF="
    assert lake.step("R").observation.text == "FF#G="


def test_no_lake_is_both_trained_on_and_held_out() -> None:
    def lakes(validation: bool, seeds: int) -> set[tuple[str, ...]]:
        lake = FrozenLake(size=4)
        return {tuple(lake.reset(seed, validation).facts["map"]) for seed in range(seeds)}

    trained, held_out = lakes(False, 300), lakes(True, 100)
    assert len(trained) > 100 and len(held_out) > 30
    assert not trained & held_out
    assert all(is_held_out(list(rows), 0.2) for rows in held_out)


def test_without_a_split_validation_uses_the_lakes_of_training() -> None:
    lake = FrozenLake(size=3, heldOut=0.0)
    assert [lake.reset(seed).text for seed in range(20)] == [
        lake.reset(seed, validation=True).text for seed in range(20)
    ]


def test_too_few_lakes_to_hold_some_out_is_the_users_error() -> None:
    lake = FrozenLake(size=3, frozen=1.0)  # one lake alone
    assert lake.reset(0).text == "PFFFFFFFG="
    with pytest.raises(UserError, match="heldOut: 0"):
        lake.reset(0, validation=True)


def test_words_explain_the_game_and_show_a_grid() -> None:
    lake = FrozenLake(size=2, frozen=1.0, render="words")
    assert lake.reset(1).text.endswith("\nPF\nFG")
    assert lake.step("R").observation.text == "FP\nFG"


def test_an_action_that_does_not_exist_is_invalid() -> None:
    lake = FrozenLake()
    lake.reset(1)
    with pytest.raises(InvalidAction):
        lake.step("X")


def test_slippery_ice_slips_the_same_way_on_the_same_seed() -> None:
    def walk() -> list[str]:
        lake = FrozenLake(size=4, frozen=1.0, slippery=True)
        lake.reset(9)
        return [lake.step("R").observation.text for _ in range(4)]

    assert FrozenLake.replay is Replay.EXACT
    assert walk() == walk()


@pytest.mark.parametrize(
    "options", [{"size": 1}, {"frozen": 0.0}, {"render": "braille"}, {"heldOut": 1.0}]
)
def test_options_out_of_range_are_the_users_error(options: dict) -> None:
    with pytest.raises(UserError, match="frozenLake"):
        FrozenLake(**options)
