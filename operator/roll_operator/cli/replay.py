"""`roll replay`: the trainer alone, on the recorded batches; ends with the same weights or says that it does not."""

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roll_api import RLJob
from roll_wire.ports import free_port

from roll_operator.backends.local import LocalBackend
from roll_operator.backends.logs import tail
from roll_operator.cli.ledger import reading
from roll_operator.controller import claim
from roll_operator.controller.folder import RunError, RunFolder
from roll_operator.plan import Pod, PodPhase, Site, StartPod, desired_pods
from roll_operator.plan.desired import environment, uid_of
from roll_operator.plan.model import SCHEDULER


def replay_run(run: Path, *, as_json: bool) -> int:
    folder = RunFolder(run.resolve())
    if not folder.ledger.exists():
        raise RunError(f"{run} has no ledger to replay")
    with claim.held(folder), tempfile.TemporaryDirectory(prefix="roll-replay-") as scratch:
        return asyncio.run(_replay(folder, Path(scratch), as_json))


async def _replay(folder: RunFolder, scratch: Path, as_json: bool) -> int:
    job = RLJob.from_json(folder.job_file.read_text(encoding="utf-8"))
    before = folder.run()
    address = f"127.0.0.1:{free_port()}"
    site = Site(
        job_uid=before["jobUid"],
        scheduler=address,
        listen=address,
        spec=str(folder.job_file),
        storage=str(folder.path),
        source=before.get("source", str(folder.path)),
    )
    checkpoints = scratch / "checkpoints.json"
    checkpoints.write_text(json.dumps(_vouched_for(folder)))

    def command(pod: StartPod) -> list[str]:
        if pod.role == SCHEDULER:
            return [sys.executable, "-m", "roll_operator.scheduler", "--replay"]
        return [sys.executable, "-m", "roll_workers.trainer.replay", str(checkpoints)]

    async with LocalBackend(scratch, f"replay:{site.storage}", command) as backend:
        for place in desired_pods(job):
            if place.role in (SCHEDULER, "trainer"):
                uid = uid_of(site.job_uid, f"{place.name}/replay", 0)
                env = environment(job, place, 0, site) | {"ROLL_POD_UID": uid}
                # Sums of floats depend on how many threads share them.
                if place.role == "trainer" and "trainerThreads" in before:
                    env["OMP_NUM_THREADS"] = str(before["trainerThreads"])
                await backend.start(StartPod(place.name, place.role, place.index, 0, uid, env))
        ended = await _first_decisive(backend)
        return _report(ended, tail(backend.log_of(ended.name, 0), 1000), as_json)


def _vouched_for(folder: RunFolder) -> list[dict[str, Any]]:
    """The ledger's checkpoints, oldest first."""
    with reading(folder) as settings:
        from roll_operator.scheduler.ledger import SqliteLedger

        ledger = SqliteLedger(folder.ledger, settings, read_only=True)
        try:
            return [asdict(checkpoint) for checkpoint in ledger.checkpoints()]
        finally:
            ledger.close()


async def _first_decisive(backend: LocalBackend) -> Pod:
    """The first process that failed; rank 0 when all is well."""
    while True:
        backend.changed.clear()
        dead = [pod for pod in backend.pods() if pod.phase is PodPhase.EXITED]
        for pod in dead:
            if pod.exit_code != 0 or (pod.role == "trainer" and pod.index == 0):
                return pod
        await backend.changed.wait()


def _report(ended: Pod, lines: list[str], as_json: bool) -> int:
    """What a trainer came to, or why a process could not go on."""
    if ended.role == "trainer" and ended.exit_code in (0, 1) and (found := _verdict(lines)):
        at, verdict = found
        for line in lines[:at]:
            print(line, file=sys.stderr)
        print(json.dumps(verdict, indent=1) if as_json else "\n".join(verdict_lines(verdict)))
        return int(ended.exit_code)
    if ended.exit_code == 2 and lines and lines[-1].startswith("error: "):  # the user's to mend
        print("\n".join(lines), file=sys.stderr)
        return 2
    for line in lines[-20:]:
        print(f"  {line}", file=sys.stderr)
    print(
        f"error: {ended.name}: {ended.message or f'exit code {ended.exit_code}'}", file=sys.stderr
    )
    return 2 if ended.exit_code == 2 else 1


def _verdict(lines: list[str]) -> tuple[int, dict[str, Any]] | None:
    """With the number of its line; None of a trainer that died, which also ends with 1, before it said any."""
    at = max((number for number, line in enumerate(lines) if line.startswith("{")), default=None)
    if at is None:
        return None
    try:
        said = json.loads(lines[at])
    except ValueError:
        return None
    return (at, said) if said.keys() >= {"equal", "differentFrom", "steps"} else None


def verdict_lines(verdict: dict[str, Any]) -> Iterator[str]:
    steps = verdict["steps"]
    last = [step for step in steps if step["recorded"]][-1]
    yield f"replayed  steps {steps[0]['step']} to {steps[-1]['step']}"
    for which in ("recorded", "replayed"):
        yield f"{which}  weights after step {last['step']}: {last[which]}"
    different = verdict["differentFrom"]
    yield "equal, bit for bit" if verdict["equal"] else f"DIFFERENT from step {different} on"
