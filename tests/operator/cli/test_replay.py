"""What `roll replay` says of how its trainer ended."""

import json

import pytest
from roll_operator.cli.replay import _report
from roll_operator.plan import Pod, PodPhase

VERDICT = {
    "equal": False,
    "differentFrom": 2,
    "steps": [{"step": 2, "recorded": "a", "replayed": "b"}],
}
TRACEBACK = ["Traceback (most recent call last):", '  File "loop.py", line 1', "KeyError: 'step'"]


def ended(exit_code: int) -> Pod:
    return Pod("j-trainer-0", "trainer", 0, "uid", 0, PodPhase.EXITED, exit_code=exit_code)


@pytest.mark.parametrize(
    "before",
    [[], ["WARNING a checkpoint is passed over"], ['{"torch": warns']],
    ids=["nothing", "a warning", "half a document"],
)
def test_a_trainer_that_compared_gives_the_verdict(
    before: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _report(ended(1), [*before, json.dumps(VERDICT)], as_json=True) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out) == VERDICT
    assert shown.err.splitlines() == before


@pytest.mark.parametrize(
    "before",
    [[], ["{'no': 'JSON'}"], ['{"another": "document"}'], ['{"equal": fal']],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_trainer_that_died_before_its_verdict_is_no_difference(
    before: list[str], as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _report(ended(1), [*before, *TRACEBACK], as_json) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "  KeyError: 'step'\nerror: j-trainer-0: exit code 1\n" in shown.err
