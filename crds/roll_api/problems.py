"""What is wrong with a job, and where."""

from collections.abc import Iterable
from dataclasses import dataclass

Loc = tuple[int | str, ...]
"""The keys and indices that lead to a value, as pydantic reports them."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a job."""

    file: str
    line: int | None
    key_path: str
    message: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return (
            f"{where}: {self.key_path}: {self.message}"
            if self.key_path
            else f"{where}: {self.message}"
        )


class InvalidJob(Exception):
    """A job that cannot run, with all reasons."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(problems, key=lambda problem: (problem.line or 0, problem.key_path))
        super().__init__("\n".join(str(problem) for problem in self.problems))


def dotted(loc: Loc) -> str:
    """`spec.rewards[0].name`."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path
