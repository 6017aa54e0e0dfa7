"""`python -m roll_workers.trainer.replay CHECKPOINTS`: trains again from the recorded batches alone, and compares the
weights.

It is the trainer's own loop, fed by a scheduler that serves the ledger read-only; what it writes goes into a
temporary folder. CHECKPOINTS is a file with those that the ledger vouches for, oldest first: it starts from the first
after which nothing was trained under other settings. Its last line is the verdict, as JSON. Exit codes: 0 equal,
1 different, others as of any worker.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from roll_wire.trainer_pb2 import Checkpoint

from roll_workers.errors import Drained, Refused, Unreachable, UserError
from roll_workers.runtime.config import WorkerConfig
from roll_workers.trainer.arithmetic import Entries, arithmetic, differences
from roll_workers.trainer.checkpoint import CorruptCheckpoint, Manifest, Place, read_manifest

log = logging.getLogger(__name__)

Kept = tuple[Checkpoint, Manifest]


def readable(place: Place, checkpoints: Sequence[Checkpoint]) -> Iterator[Kept]:
    """Those whose manifest is the one that the ledger vouches for."""
    for checkpoint in checkpoints:
        try:
            yield checkpoint, read_manifest(place, checkpoint)
        except CorruptCheckpoint as error:
            log.warning("the checkpoint of step %d is passed over: %s", checkpoint.step, error)


def starts(kept: Sequence[Kept], now: Entries) -> list[Checkpoint]:
    """Of these, oldest first, those after which all was trained under today's settings. Raises UserError: none."""
    found: list[Checkpoint] = []
    for checkpoint, manifest in reversed(kept):
        before = manifest.arithmetic
        if before is not None and (changed := differences(before, now)):
            what = f"what followed the checkpoint of step {checkpoint.step} was trained under"
            what += f" another {', '.join(changed)}"
            if not found:
                raise UserError(f"nothing to replay: {what}")
            log.warning("%s: replaying from step %d on", what, found[0].step)
            break
        found.insert(0, checkpoint)
    return found


def recorded_digests(storage: Path, kept: Sequence[Kept]) -> dict[int, str]:
    """The digest of the weights after each step, as far as metrics and checkpoints still know it."""
    known = _from_metrics(storage / "metrics.jsonl")
    return known | {manifest.step: manifest.weights_digest for _, manifest in kept}


def compare(recorded: dict[int, str], replayed: dict[int, str]) -> dict[str, Any]:
    """Both digests of each step that was replayed, and whether those that can be compared are equal."""
    common = sorted(recorded.keys() & replayed.keys())
    if not common:
        raise UserError("nothing to compare: no step after the checkpoint was recorded")
    different = [step for step in common if recorded[step] != replayed[step]]
    return {
        "equal": not different,
        "differentFrom": different[0] if different else None,
        "steps": [
            {"step": step, "recorded": recorded.get(step), "replayed": replayed[step]}
            for step in sorted(replayed)
        ],
    }


def replay(config: WorkerConfig, checkpoints: Sequence[Checkpoint]) -> int:
    from roll_workers.runtime.trainer_session import TrainerSession
    from roll_workers.trainer.loop import Trainer, place_of_job

    job = config.load_job()
    kept = list(readable(place_of_job(config, job), checkpoints))
    recorded = recorded_digests(config.storage, kept)
    if max(recorded, default=0) == 0:
        raise UserError("nothing to replay: no step was trained yet")
    if not kept:
        raise UserError("nothing to replay: no checkpoint to start from can be read")
    chosen = starts(kept, arithmetic(job.spec, config.world))
    with (
        tempfile.TemporaryDirectory(prefix="roll-replay-") as folder,
        TrainerSession(config) as session,
    ):
        trainer = Trainer(config, job, session, output=Path(folder), starts=chosen)
        try:
            trainer.run()
        finally:
            trainer.close()
        if config.rank != 0:
            return 0
        verdict = compare(recorded, _from_metrics(Path(folder) / "metrics.jsonl"))
    print(json.dumps(verdict), flush=True)
    return 0 if verdict["equal"] else 1


def _from_metrics(path: Path) -> dict[int, str]:
    if not path.exists():
        return {}
    found: dict[int, str] = {}
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # a killed trainer left it half written
            continue
        found[row["step"]] = row["weights_digest"]
    return found


def main(file: str) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        checkpoints = [Checkpoint(**each) for each in json.loads(Path(file).read_text())]
        return replay(WorkerConfig.from_env(), checkpoints)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    except (Refused, Drained, Unreachable) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 4 if isinstance(error, Unreachable) else 3


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
