"""Which files of this machine go along with a job to a cluster, by one rule (docs/kubernetes.md tells it to users):

1. What the job names by a relative path and what is there, looked for beside the job's file: Python files of
   rewards and of the environment, data, a model. A folder goes with all that is in it.
2. Of a Python file also the modules and packages in its own folder that it imports, and what these import.
3. What `--include` names.

`builtin:` names, ids of a hub and absolute paths stay as they are: pods look for them where they are.
Invariant: nothing outside the folder of the job's file is taken by its name, and no hidden file by accident.
"""

import ast
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from roll_api import InvalidJob, JobSpec, Problem, RLJob
from roll_api.problems import Loc, dotted
from roll_api.splits import SUFFIXES

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
CONFIG = re.compile(r"[\w.-]+")

Files = dict[str, Path]
"""By the name that a file has in the archive: relative to the folder of the job's file."""


def collect(job: RLJob, file: Path, include: Sequence[str] = ()) -> Files:
    """Raises InvalidJob with everything that is named and cannot go along."""
    root, found = file.resolve().parent, Files()
    wrong: list[tuple[Loc, str]] = []
    for loc, name in names_of_files(job.spec):
        try:
            found |= _taken(root, loc, name)
        except _Wrong as error:
            wrong.append((("spec", *loc), str(error)))
    problems = _located(file, wrong)
    for pattern in include:
        try:
            found |= _included(root, pattern)
        except _Wrong as error:
            problems.append(Problem(f"--include {pattern}", None, "", str(error)))
    if problems:
        raise InvalidJob(problems)
    return dict(sorted(found.items()))


class _Wrong(Exception):
    """Why a path cannot go along."""


def names_of_files(spec: JobSpec) -> Iterator[tuple[Loc, str]]:
    """Every key that may name a file."""
    yield ("model", "path"), spec.model.path
    if spec.model.reference is not None:
        yield ("model", "reference", "path"), spec.model.reference.path
    if spec.data is not None:
        yield ("data", "train", "path"), spec.data.train.path
        if spec.data.validation is not None:
            yield ("data", "validation", "path"), spec.data.validation.path
    if spec.environment is not None and spec.environment.python is not None:
        yield ("environment", "python"), spec.environment.python
    for index, reward in enumerate(spec.rewards):
        if reward.scorer.python is not None:
            yield ("rewards", index, "scorer", "python"), reward.scorer.python


def may_be_a_hub_id(loc: Loc, name: str) -> bool:
    """Of a data set also `ID:CONFIG`."""
    ident, colon, config = name.partition(":")
    if loc[0] != "data":
        return HUB_ID.fullmatch(name) is not None
    if ident.endswith(SUFFIXES) or (colon and not CONFIG.fullmatch(config)):
        return False
    return HUB_ID.fullmatch(ident) is not None


def _taken(root: Path, loc: Loc, name: str) -> Files:
    python = loc[-1] == "python"
    if name.startswith(("builtin:", "/", "~")) or "://" in name:
        return {}
    path = _inside(name.rpartition(":")[0] if python else name)
    place = root / path
    if python:
        if not place.is_file():
            raise _Wrong(f"there is no file {place}")
        return _with_imports(root, path)
    if place.is_dir():
        return _folder(root, path)
    if place.is_file():
        return {str(path): place}
    if not may_be_a_hub_id(loc, name):
        raise _Wrong(f"there is no file or folder {place}")
    return {}


def _included(root: Path, pattern: str) -> Files:
    _inside(pattern)
    places = sorted(root.glob(pattern))
    if not places:
        raise _Wrong(f"nothing in {root} fits")
    found = Files()
    for place in places:
        path = PurePosixPath(place.relative_to(root).as_posix())
        found |= _folder(root, path) if place.is_dir() else {str(path): place}
    return found


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise _Wrong("leads out of the folder of the job's file: only what is in it can go along")
    return path


def _folder(root: Path, folder: PurePosixPath, suffix: str = "") -> Files:
    """Files in it and below; hidden ones, caches and links to folders are passed over."""
    found = Files()
    for here, folders, names in os.walk(root / folder):
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "__pycache__")
        for name in names:
            place = Path(here, name)
            if name[0] != "." and name.endswith(suffix) and place.is_file():
                found[place.relative_to(root).as_posix()] = place
    return found


def _with_imports(root: Path, file: PurePosixPath) -> Files:
    """The file and what it imports from its own folder, which is where Python looks for neighbours."""
    beside, found = file.parent, Files({str(file): root / file})
    waiting = [str(file)]
    while waiting:
        for module in _imports(root / waiting.pop()):
            more = _folder(root, beside / module, ".py")
            single = beside / f"{module}.py"
            if not more and (root / single).is_file():
                more = {str(single): root / single}
            waiting += more.keys() - found.keys()
            found |= more
    return found


def _imports(file: Path) -> set[str]:
    """First parts of the names that a file imports, wherever in it."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise _Wrong(
            f"{file}, line {line}: {error.args[0]}" if line else f"{file}: {error}"
        ) from error
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    return {name.partition(".")[0] for name in names}


def _located(file: Path, wrong: Iterable[tuple[Loc, str]]) -> list[Problem]:
    wrong = list(wrong)
    if not wrong:
        return []
    from roll_api.document import read_document

    document = read_document(file.read_text(encoding="utf-8"), str(file))
    return [Problem(str(file), document.line(loc), dotted(loc), said) for loc, said in wrong]
