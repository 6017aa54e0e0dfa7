"""`kubectl roll logs --follow` while pods are replaced and connections break. No kubelet: a script of streams."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from roll_operator.cli.cluster import follow
from roll_operator.cli.cluster.logs import Choice
from roll_operator.controller.cluster import errors

BROKEN = errors.Unavailable(0, "", "the connection broke")


def pod(name: str, uid: str, attempt: int, phase: str = "Running") -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid,
            "resourceVersion": "1",
            "labels": {
                "roll.dev/job": "sums",
                "roll.dev/role": "trainer",
                "roll.dev/index": "0",
                "roll.dev/attempt": str(attempt),
                "app.kubernetes.io/managed-by": "roll-operator",
            },
            "ownerReferences": [
                {"kind": "RLJob", "name": "sums", "uid": "j", "controller": True,
                 "apiVersion": "roll.dev/v1alpha1"}
            ],
        },
        "status": {"phase": phase},
    }  # fmt: skip


@dataclass
class Script:
    """Answers what it is told to, in this order; the last list of pods and the phase stay."""

    polls: list[Any]
    streams: list[list[Any]]
    namespace: str = "team"
    queries: list[dict[str, str]] = field(default_factory=list)

    def find(self, path: str) -> dict[str, Any]:
        if isinstance(self.polls[0], Exception):
            raise self.polls.pop(0)
        return {"status": {"phase": "Running" if len(self.polls) > 1 else "Succeeded"}}

    def pods(self, job: str) -> list[dict[str, Any]]:
        return self.polls.pop(0) if len(self.polls) > 1 else self.polls[0]

    def lines(self, path: str, **query: str) -> Iterator[str]:
        self.queries.append(query)
        for line in self.streams.pop(0) if self.streams else []:
            if isinstance(line, Exception):
                raise line
            yield line


def at(second: int, text: str, fraction: str = "5") -> str:
    return f"2026-01-01T10:00:{second:02d}.{fraction * 9}+02:00 {text}"


def followed(script: Script, capsys: pytest.CaptureFixture[str], lines: int = 0) -> list[str]:
    assert follow.follow_logs(script, "sums", Choice(None, None, lines, False)) == 0  # type: ignore[arg-type]
    return capsys.readouterr().out.splitlines()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "POLL_SECONDS", 0.05)


def test_the_pod_that_takes_its_place_is_shown_from_its_first_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    old, new = pod("sums-trainer-0", "a", 0), pod("sums-trainer-0", "b", 1, "Succeeded")
    script = Script([[old], [], [new]], [[at(1, "one"), BROKEN], [at(9, "two")]])
    assert followed(script, capsys, lines=5) == ["trainer-0.0 | one", "trainer-0.1 | two"]
    assert [q.get("tailLines") for q in script.queries] == ["5", None]


def test_a_broken_stream_goes_on_after_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    there, done = pod("sums-trainer-0", "a", 0), pod("sums-trainer-0", "a", 0, "Succeeded")
    script = Script(
        [[there], BROKEN, [there], [there], [done]],
        [
            [errors.Invalid(400, "BadRequest", "the container is waiting to start")],
            [at(1, "one"), at(2, "two", "3"), BROKEN],
            [at(2, "two", "3"), at(2, "three", "4"), at(3, "four")],
        ],
    )
    shown = followed(script, capsys)
    assert shown == [f"trainer-0.0 | {word}" for word in ("one", "two", "three", "four")]
    assert script.queries[2]["sinceTime"] == "2026-01-01T08:00:02Z"
