"""What an API server may answer instead of doing it, as types: each asks for another reaction."""

import json
from typing import Any


class ApiError(Exception):
    """A call that was refused or failed; `status` is HTTP's, 0 when there was no answer."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else message)
        self.status, self.reason, self.message = status, reason, message
        self.retry_after = retry_after


class NotFound(ApiError):
    """404: what is to be gone is gone, what is to be changed is not there."""


class AlreadyExists(ApiError):
    """409: the name is taken, by an earlier try of this operator or by somebody else."""


class Conflict(ApiError):
    """409: the object is not the one that was seen, by version or by UID."""


class Gone(ApiError):
    """410: the version asked for is too old; list again."""


class Invalid(ApiError):
    """400, 422: the object itself is refused; trying again changes nothing."""


class Forbidden(ApiError):
    """403: no right, or a quota or a policy says no."""


class Throttled(ApiError):
    """429, or 503 with a time: not now."""


class Unavailable(ApiError):
    """No connection, no answer in time, or the server's own fault."""


class NotLeader(Exception):
    """The lease ran out before the write: another operator may be acting."""


def error_of(status: int, headers: Any, body: bytes) -> ApiError:
    reason, message = "", body[:500].decode("utf-8", "replace")
    try:
        document = json.loads(body)
        reason, message = str(document.get("reason", "")), str(document.get("message", ""))
    except (ValueError, AttributeError):
        pass  # a proxy's page, not a Status: its text is the message
    retry_after = _seconds(headers.get("Retry-After"))
    return _kind(status, reason, retry_after)(status, reason, message, retry_after)


def _kind(status: int, reason: str, retry_after: float) -> type[ApiError]:
    if status == 409:
        return AlreadyExists if reason == "AlreadyExists" else Conflict
    if status == 429 or (status == 503 and retry_after):
        return Throttled
    if status >= 500:
        return Unavailable
    known: dict[int, type[ApiError]] = {
        400: Invalid,
        403: Forbidden,
        404: NotFound,
        410: Gone,
        422: Invalid,
    }
    return known.get(status, ApiError)


def _seconds(text: str | None) -> float:
    return float(text) if text and text.isdigit() else 0.0
