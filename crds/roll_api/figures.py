"""How a number is written for people."""

from decimal import Decimal


def figure(value: float, digits: int = 6) -> str:
    """Its first digits, never with an exponent: 2,220 and 0.00001, not 2.22e+03 and 1e-05."""
    return f"{Decimal(f'{value:.{digits}g}'):,f}"
