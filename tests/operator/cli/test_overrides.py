"""`--set` is told off in the words that a file is."""

from pathlib import Path

import pytest
from roll_api import InvalidJob, load_job
from roll_operator.cli.overrides import override

EXAMPLE = Path(__file__).parents[3] / "examples" / "arithmetic.yaml"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "algorithm.learningrate=1",
            "--set: spec.algorithm.learningrate: unknown key; did you mean learningRate?",
        ),
        ("steps=abc", "--set: spec.steps: input should be a valid integer, not 'abc'"),
        (
            "rewards.0.scorer={python: score}",
            "--set: spec.rewards[0].scorer.python: write FILE.py:NAME, e.g. rewards.py:score, not 'score'",
        ),
    ],
)
def test_a_wrong_change_is_explained(change: str, said: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        override(load_job(EXAMPLE), [change])

    assert str(refused.value) == said
