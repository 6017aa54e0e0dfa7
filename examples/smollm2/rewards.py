"""What the pretrained model is taught: it knows sums, but it talks around them."""

import re


def score(response: str, answer: str) -> dict[str, float]:
    """Half for the right last number, half for nothing but a number."""
    numbers = re.findall(r"\d+", response)
    return {
        "right": 0.5 if numbers[-1:] == [answer] else 0.0,
        "only": 0.5 if response.strip().isdigit() else 0.0,
    }
