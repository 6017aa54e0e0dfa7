"""A process that runs one scorer function: the far end of `processes.py`.

Frames on stdin and stdout: a length, then JSON; without arguments, a frame cancels the async call of its
number. It ends when its parent does, also in the middle of an endless loop. What the function prints goes
to the worker's log.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import inspect
import json
import os
import signal
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from roll_workers.errors import UserError
from roll_workers.reward.scorers import ScorerError, as_reward
from roll_workers.user_code import describe, load_object

HEADER = struct.Struct("<I")
BLOCKED_SECONDS = 0.5  # a time-out that comes so much later: something held up the whole loop
_PR_SET_PDEATHSIG = 1


class Function:
    """The scorer function, called with the parameters that it names."""

    def __init__(self, reference: str, source: Path) -> None:
        file, _, name = reference.rpartition(":")
        if file.endswith(".py"):
            self.path: Path | None = (source / file).resolve()
            self.call = load_object(reference, source)
        else:
            module = importlib.import_module(file)
            self.path = None
            self.call = getattr(module, name)
            getattr(module, "prepare", lambda: None)()
        if not callable(self.call):
            raise UserError(f"{reference}: {name} is a {type(self.call).__name__}, not a function")
        self.name = reference if self.path else name
        self.is_async = inspect.iscoroutinefunction(self.call)
        parameters = inspect.signature(self.call).parameters.values()
        self.takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.takes = {p.name for p in parameters}
        self.needs = {
            p.name
            for p in parameters
            if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        }

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        missing = self.needs - given.keys()
        if missing:
            raise ScorerError(
                f"{self.name} needs {', '.join(sorted(missing))}, which the data row does not have "
                f"(it is given {', '.join(sorted(given))})"
            )
        if self.takes_all:
            return given
        return {key: value for key, value in given.items() if key in self.takes}

    def answer(self, result: Any) -> dict[str, Any]:
        reward = as_reward(result, self.name)
        return {"value": reward.value, "parts": reward.parts, "turns": reward.turns}

    def failure(self, error: BaseException, given: dict[str, Any]) -> dict[str, Any]:
        if isinstance(error, ScorerError):
            return {"error": str(error)}
        said = f"{self.name} raised: {describe(error, self.path)}"
        # `**facts` asks for nothing by name: what is not there is found when it is looked up.
        missed = isinstance(error, KeyError) and error.args and str(error.args[0]) not in given
        if self.takes_all and missed:
            said += f" (it is given {', '.join(sorted(given))})"
        return {"error": said}


def serve(function: Function, requests: BinaryIO, send: Callable[[dict[str, Any]], None]) -> None:
    """One call after the other."""
    while frame := _read(requests):
        number, given = frame
        assert given is not None, "a cancelled call of a plain function costs its process"
        try:
            answer = function.answer(function.call(**function.arguments(given)))
        except BaseException as error:  # also sys.exit: the user's function does not end us
            answer = function.failure(error, given)
        send({"id": number, **answer})


async def serve_async(
    function: Function, requests: BinaryIO, send: Callable[[dict[str, Any]], None], seconds: float
) -> None:
    """Many calls at once; each ends by itself at its time-out unless a function blocks the loop."""
    loop = asyncio.get_running_loop()

    async def one(number: int, given: dict[str, Any]) -> None:
        ends = loop.time() + seconds
        limit = asyncio.timeout_at(ends)
        try:
            async with limit:
                result = await function.call(**function.arguments(given))
            answer = function.answer(result)
        except BaseException as error:
            if limit.expired():
                answer = {"timeout": True, "blocked": loop.time() - ends > BLOCKED_SECONDS}
            else:
                answer = function.failure(error, given)
        send({"id": number, **answer})

    running: dict[int, asyncio.Task[None]] = {}
    while frame := await asyncio.to_thread(_read, requests):
        number, given = frame
        if given is not None:
            running[number] = task = asyncio.create_task(one(number, given))
            task.add_done_callback(partial(_forget, running, number))
        elif number in running:
            running[number].cancel()


def _forget(running: dict[int, asyncio.Task[None]], number: int, _: asyncio.Task[None]) -> None:
    del running[number]


def _read(stream: BinaryIO) -> tuple[int, dict[str, Any] | None] | None:
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (length,) = HEADER.unpack(header)
    number, given = json.loads(stream.read(length))
    return number, given


def _end_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    # A drain is the worker's business: it closes our stdin when it is done.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main(reference: str, source: str, timeout: str, parent: str) -> None:
    _end_with_parent(int(parent))
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def send(message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        answers.write(HEADER.pack(len(body)) + body)
        answers.flush()

    try:
        function = Function(reference, Path(source))
    except UserError as error:
        send({"error": str(error)})
        return
    takes = None if function.takes_all else sorted(function.takes)
    send({"async": function.is_async, "takes": takes})
    if function.is_async:
        asyncio.run(serve_async(function, requests, send, float(timeout)))
    else:
        serve(function, requests, send)


if __name__ == "__main__":
    main(*sys.argv[1:])
