"""The operator's side of a connection to a job's scheduler."""

from __future__ import annotations

from pathlib import Path

import grpc
from roll_wire import credentials


def operator_credentials(bundle: bytes, token: Path) -> grpc.ChannelCredentials:
    """For a channel to the scheduler of the job that trusts `bundle`.

    The token is read for every call. A channel keeps its bundle: a longer one needs a new channel.
    """
    return credentials.client(bundle, token)
