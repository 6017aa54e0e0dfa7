"""Programs in the background: started once, watched until they answer, stopped by their own id.

A process is known by id *and* start time, written when it is started. An id that the kernel has given
to somebody else since then is therefore never signalled.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from roll_cluster.settings import ClusterError


@dataclass(frozen=True)
class Process:
    name: str
    pid_file: Path
    log: Path

    @property
    def pid(self) -> int | None:
        """The id of the running process, or None."""
        try:
            pid, started = map(int, self.pid_file.read_text().split())
        except (FileNotFoundError, ValueError):
            return None
        return pid if started and start_time(pid) == started else None

    def start(self, command: Sequence[str | Path], *, with_parent: bool = False) -> None:
        """Start it unless it runs. `with_parent`: the kernel kills it when the caller ends."""
        if self.pid is not None:
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.pid_file.parent.mkdir(parents=True, exist_ok=True)
        arguments = [str(part) for part in command]
        if with_parent:
            arguments = ["setpriv", "--pdeathsig", "KILL", "--", *arguments]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid_file.write_text(f"{process.pid} {start_time(process.pid) or 0}")

    def wait(self, answers: Callable[[], bool], seconds: float) -> None:
        """Until it answers; an error with the end of its log if it ends or takes too long."""
        deadline = time.monotonic() + seconds
        while self.pid is not None:
            if answers():
                return
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{self.name} is not ready after {seconds:g} s; {self.last_words()}"
                )
            time.sleep(0.05)
        raise ClusterError(f"{self.name} ended at once; {self.last_words()}")

    def stop(self, seconds: float = 10) -> None:
        """SIGTERM, then SIGKILL; returns when it is gone."""
        for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 10)):
            if (pid := self.pid) is not None:
                end(pid, number, patience)
        if self.pid is not None:
            raise ClusterError(f"{self.name} (process {self.pid}) cannot be stopped")
        self.pid_file.unlink(missing_ok=True)

    def last_words(self, lines: int = 15) -> str:
        try:
            tail = self.log.read_text(errors="replace").splitlines()[-lines:]
        except FileNotFoundError:
            tail = []
        return "\n".join([f"the end of {self.log}:", *(f"  {line}" for line in tail)])


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def end(pid: int, number: signal.Signals, patience: float) -> bool:
    """Signal one process and wait for its end."""
    started = start_time(pid)
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if start_time(pid) != started or started is None:
            return True
        time.sleep(0.02)
    return False


def run(*command: str | Path, check: bool = True, **options: object) -> str:
    """The output of a command; an error with what it said."""
    arguments = [str(part) for part in command]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    except FileNotFoundError:
        raise ClusterError(f"{arguments[0]} is not installed") from None
    if check and done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise ClusterError(f"{' '.join(arguments[:4])} … failed: {said}")
    return str(done.stdout)
