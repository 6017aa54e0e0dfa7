"""One question to the scheduler of a running job."""

from collections.abc import Callable
from typing import TypeVar

from roll_operator.controller.folder import RunFolder

Answer = TypeVar("Answer")
CALL_SECONDS = 3.0


def ask(folder: RunFolder, question: Callable[..., Answer]) -> Answer | None:
    """The answer, or None when the job does not run or its scheduler is away for the moment.

    `question` gets a Control stub.
    """
    if not folder.in_use():
        return None
    import grpc
    from roll_wire import control_pb2_grpc
    from roll_wire.channel import CLIENT_OPTIONS

    with grpc.insecure_channel(folder.run()["scheduler"], options=CLIENT_OPTIONS) as channel:
        try:
            return question(control_pb2_grpc.ControlStub(channel))
        except grpc.RpcError as error:
            code = error.code() if isinstance(error, grpc.Call) else None
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return None
            raise
