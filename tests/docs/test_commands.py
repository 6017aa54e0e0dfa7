"""Every command, option, key and value that the pages name exists: what they print can be typed as it stands."""

import re
import shlex
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from roll_cluster.__main__ import COMMANDS as CLUSTER_COMMANDS
from roll_operator.cli.app import app
from ruamel.yaml import YAML
from support.pages import GUIDES, ROOT, blocks, spans, table
from typer.main import get_command

PAGES = [*GUIDES, ROOT / "CONTRIBUTING.md", ROOT / "cluster/README.md"]
PROGRAM = re.compile(
    r"^(?:(?:\.venv/bin/)?roll|kubectl roll|make|(?:\w+=\S+ )*images/build)(?= |$)"
)
OF_OTHERS = {"--force-conflicts", "--enable-certificate-owner-ref"}
"""Options of kubectl and of cert-manager."""
FILES = (".py", ".yaml", ".lock", ".jsonl", ".json")


def commands(page: Path) -> Iterator[tuple[str, bool]]:
    """What can be typed, and whether it is complete: within a sentence what is plain is left out."""
    for block in blocks(page):
        lines = block.replace("\\\n", " ").splitlines()
        yield from ((line.removeprefix("$ "), True) for line in lines)
    for span in spans(page.read_text(encoding="utf-8")):
        words = [word.split("|") for word in span.split()]  # kubectl roll status|samples|logs
        yield from ((" ".join(chosen), False) for chosen in product(*words))


def wrong(line: str, complete: bool) -> str:
    """What is wrong with a command of ours; empty for one of others."""
    program = PROGRAM.match(line)
    if program is None:
        return ""
    words = shlex.split(line[program.end() :], comments=True)
    if program[0] == "make":
        return wrong_in_make(words)
    if program[0].endswith("images/build"):
        return wrong_in_images_build(words)
    return wrong_in_roll(words, complete)


def wrong_in_roll(words: list[str], complete: bool) -> str:
    command: Any = get_command(app)
    given: list[str] = []
    takes_a_value = False
    for word in words:
        if takes_a_value:
            takes_a_value = False
        elif word.startswith("-"):
            name = word.partition("=")[0]
            option = next((p for p in command.params if name in p.opts), None)
            if option is None:
                return f"roll {command.name}: there is no {name}"
            takes_a_value = not option.is_flag and "=" not in word
        elif known := getattr(command, "commands", None):
            if word not in known:
                return f"there is no command {word}"
            command = known[word]
        else:
            given.append(word)
    wanted = [p for p in command.params if p.param_type_name == "argument"]
    if not any(p.nargs < 0 for p in wanted) and len(given) > len(wanted):
        return f"roll {command.name}: takes no {given[-1]}"
    needed = sum(p.required for p in wanted)
    return f"roll {command.name}: something is missing" if complete and len(given) < needed else ""


def wrong_in_make(words: list[str]) -> str:
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        name, is_variable, _ = word.partition("=")
        defined = rf"^{name} *\?=" if is_variable else rf"^{name}:"
        if not re.search(defined, makefile, re.MULTILINE):
            return f"make knows no {name}"
    return ""


def wrong_in_images_build(words: list[str]) -> str:
    usage = (ROOT / "images/build").read_text().split("set -e")[0]
    unknown = [word for word in words if word not in usage]
    return f"images/build knows no {unknown}" if unknown else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_can_be_typed_as_it_stands(page: Path) -> None:
    found = [(line, why) for line, complete in commands(page) if (why := wrong(line, complete))]
    assert found == []


def test_the_check_of_commands_sees_what_is_there_and_what_is_wrong() -> None:
    seen = [line for page in PAGES for line, _ in commands(page) if PROGRAM.match(line)]
    assert len(seen) > 80
    assert wrong("kubectl roll samples JOB --id 7.0 -n team-a", True) == ""
    assert wrong("roll validate a.yaml b.yaml", True) == ""
    for line in (
        "roll smaples RUN",
        "roll ledger audit RUN",
        "roll status",
        "roll replay RUN other",
        "kubectl roll logs JOB --since 1h",
        "make demos",
        "make setup LOCKS=smollm2",
        "images/build --chek",
    ):
        assert wrong(line, True), line
    assert wrong("roll status", False) == ""


def test_the_commands_of_the_cluster_exist() -> None:
    told = {spans(row[0])[0] for row in table("cluster/README.md", "command")}
    named = {words.split()[1] for words in told if words.startswith("…")}
    assert named <= set(CLUSTER_COMMANDS) and len(named) > 4


def test_options_that_are_named_alone_belong_to_a_command() -> None:
    def options(command: Any) -> set[str]:
        mine = {name for param in command.params for name in param.opts}
        return mine.union(*map(options, getattr(command, "commands", {}).values()))

    usage = (ROOT / "images/build").read_text().split("set -e")[0]
    known = options(get_command(app)) | set(re.findall(r"--\w+", usage)) | OF_OTHERS
    text = "\n".join(page.read_text(encoding="utf-8") for page in GUIDES)
    named = {word.partition("=")[0] for s in spans(text) if s[0] == "-" for word in s.split()}
    named = {word for word in named if word.startswith("-")}
    assert len(named) > 8
    assert named <= known


def leaves(values: Any, path: str = "") -> set[str]:
    """All keys, inner ones too, as one names them: `image.tag`."""
    found: set[str] = set()
    for key, value in values.items() if isinstance(values, dict) else ():
        found |= {f"{path}{key}"} | leaves(value, f"{path}{key}.")
    return found


VALUES = leaves(YAML(typ="safe").load(ROOT / "helm/roll-operator/values.yaml"))


def test_the_values_of_the_chart_that_pages_name_exist() -> None:
    told = [span for row in table("docs/install.md", "value") for span in spans(row[0])]
    for page in GUIDES:
        text = page.read_text(encoding="utf-8")
        told += re.findall(r"--set(?:-string)?[ =]([\w.]+)=", "\n".join(blocks(page)))
        # `operator.…` and the like are no keys of a job; `metrics.jsonl` is a file
        told += [
            s
            for s in spans(text)
            if re.fullmatch(r"(operator|worker|networkPolicy|rbac)(\.\w+)+", s)
        ]
    told = [name for name in told if not name.endswith(FILES)]
    assert len(told) > 15
    patterns = {name: re.escape(name).replace(r"\*", r"\w+") for name in told}
    assert [n for n, p in patterns.items() if not any(re.fullmatch(p, v) for v in VALUES)] == []


def test_the_keys_of_a_job_that_pages_name_exist() -> None:
    """A dotted name that begins like a key of `spec` is one."""
    crd = YAML(typ="safe").load(ROOT / "crds/rljobs.roll.dev.yaml")
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    def exists(path: list[str], within: dict[str, Any]) -> bool:
        if not path or "x-kubernetes-preserve-unknown-fields" in within:
            return True
        keys, inner = within.get("properties", {}), within.get("additionalProperties")
        if path[0] in ("<role>", "*"):
            return any(exists(path[1:], of) for of in keys.values())
        if path[0].endswith("[]"):
            found = keys.get(path[0].removesuffix("[]"))
            return found is not None and exists(path[1:], found["items"])
        if path[0] in keys:
            return exists(path[1:], keys[path[0]])
        return isinstance(inner, dict) and exists(path[1:], inner)

    spec = schema["properties"]["spec"]
    first = "|".join(["spec", "status", *spec["properties"]])
    name = re.compile(rf"(?:{first})(?:\[\])?(?:\.(?:\w+(?:\[\])?|<role>|\*))+")
    text = "\n".join(page.read_text(encoding="utf-8") for page in GUIDES)
    told = (
        {span.partition(":")[0] for span in spans(text)} - VALUES - {"spec.stepz"}
    )  # the wrong one
    keys = {key for key in told if name.fullmatch(key) and not key.endswith(FILES)}
    assert len(keys) > 30
    paths = {key: key.split(".") for key in keys}
    missing = [
        key
        for key, path in paths.items()
        if not exists(path, schema if path[0] in ("spec", "status") else spec)
    ]
    assert missing == []
