"""`roll replay`: the trainer alone, on the recorded batches; ends with the same weights or says that it does not."""

import asyncio
import sys
import tempfile
from pathlib import Path

from roll_api import RLJob

from roll_operator.backends.local import LocalBackend, free_port
from roll_operator.backends.logs import tail
from roll_operator.controller import claim
from roll_operator.controller.folder import RunError, RunFolder
from roll_operator.plan import Pod, PodPhase, Site, StartPod, desired_pods
from roll_operator.plan.desired import environment, uid_of
from roll_operator.plan.model import SCHEDULER


def replay_run(run: Path) -> int:
    folder = RunFolder(run.resolve())
    if not folder.ledger.exists():
        raise RunError(f"{run} has no ledger to replay")
    with claim.held(folder):
        return asyncio.run(_replay(folder))


async def _replay(folder: RunFolder) -> int:
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
    with tempfile.TemporaryDirectory(prefix="roll-replay-") as logs:
        async with LocalBackend(Path(logs), f"replay:{site.storage}", _command) as backend:
            for place in desired_pods(job):
                if place.role in (SCHEDULER, "trainer"):
                    uid = uid_of(site.job_uid, f"{place.name}/replay", 0)
                    env = environment(job, place, 0, site) | {"ROLL_POD_UID": uid}
                    # Sums of floats depend on how many threads share them.
                    if place.role == "trainer" and "trainerThreads" in before:
                        env["OMP_NUM_THREADS"] = str(before["trainerThreads"])
                    await backend.start(StartPod(place.name, place.role, place.index, 0, uid, env))
            ended = await _first_decisive(backend)
            return _report(backend, ended)


def _command(pod: StartPod) -> list[str]:
    if pod.role == SCHEDULER:
        return [sys.executable, "-m", "roll_operator.scheduler", "--replay"]
    return [sys.executable, "-m", "roll_workers.trainer.replay"]


async def _first_decisive(backend: LocalBackend) -> Pod:
    """The first process that failed; rank 0 when all is well."""
    while True:
        backend.changed.clear()
        dead = [pod for pod in backend.pods() if pod.phase is PodPhase.EXITED]
        for pod in dead:
            if pod.exit_code != 0 or (pod.role == "trainer" and pod.index == 0):
                return pod
        await backend.changed.wait()


def _report(backend: LocalBackend, ended: Pod) -> int:
    lines = tail(backend.log_of(ended.name, 0), 1000)
    if ended.role == "trainer" and ended.exit_code in (0, 1):
        print("\n".join(lines))
        return int(ended.exit_code)
    for line in lines[-20:]:
        print(f"  {line}", file=sys.stderr)
    print(
        f"error: {ended.name}: {ended.message or f'exit code {ended.exit_code}'}", file=sys.stderr
    )
    return 2 if ended.exit_code == 2 else 1
