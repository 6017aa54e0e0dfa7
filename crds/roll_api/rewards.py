"""How an answer is judged."""

from typing import Annotated, Literal

from pydantic import Field

from roll_api.base import FreeForm, Label, Model, PythonObject


class Scorer(Model):
    """A function from an answer to a number: one that comes with the product, or one of your own."""

    kind: Literal["exactMatch", "regex", "math"] | None = None
    """Scorer that comes with the product."""

    python: PythonObject | None = None
    """Scorer of your own, `file.py:function`."""

    options: FreeForm = {}
    """Arguments of the scorer."""

    timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] = 30.0
    """Seconds that one call may take."""


class Reward(Model):
    """One named part of a sample's reward."""

    name: Label
    """Name in metrics."""

    tags: Annotated[list[Label], Field(max_length=64)] = []
    """Tags of the rows that it judges. Empty: all rows."""

    weight: Annotated[float, Field(ge=-1000, le=1000)] = 1.0
    """Factor of the score in the sum."""

    scorer: Scorer
    """What computes the score."""
