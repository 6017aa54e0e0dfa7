"""Calls into user code that may never return, without holding up anything else.

A thread can't be killed: one that hangs is abandoned, its result dropped. Threads are daemons, so that a
hung one does not keep the process from ending; too many of them end the process, which starts afresh.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
MOST_ABANDONED = 64


class Threads:
    def __init__(self) -> None:
        self._idle: list[_Thread] = []
        self.abandoned = 0

    async def call(self, function: Callable[..., T], *arguments: Any, seconds: float) -> T:
        """TimeoutError when the call does not end in time."""
        thread = self._idle.pop() if self._idle else _Thread()
        future = thread.submit(function, arguments)
        try:
            async with asyncio.timeout(seconds):
                result: T = await asyncio.shield(future)
        except (TimeoutError, asyncio.CancelledError):
            if not future.done():
                self._abandon(thread, future)
                raise
            self._idle.append(thread)
            raise
        except BaseException:
            self._idle.append(thread)
            raise
        self._idle.append(thread)
        return result

    def _abandon(self, thread: _Thread, future: asyncio.Future[Any]) -> None:
        self.abandoned += 1
        if self.abandoned > MOST_ABANDONED:
            raise SystemExit(f"{self.abandoned} calls of the environment hang")
        future.add_done_callback(lambda done: self._came_back(thread, done))

    def _came_back(self, thread: _Thread, future: asyncio.Future[Any]) -> None:
        self.abandoned -= 1
        self._idle.append(thread)
        if not future.cancelled():
            future.exception()  # looked at: asyncio need not complain


class _Thread:
    """One daemon thread and its next call."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="environment", daemon=True).start()

    def submit(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._calls.put((loop, future, function, arguments))
        return future

    def _run(self) -> None:
        while True:
            loop, future, function, arguments = self._calls.get()
            try:
                tell, value = future.set_result, function(*arguments)
            except BaseException as error:
                tell, value = future.set_exception, error
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(tell, value)
