"""Which files of a folder are the rows of a split: the same for who looks at a job and for who reads its data."""

import re
from pathlib import Path

SUFFIXES = (".jsonl", ".json", ".parquet", ".arrow")
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "test", "testing", "eval", "evaluation"),
}
"""What files of a split are called in the folders that data sets are published as. Whole words: what stands between
digits and signs, as for the `datasets` library."""

_DESCRIPTIONS = ("dataset_info", "state", "dataset_dict", ".")
_WORD = re.compile(r"[a-z]+")


class NoFiles(Exception):
    """Why a folder has nothing for a split."""


def files_of(folder: Path, split: str) -> list[Path]:
    """Those that are named for the split, or else those that are named for none. Raises NoFiles."""
    found = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in SUFFIXES and not file.name.startswith(_DESCRIPTIONS)
    )
    if not found:
        raise NoFiles(f"the folder {folder} has no {', '.join(SUFFIXES)} files")
    splits = {file: _named_for(file.relative_to(folder)) for file in found}
    chosen = [file for file in found if split in splits[file]] or [
        file for file in found if not splits[file]
    ]
    if not chosen:
        raise NoFiles(
            f"the folder {folder} has no files for {split}: all are named for another split, such as "
            f"{found[0].relative_to(folder)}; names for it are {', '.join(SPLIT_NAMES[split])}"
        )
    return chosen


def _named_for(file: Path) -> set[str]:
    """The splits that a file belongs to by its own name, or else by that of the nearest folder with such a name."""
    for part in reversed(file.parts):
        words = set(_WORD.findall(part.lower()))
        if named := {split for split, names in SPLIT_NAMES.items() if words & set(names)}:
            return named
    return set()
