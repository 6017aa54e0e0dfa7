"""Processes that run scorer functions and can be killed.

Invariants: a call ends within its time-out (counted from when a process took it, plus a grace for async
functions) whatever the function does; a call that hangs costs the others nothing but its process; a
killed process is replaced when it is needed. Calls are taken in the order in which they came. There are
more processes than `size` only after a time in which none of them got free, and not for long after that.
Calls of an async function share a process: when it ends or is blocked, nobody knows whose fault that was,
so each of its calls is judged once more in a process of its own, and only what happens there is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from roll_workers.errors import UserError
from roll_workers.reward.scorers import Reward, ScorerCrash, ScorerError, ScorerTimeout
from roll_workers.reward.scorers.child import HEADER

START_SECONDS = 120.0  # import of the user's file; torch on a busy machine takes its time
ENDING_SECONDS = 10.0  # between the end of what a process says and its own
STUCK_SECONDS = 0.5  # no process got free in this time: one more is started
IDLE_SECONDS = 10.0  # one more than `size` that had nothing to do in this time is ended
LOOK_SECONDS = 0.1
MOST_PROCESSES = 32
ASYNC_CALLS = 32  # calls of one async function that share a process; they mostly wait
ASYNC_GRACE = 2.0  # an async function ends by itself at its time-out, unless it blocks its process
ALONE = 8  # calls at once that have a process of their own; they mostly wait, too


class _Suspect(Exception):
    """The process that this call shared with others has ended or was blocked."""


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
        # One entry per free place, the last used on top. Not empty only while nobody waits.
        self._free: list[_Process] = []
        self._waiting: deque[asyncio.Future[_Process]] = deque()
        self._moved = 0.0  # when a place last got free, or the first in the queue came
        self._tending: asyncio.Task[None] | None = None
        self._alone = asyncio.Semaphore(ALONE)

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
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.gather(self._tending, return_exceptions=True)
        for process in list(self._processes):
            await self._remove(process)

    async def call(self, arguments: dict[str, Any]) -> Reward:
        try:
            answer = await self._call_shared(arguments | self.constants)
        except _Suspect:
            answer = await self._call_alone(arguments | self.constants)
        if "timeout" in answer:
            raise ScorerTimeout(self._late())
        if "error" in answer:
            raise ScorerError(answer["error"])
        return Reward(answer["value"], answer["parts"], answer["turns"])

    async def _call_shared(self, arguments: dict[str, Any]) -> dict[str, Any]:
        process = await self._place()
        try:
            answer = await self._ask(process, arguments)
        except (ScorerTimeout, ScorerCrash) as error:
            await self._remove(process)
            if process.is_async:
                raise _Suspect from error
            raise
        except asyncio.CancelledError:
            if process.is_async:
                self._give_back(process)
            else:  # it still works on the call; nobody waits for it
                await self._remove(process)
            raise
        self._give_back(process)
        if answer.get("blocked"):
            raise _Suspect
        return answer

    async def _call_alone(self, arguments: dict[str, Any]) -> dict[str, Any]:
        async with self._alone:
            try:
                process = await _Process.start(self.reference, self.source, self.timeout)
            except (UserError, OSError) as error:
                raise ScorerCrash(self._unstarted(error)) from error
            try:
                return await self._ask(process, arguments)
            finally:
                await process.kill()

    async def _ask(self, process: _Process, arguments: dict[str, Any]) -> dict[str, Any]:
        grace = ASYNC_GRACE if process.is_async else 0.0
        try:
            async with asyncio.timeout(self.timeout + grace):
                return await process.call(arguments)
        except TimeoutError:
            raise ScorerTimeout(self._late()) from None

    def _late(self) -> str:
        return f"{self.reference} did not end within {self.timeout:g} s"

    def _unstarted(self, error: Exception) -> str:
        return f"{self.reference}: can't start a scorer process: {error}"

    async def _place(self) -> _Process:
        """A process with room for a call; after those who asked before."""
        if self._free:
            return self._free.pop()
        if not self._waiting:
            self._moved = time.monotonic()
        turn: asyncio.Future[_Process] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if self._tending is None:
            self._tending = asyncio.create_task(self._tend())
        try:
            return await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled() and turn.exception() is None:  # it came at the same moment
                self._give_back(turn.result())
            raise

    def _give_back(self, process: _Process) -> None:
        if process not in self._processes:
            return
        self._moved = process.rested = time.monotonic()
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled, and about to say so
                turn.set_result(process)
                return
        self._free.append(process)

    async def _tend(self) -> None:
        """As many processes as it takes, while calls wait or there are more than `size`."""
        try:
            while self._waiting or len(self._processes) > self.size:
                stuck = time.monotonic() - self._moved > STUCK_SECONDS
                most = MOST_PROCESSES if stuck else self.size
                if self._waiting and len(self._processes) < most:
                    await self._add_for_those_who_wait()
                elif surplus := self._idle():
                    await self._remove(surplus)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._tending = None

    async def _add_for_those_who_wait(self) -> None:
        try:
            await self._add()
        except (UserError, OSError) as error:  # it loaded at the start: files or memory are short
            if self._processes:  # those who wait can wait for one of these
                await asyncio.sleep(STUCK_SECONDS)
                return
            for turn in self._waiting:
                if not turn.done():
                    turn.set_exception(ScorerCrash(self._unstarted(error)))
            self._waiting.clear()

    def _idle(self) -> _Process | None:
        """One that can be spared and had nothing to do for long."""
        since = time.monotonic() - IDLE_SECONDS
        if len(self._processes) <= self.size:
            return None
        return next(
            (p for p in self._processes if p.rested < since and self._free.count(p) == p.places),
            None,
        )

    async def _add(self) -> _Process:
        process = await _Process.start(self.reference, self.source, self.timeout)
        self._processes.add(process)
        for _ in range(process.places):
            self._give_back(process)
        return process

    async def _remove(self, process: _Process) -> None:
        self._processes.discard(process)
        self._free = [p for p in self._free if p is not process]
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
        self.places = ASYNC_CALLS if is_async else 1  # calls that it takes at once
        self.rested = 0.0  # when a call last ended
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
            self._send(number, arguments)
            if self._reader.done():
                raise ScorerCrash(f"the process of {self._name} has ended")
            return await future
        except asyncio.CancelledError:
            if self.is_async:
                self._send(number, None)  # it need not go on with the call
            raise
        finally:
            del self._calls[number]

    def _send(self, number: int, arguments: dict[str, Any] | None) -> None:
        body = json.dumps([number, arguments]).encode()
        self._stdin.write(HEADER.pack(len(body)) + body)

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
