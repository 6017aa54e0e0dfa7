"""Pods as processes of this machine.

Invariants: a pod is the leader of a session and process group of its own; its end is seen through a pidfd as
soon as it happens; before its pid is given back its whole group is killed, so no pid is ever signalled that
could meanwhile belong to somebody else; and when this process ends, in whatever way, so do all pods and
everything they started (`launch.py`, `sweep.py`).
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from roll_wire.ports import free_port

from roll_operator.backends import launch, sweep
from roll_operator.backends.logs import last_error
from roll_operator.plan import Pod, PodPhase, StartPod
from roll_operator.plan.model import SCHEDULER

Command = Callable[[StartPod], list[str]]


def module_command(pod: StartPod) -> list[str]:
    """The same entry points as in the images."""
    module = "roll_operator.scheduler" if pod.role == SCHEDULER else "roll_workers"
    return [sys.executable, "-m", module]


@dataclass(slots=True)
class _Child:
    pod: Pod
    process: subprocess.Popen[bytes]
    pidfd: int
    log: Path
    kill_timer: asyncio.TimerHandle | None = None


class LocalBackend:
    """Use inside `async with`; leaving it ends every process that is left."""

    def __init__(
        self,
        logs: Path,
        mark: str,
        command: Command | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.changed = asyncio.Event()
        self._logs = logs
        self._mark = mark
        self._command = command or module_command
        self._clock = clock
        self._children: dict[str, _Child] = {}
        self._rendezvous: dict[int, int] = {}
        self._guard: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> "LocalBackend":
        self._logs.mkdir(parents=True, exist_ok=True)
        # What an earlier run left when it and its guard were killed together.
        await asyncio.to_thread(sweep.sweep, self._mark)
        self._guard = self._start_guard()
        return self

    async def __aexit__(self, *_: object) -> None:
        for child in self._children.values():
            if child.pod.phase is not PodPhase.EXITED:
                self._kill(child)
                child.process.wait()
        for uid in list(self._children):
            self._close(self._children.pop(uid))
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            await asyncio.to_thread(self._guard.wait)

    def pods(self) -> tuple[Pod, ...]:
        return tuple(child.pod for child in self._children.values())

    def log_of(self, name: str, attempt: int) -> Path:
        return self._logs / f"{name}.{attempt}.log"

    async def start(self, pod: StartPod) -> None:
        process, log = self._spawn(pod)
        child = _Child(
            Pod(
                name=pod.name,
                role=pod.role,
                index=pod.index,
                uid=pod.uid,
                attempt=pod.attempt,
                phase=PodPhase.RUNNING,
                pid=process.pid,
                started_at=self._clock(),
            ),
            process,
            os.pidfd_open(process.pid),
            log,
        )
        self._children[pod.uid] = child
        asyncio.get_running_loop().add_reader(child.pidfd, self._ended, child)
        self.changed.set()

    async def stop(self, uid: str, grace: float) -> None:
        child = self._children.get(uid)
        if child is None or child.pod.phase is PodPhase.EXITED:
            return
        # Only the leader is asked, as in a container: what it started is its own to end, within the grace.
        self._signal(child, signal.SIGTERM)
        child.pod = replace(child.pod, phase=PodPhase.STOPPING)
        if child.kill_timer is not None:
            child.kill_timer.cancel()
        child.kill_timer = asyncio.get_running_loop().call_later(grace, self._kill, child)
        self.changed.set()

    async def remove(self, uid: str) -> None:
        child = self._children.get(uid)
        if child is not None and child.pod.phase is PodPhase.EXITED:
            del self._children[uid]
            self.changed.set()

    def kill_all(self) -> None:
        """The second Ctrl-C."""
        for child in self._children.values():
            self._kill(child)

    def _start_guard(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", sweep.__file__, self._mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _spawn(self, pod: StartPod) -> tuple[subprocess.Popen[bytes], Path]:
        log = self.log_of(pod.name, pod.attempt)
        command = [
            sys.executable,
            "-I",
            "-S",
            launch.__file__,
            str(os.getpid()),
            *self._command(pod),
        ]
        with log.open("ab") as output:
            # The promise of `launch.py` is to the thread that forks: it must be one that lasts.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment(pod),
                start_new_session=True,
            )
        return process, log

    def _environment(self, pod: StartPod) -> Mapping[str, str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("ROLL_")}
        env.update(pod.env)
        env[sweep.MARK] = self._mark
        env["PYTHONUNBUFFERED"] = "1"
        if pod.role == "trainer":
            # A new port for each attempt: the last one's may still be closing.
            port = self._rendezvous.setdefault(pod.attempt, 0) or free_port()
            self._rendezvous[pod.attempt] = port
            env["MASTER_ADDR"] = "127.0.0.1"
            env["MASTER_PORT"] = str(port)
        return env

    def _ended(self, child: _Child) -> None:
        self._close(child)
        # The leader is not waited for yet, so its pid, and with it the group's, is still its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
        for pid in sweep.marked(child.pod.uid, "ROLL_POD_UID"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        code = child.process.wait()
        child.pod = replace(
            child.pod,
            phase=PodPhase.EXITED,
            ended_at=self._clock(),
            exit_code=code if code >= 0 else 128 - code,
            message=last_error(child.log) if code > 0 else "",
        )
        self.changed.set()

    def _kill(self, child: _Child) -> None:
        if child.pod.phase is not PodPhase.EXITED:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.process.pid, signal.SIGKILL)
            self._signal(child, signal.SIGKILL)

    def _signal(self, child: _Child, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(child.pidfd, number)

    def _close(self, child: _Child) -> None:
        if child.kill_timer is not None:
            child.kill_timer.cancel()
            child.kill_timer = None
        if child.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(child.pidfd)
            os.close(child.pidfd)
            child.pidfd = -1
