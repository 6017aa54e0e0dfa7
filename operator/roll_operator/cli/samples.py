"""`roll samples`: from the scheduler while the job runs, from the ledger otherwise."""

import json
import select
import sys
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from roll_wire import control_pb2, session_pb2

from roll_operator.cli.ledger import ledger_settings
from roll_operator.cli.scheduler_call import CALL_SECONDS, ask
from roll_operator.controller.folder import RunError, RunFolder

FOLLOW_SECONDS = 1.0
COLUMNS = (
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
            print(_table(rows, listed.total), flush=True)
        if not follow or not folder.in_use():
            return 0
        if not while_stdin:
            time.sleep(FOLLOW_SECONDS)
        elif select.select([sys.stdin], [], [], FOLLOW_SECONDS)[0]:
            return 0


def show_sample(folder: RunFolder, name: str, *, as_json: bool) -> int:
    group, index = _parse(name)
    request = control_pb2.SampleRequest(unit=session_pb2.Unit(group=group, index=index))
    story = ask(folder, lambda control: _story(control, request))
    if story is None:
        settings = ledger_settings(folder)
        from roll_operator.scheduler import offline

        story = offline.sample_story(folder.ledger, settings, group, index)
    if story is None or not story.events:
        raise RunError(
            f"{folder.path} has no sample {name} on record; of steps before the oldest kept checkpoint only "
            "digests are kept"
        )
    events = [_event(event) for event in story.events]
    if as_json:
        print(json.dumps({**_row(story.state), "events": events}, indent=1))
        return 0
    print(_table([_row(story.state)], None))
    print()
    for event in events:
        at = datetime.fromtimestamp(event["at"]).strftime("%H:%M:%S.%f")[:-3]
        detail = " ".join(f"{key}={value}" for key, value in event["detail"].items())
        print(f"{at}  {event['what']:<14} {event['worker']:<28} {detail}".rstrip())
    return 0


def _list(folder: RunFolder, limit: int) -> control_pb2.SampleList:
    request = control_pb2.SamplesRequest(limit=limit)
    listed = ask(folder, lambda control: control.ListSamples(request, timeout=CALL_SECONDS))
    if isinstance(listed, control_pb2.SampleList):
        return listed
    settings = ledger_settings(folder)
    from roll_operator.scheduler import offline

    every = offline.list_samples(folder.ledger, settings)
    return control_pb2.SampleList(samples=every.samples[:limit], total=every.total)


def _story(control: Any, request: control_pb2.SampleRequest) -> control_pb2.SampleStory | None:
    import grpc

    try:
        story: control_pb2.SampleStory = control.GetSample(request, timeout=CALL_SECONDS)
    except grpc.RpcError as error:
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.NOT_FOUND:
            return control_pb2.SampleStory()
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


def _table(rows: Iterable[dict[str, Any]], total: int | None) -> str:
    cells = [[title for _, title in COLUMNS]]
    cells += [[_cell(key, row) for key, _ in COLUMNS] for row in rows]
    widths = [max(len(line[n]) for line in cells) for n in range(len(COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    if total is not None:
        shown = len(cells) - 1
        lines.append(f"{total} in flight" + (f", {shown} shown" if shown < total else ""))
    return "\n".join(lines)


def _cell(key: str, row: dict[str, Any]) -> str:
    value = row[key]
    if key == "step" and row["validation"]:
        return "held out"
    if key in ("ageSeconds", "stageSeconds"):
        return f"{value:.1f} s"
    return "-" if value in (None, "") else str(value)
