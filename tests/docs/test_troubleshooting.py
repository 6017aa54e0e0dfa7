"""The symptoms of docs/troubleshooting.md are those that the code shows: its messages, reasons, conditions, events."""

import ast
import re
from functools import cache

import pytest
from roll_api import JobStatus
from roll_api.keeping import Storage
from roll_operator.plan.conditions import truths
from roll_operator.plan.model import Observed, Phase, Record
from support.pages import ROOT, spans, table

PAGE = "docs/troubleshooting.md"
CODE = ("crds", "operator", "workers")
HOLE = "\0"
"""Stands in a text of the code for what is filled in."""
LABEL = re.compile(r"^(?:pending|starting|failure|note|error|spec\.stepz)\W+")
"""What a line begins with: the rest is somebody's words."""
OF_OTHERS = {
    'unknown field "spec.stepz"',
    "Quota: … exceeded quota",
    'Refused: … unknown field "spec.nodeSelektor"',
    "… is forbidden: User … cannot …",
}
"""What the API server says itself."""


@cache
def texts() -> tuple[str, ...]:
    """Every text of the code; `{…}` of an f-string is a hole."""
    found: list[str] = []
    for room in CODE:
        for file in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = (getattr(part, "value", HOLE) for part in node.values)
                    found.append("".join(p if isinstance(p, str) else HOLE for p in parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return tuple(found)


@cache
def is_said(message: str) -> bool:
    """Whether a text of the code reads so, or two of which one fills a hole of the other."""
    words = message.split()
    parts = range(3, len(words) - 2)
    return is_in_a_text(tuple(words)) or any(
        is_in_a_text(tuple(words[:n])) and is_said(" ".join(words[n:])) for n in parts
    )


@cache
def is_in_a_text(words: tuple[str, ...]) -> bool:
    """A word in place of a hole, any words in place of `…`; half of the words at least are the code's own."""
    own = [word for word in words if "…" not in word]
    gaps = [".*?" if "…" in w else rf"(?:{re.escape(w)}|\S*{HOLE}\S*)" for w in words]
    pattern = re.compile(r"\s*".join(gaps))

    def most(text: str) -> bool:
        return 2 * sum(word in text for word in own) >= max(2, len(own))

    candidates = (pattern.search(text) for text in texts() if most(text))
    return any(match and most(match[0]) for match in candidates)


SYMPTOMS = [row[0] for row in table(PAGE, "symptom")]


def messages() -> list[str]:
    """Sentences, one by one; names of a word or two are looked at below."""
    quoted = [LABEL.sub("", text) for cell in SYMPTOMS for text in spans(cell)]
    sentences = [s for text in quoted if text not in OF_OTHERS for s in text.split("; ")]
    return [sentence for sentence in sentences if len(sentence.split()) > 2]


@pytest.mark.parametrize("message", messages())
def test_a_message_that_the_page_quotes_is_said_by_the_code(message: str) -> None:
    assert is_said(message)


def test_a_message_that_nobody_says_is_noticed() -> None:
    assert is_said("set suspend: true first") and is_said("RLJob … is Running with other files")
    assert not is_said("set suspend: true last") and not is_said("RLJob … is Running with no files")


def test_reasons_and_events_of_the_page_are_words_of_the_code() -> None:
    kinds = (r"(?:event|reason|or) `([A-Z]\w+)`", r"`pending +(\w+):", r"or `(\w+): …`")
    named = {name for cell in SYMPTOMS for kind in kinds for name in re.findall(kind, cell)}
    assert len(named) > 10
    assert sorted(named - set(texts())) == []


def test_conditions_of_the_page_are_reported() -> None:
    reported = truths(Phase.RUNNING, [], "", Record(), Observed(), False, JobStatus(), Storage())
    named = {name for cell in SYMPTOMS for name in re.findall(r"condition `(\w+)`", cell)}
    assert len(named) > 4
    assert sorted(named - set(reported)) == ["Invalid"], "which is of a job that cannot be read"
