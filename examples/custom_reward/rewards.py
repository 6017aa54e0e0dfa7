"""A reward of your own. It may take prompt, response, answer and any column of the data set."""


def score(prompt: str, response: str, answer: str) -> dict[str, float]:
    """Right answers count, and so does brevity; the parts show up in the sample's record by name."""
    right = 1.0 if response == answer else 0.0
    near = 0.2 if response in prompt.strip("=").split(",") else 0.0  # one of the three digits
    short = 0.1 if len(response) == 1 else 0.0
    return {"right": right, "near": near, "short": short}
