"""How a worker process may end other than well; the entry point turns each into its exit code."""

from __future__ import annotations


class UserError(Exception):
    """The job's author can mend it, a restart can't: the process prints it and exits 2."""


class Unreachable(Exception):
    """Something that the job needs does not answer now, which a restart may mend: one line, exit 4."""


class Refused(Exception):
    """The scheduler will not speak to this process again: exit 3, or 0 when the job has ended."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(f"{reason}: {message}" if message else reason)
        self.reason = reason

    @property
    def exit_code(self) -> int:
        return 0 if self.reason == "job-ended" else 3


class Fenced(Refused):
    """A newer trainer has taken over; nothing that this one still does counts."""

    def __init__(self, message: str = "") -> None:
        super().__init__("fenced", message)


class Drained(Exception):
    """The process was asked to stop while it waited for the scheduler: exit 0."""
