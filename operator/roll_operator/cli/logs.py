"""`roll logs`: the files in RUN/logs, one per process and attempt."""

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from roll_operator.controller.folder import RunError, RunFolder

POLL_SECONDS = 0.2
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")
TIME_LENGTH = len("2026-01-31 23:59:59,999")


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
    if len(logs) == 1:
        for line in _new_lines(logs[0], lines):
            print(line)
    else:
        _print_by_time(logs, lines)
    sys.stdout.flush()
    while follow:
        known = {log.path for log in logs}
        logs.extend(log for log in _select(folder, pod, role) if log.path not in known)
        _print_by_time(logs)
        sys.stdout.flush()
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


def _print_by_time(logs: Sequence[_Log], last: int = 0) -> None:
    """New lines of all logs in the order of their times; a line without one belongs to the line before it."""
    lines: list[tuple[str, str]] = []
    for log in logs:
        at = ""
        for line in _new_lines(log, last):
            at = line[:TIME_LENGTH] if TIME.match(line) else at
            lines.append((at, f"{log.pod}.{log.attempt} | {line}"))
    lines.sort(key=lambda line: line[0])
    for _, line in lines:
        print(line)


def _new_lines(log: _Log, last: int = 0) -> list[str]:
    """Whole lines that were not printed yet."""
    try:
        with log.path.open("rb") as file:
            file.seek(log.position)
            data = file.read()
    except FileNotFoundError:
        return []
    whole = data[: data.rfind(b"\n") + 1]
    log.position += len(whole)
    return whole.decode("utf-8", "replace").splitlines()[-last:]
