"""The names behind `builtin:` that workers can make by themselves."""

PREFIX = "builtin:"
HELD_OUT = "/held-out"

MODELS = ("tiny-qwen2", "tiny-qwen2-frozenlake", "smollm2-135m-instruct")
DATA = ("largest-of-three", "middle-of-three", "sums")
"""Each also with `/held-out` behind it."""


def unknown_model(path: str) -> str:
    """What is wrong with a `builtin:` model; nothing if it is one."""
    return _unknown(path.removeprefix(PREFIX), MODELS)


def unknown_data(path: str) -> str:
    """What is wrong with a `builtin:` data set; nothing if it is one."""
    said = _unknown(path.removeprefix(PREFIX).removesuffix(HELD_OUT), DATA)
    return f"{said}, each also with {HELD_OUT}" if said else ""


def _unknown(name: str, known: tuple[str, ...]) -> str:
    if name in known:
        return ""
    return f"there is no {PREFIX}{name}; there are {', '.join(PREFIX + other for other in known)}"
