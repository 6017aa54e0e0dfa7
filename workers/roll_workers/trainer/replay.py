"""`python -m roll_workers.trainer.replay`: trains again from the recorded batches alone, and compares the weights.

It is the trainer's own loop, fed by a scheduler that serves the ledger read-only; what it writes goes into a
temporary folder. The last lines are the digests. Exit codes: 0 equal, 1 different, others as of any worker.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from pathlib import Path

from roll_workers.errors import Drained, Refused, Unreachable, UserError
from roll_workers.runtime.config import WorkerConfig
from roll_workers.trainer.checkpoint import CorruptCheckpoint, Manifest, Place, kept_manifests


def recorded_digests(storage: Path, place: Place) -> dict[int, str]:
    """The digest of the weights after each step, as far as metrics and checkpoints still know it."""
    known = _from_metrics(storage / "metrics.jsonl")
    for name, content in kept_manifests(place):
        try:
            manifest = Manifest.from_bytes(content)
        except CorruptCheckpoint as error:
            raise UserError(f"{place}/{name}: {error}") from error
        known[manifest.step] = manifest.weights_digest
    return known


def compare(recorded: dict[int, str], replayed: dict[int, str]) -> tuple[bool, str]:
    """Whether the last step that both have ends with the same weights, and a text that says so."""
    common = sorted(recorded.keys() & replayed.keys())
    if not common:
        raise UserError("nothing to compare: no step after the oldest checkpoint was recorded")
    last = common[-1]
    first, step = min(replayed), max(replayed)
    lines = [
        f"replayed  steps {first} to {step}",
        f"recorded  weights after step {last}: {recorded[last]}",
        f"replayed  weights after step {last}: {replayed[last]}",
    ]
    different = [s for s in common if recorded[s] != replayed[s]]
    lines.append(f"DIFFERENT from step {different[0]} on" if different else "equal, bit for bit")
    return not different, "\n".join(lines)


def replay(config: WorkerConfig) -> int:
    from roll_workers.runtime.trainer_session import TrainerSession
    from roll_workers.trainer.loop import Trainer, place_of_job

    job = config.load_job()
    recorded = recorded_digests(config.storage, place_of_job(config, job))
    if max(recorded, default=0) == 0:
        raise UserError("nothing to replay: no step was trained yet")
    with (
        tempfile.TemporaryDirectory(prefix="roll-replay-") as folder,
        TrainerSession(config) as session,
    ):
        trainer = Trainer(config, job, session, output=Path(folder), keeps=False)
        try:
            trainer.run()
        finally:
            trainer.close()
        if config.rank != 0:
            return 0
        equal, text = compare(recorded, _from_metrics(Path(folder) / "metrics.jsonl"))
    print(text, flush=True)
    return 0 if equal else 1


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


def main() -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        return replay(WorkerConfig.from_env())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    except (Refused, Drained, Unreachable) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 4 if isinstance(error, Unreachable) else 3


if __name__ == "__main__":
    sys.exit(main())
