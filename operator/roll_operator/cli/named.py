"""What a job names, looked at before anything starts: files, what they define, rows, builtins, pod templates.

Invariant: nothing of the user's is run here, and nothing is said of what only a worker can know (hub ids, whether a
file imports). What `check` finds is wrong wherever the job runs; an absolute path alone may be there on a cluster.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from roll_api import Problem, RLJob, builtins
from roll_api.problems import Loc, dotted

from roll_operator.cli.rows import look_at_data
from roll_operator.cli.source import may_be_a_hub_id, names_of_files
from roll_operator.plan.desired import ROLES
from roll_operator.plan.model import StartPod
from roll_operator.plan.objects import Cluster, pod
from roll_operator.plan.objects.template import TemplateError

METHODS = ("reset", "step")
ANY_CLUSTER = Cluster("", "", "", "")

Parsed = ast.Module | str
"""A Python file, or why it is none."""


@dataclass(slots=True)
class Checked:
    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    """Absolute paths that are not there: on a cluster they may be."""
    notes: list[str] = field(default_factory=list)


def check(job: RLJob, file: Path) -> Checked:
    root, found = file.resolve().parent, Checked()
    wrong: list[tuple[Loc, str]] = []
    absent: list[tuple[Loc, str]] = []
    parsed = cache(_parsed)
    parameters = {
        reward.name: _needs(root, reward.scorer.python, parsed)
        for reward in job.spec.rewards
        if reward.scorer.python
    }
    for loc, name in names_of_files(job.spec):
        python = loc[-1] == "python"
        path = name.rpartition(":")[0] if python else name
        if path.startswith(builtins.PREFIX):
            model = loc[0] == "model"
            said = builtins.unknown_model(path) if model else builtins.unknown_data(path)
            wrong += [(loc, said)] if said else []
            continue
        try:
            place = root / Path(path).expanduser()
        except RuntimeError as error:  # ~somebody whom this machine does not know
            wrong.append((loc, f"{path}: {error}"))
            continue
        if not place.exists():
            if python or not may_be_a_hub_id(loc, path):
                may_be_there = Path(path).expanduser().is_absolute()
                missing = loc, f"there is no {'file' if python else 'file or folder'} {place}"
                (absent if may_be_there else wrong).append(missing)
            continue
        if python:
            defines = _code(parsed(place), place, name, world=loc[0] == "environment")
            wrong += [(loc, said) for said in defines]
        elif loc[0] == "model":
            if not (place / "config.json").is_file():
                wrong.append((loc, f"{place} is no Hugging Face folder: it has no config.json"))
        else:
            assert job.spec.data is not None
            split = str(loc[1])
            source = job.spec.data.train if split == "train" else job.spec.data.validation
            assert source is not None
            looked = look_at_data(place, split, source, job.spec.rewards, parameters)
            wrong += [(loc, said) for said in looked.wrong]
            found.notes += [looked.note] if looked.note else []
    wrong += _templates(job)
    if wrong or absent:
        from roll_api.document import read_document

        document = read_document(file.read_text(encoding="utf-8"), str(file))
        for these, into in ((wrong, found.errors), (absent, found.warnings)):
            for loc, said in these:
                key: Loc = ("spec", *loc)
                into.append(Problem(str(file), document.line(key), dotted(key), said))
    return found


def _templates(job: RLJob) -> Iterator[tuple[Loc, str]]:
    """What cannot be merged with a generated pod; what Kubernetes makes of the rest, its API server says."""
    for role in ROLES:
        try:
            pod(job, StartPod(f"{job.name}-{role}-0", role, 0, 0, uid=""), ANY_CLUSTER)
        except TemplateError as error:
            where, _, said = str(error).partition(": ")
            parts = re.findall(r"[^.\[\]]+", where)
            yield tuple(int(part) if part.isdigit() else part for part in parts), said


def _parsed(place: Path) -> Parsed:
    try:
        return ast.parse(place.read_bytes(), str(place))
    except SyntaxError as error:
        return f"{place}, line {error.lineno}: {error.msg}"
    except (OSError, ValueError) as error:
        return f"{place}: {error}"


def _code(tree: Parsed, place: Path, reference: str, *, world: bool) -> Iterator[str]:
    name = reference.rpartition(":")[2]
    if isinstance(tree, str):
        yield tree
        return
    defined = dict(_defined(tree.body))
    if "*" in defined or "__getattr__" in defined:
        return
    if name not in defined:
        known = [n for n, by in defined.items() if isinstance(by, _OWN) and n[0] != "_"]
        yield f"{place} has no {name!r}" + (f"; it has {', '.join(known)}" if known else "")
        return
    by = defined[name]
    if world and isinstance(by, ast.ClassDef) and not by.bases:
        missing = [method for method in METHODS if method not in dict(_defined(by.body))]
        if missing:
            yield f"{place}, line {by.lineno}: {name} has no {' and no '.join(missing)}"


def _needs(root: Path, reference: str, parsed: Callable[[Path], Parsed]) -> frozenset[str]:
    """Parameters without a default; none where the file says nothing certain."""
    path, _, name = reference.rpartition(":")
    try:
        tree = parsed(root / Path(path).expanduser())
    except RuntimeError as error:  # ~somebody whom this machine does not know
        tree = str(error)
    if isinstance(tree, str):
        return frozenset()  # told where the file itself is looked at
    found = [by for n, by in _defined(tree.body) if n in (name, "*", "__getattr__")]
    function = found[0] if len(found) == 1 and found[0] in tree.body else None
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.name != name:
        return frozenset()
    if function.decorator_list:
        return frozenset()
    at, by_name = [*function.args.posonlyargs, *function.args.args], function.args.kwonlyargs
    needed = at[: len(at) - len(function.args.defaults)]
    needed += [a for a, d in zip(by_name, function.args.kw_defaults, strict=True) if d is None]
    return frozenset(argument.arg for argument in needed)


_OWN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _defined(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Names that a module or a class has after it ran, with what gave them; `*` for those that cannot be known."""
    for statement in body:
        if isinstance(statement, _OWN):
            yield statement.name, statement
            continue
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                yield alias.asname or alias.name.partition(".")[0], statement
            continue
        for node in ast.iter_child_nodes(statement):
            if isinstance(node, ast.Name | ast.Tuple | ast.List):
                for target in ast.walk(node):
                    if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
                        yield target.id, statement
        for block in ("body", "orelse", "finalbody"):
            yield from _defined(getattr(statement, block, []))
        for handler in getattr(statement, "handlers", []):
            yield from _defined(handler.body)
