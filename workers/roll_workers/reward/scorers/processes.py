"""Processes that run scorer functions and can be killed.

Invariants: a call ends within its time-out (counted from when a process took it, plus a grace for async
functions) whatever the function does; a call that hangs costs the others nothing but its process; a
killed process is replaced when it is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from roll_workers.errors import UserError
from roll_workers.reward.scorers import Reward, ScorerCrash, ScorerError, ScorerTimeout
from roll_workers.reward.scorers.child import HEADER

START_SECONDS = 120.0  # import of the user's file; torch on a busy machine takes its time
ENDING_SECONDS = 10.0  # between the end of what a process says and its own
STUCK_SECONDS = 0.5  # no process got free in this time: one more is started
MOST_PROCESSES = 32
ASYNC_CALLS = 32  # calls of one async function that share a process; they mostly wait
ASYNC_GRACE = 2.0  # an async function ends by itself at its time-out, unless it blocks its process


class ScorerProcesses:
    """Calls `file.py:function`, or `module:function` of ours, in other processes.

    `constants` are arguments that every call has.
    """

    def __init__(
        self,
        reference: str,
        *,
        timeout: float,
        source: Path = Path(),
        constants: dict[str, Any] | None = None,
        processes: int | None = None,
    ) -> None:
        self.reference = reference
        self.source = source
        self.timeout = timeout
        self.constants = constants or {}
        self.size = processes or min(4, len(os.sched_getaffinity(0)))
        self._processes: set[_Process] = set()
        self._starting: asyncio.Task[None] | None = None
        self._problem = ""  # why the last start failed
        self._free: asyncio.Queue[_Process] = asyncio.Queue()  # one entry per free place

    async def start(self) -> None:
        """Starts the first process; UserError when it can't load the function, or that takes no such options."""
        first = await self._add()
        unknown = self.constants.keys() - first.takes if first.takes is not None else ()
        if unknown:
            await self.close()
            raise UserError(
                f"{self.reference} has no parameter {', '.join(sorted(unknown))}, which scorer.options names"
            )

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        for process in list(self._processes):
            await process.kill()
        self._processes.clear()

    async def call(self, arguments: dict[str, Any]) -> Reward:
        process = await self._place()
        grace = ASYNC_GRACE if process.is_async else 0.0
        try:
            async with asyncio.timeout(self.timeout + grace):
                answer = await process.call(arguments | self.constants)
        except TimeoutError:
            await self._remove(process)
            raise ScorerTimeout(self._late()) from None
        except ScorerCrash:
            await self._remove(process)
            raise
        except asyncio.CancelledError:
            if not process.is_async:  # it still works on the call; nobody waits for it
                await self._remove(process)
            raise
        self._free.put_nowait(process)
        if "timeout" in answer:
            raise ScorerTimeout(self._late())
        if "error" in answer:
            raise ScorerError(answer["error"])
        return Reward(answer["value"], answer["parts"], answer["turns"])

    def _late(self) -> str:
        return f"{self.reference} did not end within {self.timeout:g} s"

    async def _place(self) -> _Process:
        """A process with room for a call. Where all are busy for long, one more is started: hung calls
        must not hold up the others."""
        most = self.size
        while True:
            while not self._free.empty():
                process = self._free.get_nowait()
                if process in self._processes:
                    return process
            if self._starting is None and len(self._processes) < most:
                self._starting = asyncio.create_task(self._add_later())
            try:
                async with asyncio.timeout(STUCK_SECONDS):
                    process = await self._free.get()
                if process in self._processes:
                    return process
            except TimeoutError:
                most = MOST_PROCESSES
                if self._problem and not self._processes:
                    raise ScorerCrash(self._problem) from None

    async def _add_later(self) -> None:
        try:
            await self._add()
            self._problem = ""
        except (
            UserError,
            OSError,
        ) as error:  # it loaded at the start: files or memory are short now
            self._problem = f"{self.reference}: can't start a scorer process: {error}"
        finally:
            self._starting = None

    async def _add(self) -> _Process:
        process = await _Process.start(self.reference, self.source, self.timeout)
        self._processes.add(process)
        for _ in range(ASYNC_CALLS if process.is_async else 1):
            self._free.put_nowait(process)
        return process

    async def _remove(self, process: _Process) -> None:
        self._processes.discard(process)
        await process.kill()


class _Process:
    """One child and the calls that it works on."""

    def __init__(
        self,
        child: asyncio.subprocess.Process,
        name: str,
        is_async: bool,
        takes: frozenset[str] | None,
    ) -> None:
        assert child.stdin is not None and child.stdout is not None
        self.is_async = is_async
        self.takes = takes  # names of the function's parameters; None: any
        self._child, self._name = child, name
        self._stdin, self._stdout = child.stdin, child.stdout
        self._calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, reference: str, source: Path, seconds: float) -> _Process:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "roll_workers.reward.scorers.child"),
            *(reference, str(source), str(seconds), str(os.getpid())),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert child.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await _receive(child.stdout)
            if "error" in ready:
                raise UserError(ready["error"])
        except BaseException as error:
            if isinstance(error, asyncio.IncompleteReadError):
                # It is ending by itself. To signal it now could take its exit code from who waits for it.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ENDING_SECONDS):
                        await child.wait()
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
            await child.communicate()  # nothing of it is left when this returns
            if isinstance(error, TimeoutError):
                raise UserError(
                    f"{reference}: the import did not end within {START_SECONDS:g} s"
                ) from None
            if isinstance(error, asyncio.IncompleteReadError):
                how = _ending(child.returncode or 0)
                raise UserError(f"{reference}: the import ended its process ({how})") from None
            raise
        takes = None if ready["takes"] is None else frozenset(ready["takes"])
        return cls(child, reference, ready["async"], takes)

    async def call(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        number = self._number
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        try:
            body = json.dumps([number, arguments]).encode()
            self._stdin.write(HEADER.pack(len(body)) + body)
            if self._reader.done():
                raise ScorerCrash(f"the process of {self._name} has ended")
            return await future
        finally:
            del self._calls[number]

    async def _read(self) -> None:
        try:
            while True:
                answer = await _receive(self._stdout)
                waiting = self._calls.get(answer["id"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            how = _ending(await self._child.wait())
            for waiting in self._calls.values():
                if not waiting.done():
                    waiting.set_exception(ScorerCrash(f"the process of {self._name} died: {how}"))

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()
        self._stdin.close()
        await asyncio.gather(self._reader, return_exceptions=True)


async def _receive(stream: asyncio.StreamReader) -> dict[str, Any]:
    (length,) = HEADER.unpack(await stream.readexactly(HEADER.size))
    return json.loads(await stream.readexactly(length))


def _ending(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
