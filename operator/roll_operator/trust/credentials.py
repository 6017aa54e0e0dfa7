"""The operator's side of a connection to a job's scheduler, and the audiences of both kinds of tokens."""

from __future__ import annotations

from pathlib import Path

import grpc
from roll_wire import credentials

OPERATOR_AUDIENCE = "roll.dev/operator"
"""Of the operator's own token: every job's scheduler accepts it, no worker has one."""


def audience(job_uid: str) -> str:
    """Of the tokens of a job's pods: no other job's scheduler accepts them."""
    return f"roll.dev/{job_uid}"


def operator_credentials(bundle: bytes, token: Path) -> grpc.ChannelCredentials:
    """For a channel to the scheduler of the job that trusts `bundle`.

    The token is read for every call. A channel keeps its bundle: a longer one needs a new channel.
    """
    return credentials.client(bundle, token)
