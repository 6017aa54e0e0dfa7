"""The example that everybody runs first learns what it promises, from its file as it is."""

from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_random_model_learns_to_name_the_largest_of_three_digits(workshop: Any) -> None:
    run = workshop.start(EXAMPLES / "arithmetic.yaml")
    assert run.finish() == 0, run.err
    summary = run.summary()
    assert summary["phase"] == "Succeeded"
    learnt = summary["validationReward"]
    assert learnt["first"] < 0.3 and learnt["last"] > 0.9, learnt
    assert (summary["samples"]["lost"], summary["samples"]["trainedTwice"]) == (0, 0)
    assert summary["samples"]["trained"] == 120 * 32 * 8
