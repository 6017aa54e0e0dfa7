"""`roll samples`: where each is, from the scheduler while the job runs, from the ledger otherwise; what was said in
them, from the ledger always."""

import json
import select
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from roll_api.figures import figure
from roll_wire import control_pb2, session_pb2

from roll_operator.cli.ledger import reading
from roll_operator.cli.scheduler_call import CALL_SECONDS, ask
from roll_operator.controller.folder import RunError, RunFolder

if TYPE_CHECKING:
    from roll_operator.controller.text import Texts, Told

Columns = tuple[tuple[str, str], ...]
FOLLOW_SECONDS = 1.0
COLUMNS: Columns = (
    ("sample", "SAMPLE"),
    ("step", "STEP"),
    ("state", "STATE"),
    ("stage", "STAGE"),
    ("turn", "TURN"),
    ("worker", "WORKER"),
    ("version", "VERSION"),
    ("ageSeconds", "AGE"),
    ("stageSeconds", "IN STAGE"),
    ("attempt", "ATTEMPT"),
)
ENDED: Columns = (
    ("sample", "SAMPLE"),
    ("step", "STEP"),
    ("state", "STATE"),
    ("reward", "REWARD"),
    ("prompt", "PROMPT"),
    ("response", "RESPONSE"),
)
TEXT_WIDTH = 48
"""Characters of a prompt or an answer in a list."""


def show_samples(
    folder: RunFolder,
    *,
    follow: bool,
    limit: int,
    as_json: bool,
    screen: bool,
    while_stdin: bool = False,
) -> int:
    """`screen`: each picture replaces the one before. `while_stdin`: follow until stdin is closed, which tells
    a command in a pod that its caller is gone."""
    while True:
        listed = _list(folder, limit)
        rows = [_row(state) for state in listed.samples]
        if screen:
            print("\x1b[H\x1b[2J", end="")
        if as_json:
            document = {"total": listed.total, "samples": rows}
            print(json.dumps(document, indent=None if follow else 1), flush=True)
        else:
            print(_table(rows, COLUMNS), flush=True)
            print(_count(len(rows), listed.total), flush=True)
            if not rows and not folder.in_use():
                print("--ended lists samples that have ended, with prompt, answer and reward")
        if not follow or not folder.in_use():
            return 0
        if not while_stdin:
            time.sleep(FOLLOW_SECONDS)
        elif select.select([sys.stdin], [], [], FOLLOW_SECONDS)[0]:
            return 0


def show_ended(folder: RunFolder, *, limit: int, reward_below: float | None, as_json: bool) -> int:
    with _texts(folder) as texts:
        found, note = texts.ended(limit, reward_below=reward_below), texts.note
    if texts.damaged:
        print(f"warning: {_damaged(folder, texts.damaged)}", file=sys.stderr)
    if as_json:
        print(
            json.dumps({"samples": [_row(told.state) | _content(told) for told in found]}, indent=1)
        )
        return 0
    from roll_operator.controller.text import shortened

    rows = [
        _row(told.state)
        | {
            "reward": told.reward,
            "prompt": shortened(told.first("prompt"), TEXT_WIDTH),
            "response": shortened(told.response, TEXT_WIDTH),
        }
        for told in found
    ]
    print(_table(rows, ENDED))
    asked = "" if reward_below is None else f" with a reward below {figure(reward_below)}"
    print(
        f"the newest {len(rows)} that have ended{asked}; --id tells all of one"
        if rows
        else f"none{asked}"
    )
    if note and rows:
        print(note)
    return 0


def show_sample(folder: RunFolder, name: str, *, as_json: bool) -> int:
    group, index = _parse(name)
    request = control_pb2.SampleRequest(unit=session_pb2.Unit(group=group, index=index))
    story = ask(folder, lambda control: _story(control, request))
    if story is None:
        with reading(folder) as settings:
            from roll_operator.scheduler import offline

            story = offline.sample_story(folder.ledger, settings, group, index)
    with _texts(folder) as texts:
        told, hint, note = texts.of(group, index), _why_not(texts, group), texts.note
    if texts.damaged:
        raise RunError(_damaged(folder, texts.damaged))
    if story is None or not story.events:
        raise RunError(f"{folder.path} has no sample {name}: {hint}")
    events = [_event(event) for event in story.events]
    content = {} if told is None else _content(told)
    if as_json:
        print(json.dumps({**_row(story.state), **content, "events": events}, indent=1))
        return 0
    print(_table([_row(story.state)], COLUMNS))
    print()
    for event in events:
        at = datetime.fromtimestamp(event["at"]).strftime("%H:%M:%S.%f")[:-3] if event["at"] else ""
        detail = " ".join(f"{key}={value}" for key, value in event["detail"].items())
        print(f"{at}  {event['what']:<14} {event['worker']:<28} {detail}".strip())
    if told is None:
        print(hint)
        return 0
    for said in told.said:
        end = f", {said.finish}" if said.finish else ""
        turn = f" of turn {said.turn}" if told.said[-1].turn else ""
        print(f"\n--- {said.kind}{turn}, {said.tokens} tokens{end}\n{said.text}")
    if told.reward is not None:
        parts = ", ".join(f"{name} {figure(value)}" for name, value in told.parts.items())
        print(f"\n--- reward {figure(told.reward)}" + (f" ({parts})" if parts else ""))
    facts = " ".join(f"{key}={json.dumps(value)}" for key, value in told.facts.items())
    print(f"\n--- row: {facts}" if facts else "", end="\n" if facts else "")
    if note:
        print(f"\n{note}")
    return 0


@contextmanager
def _texts(folder: RunFolder) -> Iterator["Texts"]:
    with reading(folder):
        from roll_operator.controller.text import Texts

        with Texts(folder) as texts:
            yield texts


def _damaged(folder: RunFolder, names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"{folder.ledger}: what was said in sample {names[0]}{more} is damaged; "
        "see `roll ledger verify`"
    )


def _why_not(texts: "Texts", group: int) -> str:
    """Where to look instead of a sample that is not there, or not any more."""
    size, kept = texts.size(group), texts.kept()
    if size is not None:
        return f"group {group} has {group}.0" + (f" to {group}.{size - 1}" if size > 1 else " only")
    if kept is None:
        return "no sample has ended yet"
    if group > kept[1]:
        return f"the newest that has ended is of group {kept[1]}"
    return (
        f"details are kept since the oldest kept checkpoint: of groups {kept[0]} to {kept[1]}, which --ended "
        "lists; checkpoint.keepLast keeps more"
    )


def _content(told: "Told") -> dict[str, Any]:
    return {
        "reward": told.reward,
        "rewardParts": told.parts,
        "row": told.facts,
        "said": [asdict(said) for said in told.said],
    }


def _list(folder: RunFolder, limit: int) -> control_pb2.SampleList:
    request = control_pb2.SamplesRequest(limit=limit)
    listed = ask(folder, lambda control: control.ListSamples(request, timeout=CALL_SECONDS))
    if isinstance(listed, control_pb2.SampleList):
        return listed
    with reading(folder) as settings:
        from roll_operator.scheduler import offline

        every = offline.list_samples(folder.ledger, settings)
    return control_pb2.SampleList(samples=every.samples[:limit], total=every.total)


def _story(control: Any, request: control_pb2.SampleRequest) -> control_pb2.SampleStory | None:
    import grpc

    try:
        story: control_pb2.SampleStory = control.GetSample(request, timeout=CALL_SECONDS)
    except grpc.RpcError as error:
        code = error.code() if isinstance(error, grpc.Call) else None
        if code is grpc.StatusCode.NOT_FOUND:
            return control_pb2.SampleStory()
        if code is grpc.StatusCode.UNKNOWN:  # it failed to tell: the ledger tells it, or why not
            return None
        raise
    return story


def _parse(name: str) -> tuple[int, int]:
    group, dot, index = name.partition(".")
    try:
        return int(group), int(index) if dot else 0
    except ValueError:
        raise RunError(f"{name!r} is not a sample: write GROUP.INDEX, e.g. 17.3") from None


def _row(state: control_pb2.SampleState) -> dict[str, Any]:
    versioned = state.HasField("version")
    return {
        "sample": f"{state.unit.group}.{state.unit.index}",
        "step": state.step,
        "state": state.state,
        "stage": state.stage,
        "turn": state.turn,
        "worker": state.worker,
        "version": state.version.number if versioned else None,
        "lineage": state.version.lineage if versioned else None,
        "ageSeconds": round(state.age_seconds, 3),
        "stageSeconds": round(state.stage_seconds, 3),
        "attempt": state.attempt,
        "validation": state.validation,
    }


def _event(event: control_pb2.SampleEvent) -> dict[str, Any]:
    return {
        "at": event.at,
        "what": event.what,
        "worker": event.worker,
        "detail": dict(sorted(event.detail.items())),
    }


def _table(rows: Iterable[dict[str, Any]], columns: Columns) -> str:
    cells = [[title for _, title in columns]]
    cells += [[_cell(key, row) for key, _ in columns] for row in rows]
    widths = [max(len(line[n]) for line in cells) for n in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def _count(shown: int, total: int) -> str:
    return f"{total} in flight" + (f", {shown} shown" if shown < total else "")


def _cell(key: str, row: dict[str, Any]) -> str:
    value = row[key]
    if key == "step" and row["validation"]:
        return "held out"
    if key in ("ageSeconds", "stageSeconds"):
        return f"{value:.1f} s"
    if key == "reward" and value is not None:
        return figure(value)
    return "-" if value in (None, "") else str(value)
