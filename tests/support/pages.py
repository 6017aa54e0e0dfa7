"""The pages that a user reads, taken apart: blocks of code, words set as code, cells of tables."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str | Path, language: str = "") -> list[str]:
    found = FENCED.findall((ROOT / page).read_text(encoding="utf-8"))
    return [text for kind, text in found if kind == language]


def spans(text: str) -> list[str]:
    """What stands between backticks in a line of prose or in a cell."""
    return [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", FENCED.sub("", text))]


def table(page: str | Path, header: str) -> list[list[str]]:
    """The cells of all tables whose first column has this header, without their heads."""
    rows: list[list[str]] = []
    inside = False
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        inside = line.startswith("|") and (inside or line.startswith(f"| {header} |"))
        if inside and not line.startswith((f"| {header} |", "| --- |")):
            rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    assert rows, f"{page} has no table with {header}"
    return rows
