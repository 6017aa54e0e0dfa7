"""The operator's list of pods: who is in it, who left it, who speaks."""

import pytest
from roll_operator.scheduler.roster import GONE_KEPT, Outdated, Roster, Standing


def test_without_a_list_everybody_is_current_but_those_that_are_gone() -> None:
    roster = Roster()
    assert roster.dismiss(["a", "a"]) == ["a"]
    assert roster.standing("a") is Standing.GONE
    assert roster.standing("b") is Standing.CURRENT


def test_where_the_list_binds_nobody_is_current_before_it_is_heard() -> None:
    roster = Roster(binding=True)
    assert roster.standing("a") is Standing.UNKNOWN
    roster.replace({"a": "reward"}, 1)
    assert roster.standing("a") is Standing.CURRENT
    assert roster.standing("b") is Standing.UNKNOWN


def test_who_left_the_list_is_gone_whatever_is_said_later() -> None:
    roster = Roster()
    roster.replace({"a": "reward", "b": "reward"}, 1)
    assert roster.replace({"b": "reward"}, 1) == ["a"]
    roster.dismiss(["a"])
    roster.replace({"a": "reward", "b": "reward"}, 1)
    assert roster.standing("a") is Standing.GONE
    assert roster.standing("b") is Standing.CURRENT


def test_an_older_leader_changes_nothing() -> None:
    roster = Roster()
    roster.replace({"a": "reward"}, 7)
    with pytest.raises(Outdated, match="leader 7 has spoken"):
        roster.replace({}, 6)
    assert roster.standing("a") is Standing.CURRENT


def test_a_reopened_list_waits_for_the_operator_and_knows_who_left_meanwhile() -> None:
    roster = Roster()
    roster.replace({"a": "reward", "b": "reward"}, 3)
    roster.dismiss(["x"])
    again = Roster.restored(roster.record())
    assert again.standing("a") is Standing.UNKNOWN
    assert again.standing("x") is Standing.GONE
    with pytest.raises(Outdated):
        again.replace({}, 2)
    assert again.replace({"b": "reward"}, 3) == ["a"]


def test_of_those_that_are_gone_only_the_last_are_remembered_where_the_list_binds() -> None:
    names = [str(n) for n in range(GONE_KEPT + 5)]
    alone = Roster()
    alone.dismiss(names)
    assert len(alone.gone) == len(names), "here nothing else keeps them out"
    bound = Roster(binding=True)
    bound.replace({"a": "reward"}, 1)
    bound.dismiss(names)
    assert list(bound.gone) == names[5:]
    assert bound.standing(names[0]) is Standing.UNKNOWN, "not current either"
