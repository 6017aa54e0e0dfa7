"""Numbers as people read them."""

import pytest
from roll_api.figures import figure


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (2223.4, 3, "2,220"),
        (812.4, 3, "812"),
        (0.0, 3, "0"),
        (0.333, 2, "0.33"),
        (1.0, 6, "1"),
        (-0.5, 6, "-0.5"),
        (1e-05, 6, "0.00001"),
        (12345678.0, 6, "12,345,700"),
    ],
)
def test_a_figure_has_no_exponent(value: float, digits: int, text: str) -> None:
    assert figure(value, digits) == text
