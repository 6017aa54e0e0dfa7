"""What the end of a process' log says."""

from pathlib import Path

TAIL_BYTES = 65_536
ERROR = "error: "


def tail(log: Path, lines: int) -> list[str]:
    """The last lines that hold anything; none if there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]


def last_error(log: Path) -> str:
    """What the process said last about why it ended: its `error: …` line, else its last line."""
    lines = tail(log, 200)
    for line in reversed(lines):
        if line.startswith(ERROR):
            return line.removeprefix(ERROR)
    return lines[-1] if lines else ""
