"""Where pods run, behind one small interface; the planner knows nothing else of the place."""

import asyncio
from typing import Protocol

from roll_operator.plan import Pod, StartPod


class Backend(Protocol):
    """Starts, stops and reports pods. No method decides anything."""

    changed: asyncio.Event
    """Set whenever a pod started, ended or was removed."""

    def pods(self) -> tuple[Pod, ...]:
        """Every pod that exists now; an exited one until it is removed."""

    async def start(self, pod: StartPod) -> None: ...

    async def stop(self, uid: str, grace: float) -> None:
        """Asks the pod to end and returns; it is killed when the grace is over."""

    async def remove(self, uid: str) -> None:
        """Forgets an exited pod."""


__all__ = ["Backend"]
