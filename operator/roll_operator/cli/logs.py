"""`roll logs`: the files in RUN/logs, one per process and attempt."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from roll_operator.controller.folder import RunError, RunFolder

POLL_SECONDS = 0.2


@dataclass(slots=True)
class _Log:
    path: Path
    pod: str
    attempt: int
    position: int = 0


def show_logs(
    folder: RunFolder, *, pod: str | None, role: str | None, follow: bool, lines: int
) -> int:
    logs = _select(folder, pod, role)
    if not logs and not follow:
        raise RunError(f"no log in {folder.logs} fits; there are: {_names(folder)}")
    for log in logs:
        _print_new(log, prefixed=len(logs) > 1, last=lines)
    while follow:
        known = {log.path for log in logs}
        logs.extend(log for log in _select(folder, pod, role) if log.path not in known)
        for log in logs:
            _print_new(log, prefixed=True)
        if not folder.in_use():
            return 0
        time.sleep(POLL_SECONDS)
    return 0


def _select(folder: RunFolder, pod: str | None, role: str | None) -> list[_Log]:
    job = folder.run().get("job", "")
    found = []
    for path in folder.logs.glob("*.log"):
        name, _, attempt = path.stem.rpartition(".")
        if not attempt.isdigit():
            continue
        short = name.removeprefix(f"{job}-")
        if role is not None and short.rpartition("-")[0] != role:
            continue
        if pod is not None and pod not in (name, short, f"{name}.{attempt}", f"{short}.{attempt}"):
            continue
        found.append(_Log(path, short, int(attempt)))
    return sorted(found, key=lambda log: (log.pod, log.attempt))


def _names(folder: RunFolder) -> str:
    return ", ".join(f"{log.pod}.{log.attempt}" for log in _select(folder, None, None)) or "none"


def _print_new(log: _Log, *, prefixed: bool, last: int = 0) -> None:
    """Whole lines that were not printed yet."""
    try:
        with log.path.open("rb") as file:
            file.seek(log.position)
            data = file.read()
    except FileNotFoundError:
        return
    whole = data[: data.rfind(b"\n") + 1]
    log.position += len(whole)
    for line in whole.decode("utf-8", "replace").splitlines()[-last:]:
        print(f"{log.pod}.{log.attempt} | {line}" if prefixed else line)
    sys.stdout.flush()
