"""`roll run`: from a job's file to a finished run, a stopped one, or one clear reason why not."""

import asyncio
import errno
import os
import shlex
import signal
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roll_api import InvalidJob, RLJob, load_job
from roll_api.figures import figure
from roll_wire.ports import free_port, port_is_free

from roll_operator.backends.local import LocalBackend
from roll_operator.backends.logs import tail
from roll_operator.cli.named import check
from roll_operator.cli.not_yet import refuse_what_is_not_there
from roll_operator.cli.overrides import override
from roll_operator.cli.status import dropped_text
from roll_operator.cli.validate import print_problems
from roll_operator.cli.view import View, choose_view
from roll_operator.controller import claim
from roll_operator.controller.answers import side_by_side
from roll_operator.controller.folder import RunError, RunFolder
from roll_operator.controller.link import SchedulerLink
from roll_operator.controller.local import LocalRun, Snapshot
from roll_operator.controller.state import State
from roll_operator.controller.summary import draw, summarize
from roll_operator.plan import Site
from roll_operator.plan.desired import threads
from roll_operator.plan.rules import BAD_INPUT

STOPPED = 130
DISK_TROUBLE = (errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO)
LOG_LINES = 20


def run_job(
    file: Path, output: Path | None, *, fresh: bool, port: int | None, overrides: Sequence[str]
) -> int:
    try:
        job = override(load_job(file), overrides)
        refuse_what_is_not_there(job, file)
        checked = check(job, file)
        if wrong := checked.errors + checked.warnings:
            raise InvalidJob(wrong)
    except InvalidJob as error:
        print_problems(error.problems)
        return 2
    folder = RunFolder((output or Path("runs") / job.name).resolve())
    with claim.held(folder):
        uid = claim.identify(folder, job, fresh=fresh)
        if _is_finished(folder, job):
            print(f"{job.name} is finished already; more steps continue it, --fresh starts over")
            _print_summary(folder, folder.summary())
            return 0
        source = file.resolve().parent
        site = _site(folder, uid, source, _choose_port(folder, port))
        state = State.load(folder, uid)
        try:
            # In this order: a folder with a run.json is a run's, however little else is in it.
            claim.write_run(
                folder,
                job,
                uid,
                site.scheduler,
                source=str(source),
                trainerThreads=threads(job, "trainer", site.cores),
            )
            claim.write_job(folder, job)
            view = choose_view(job, folder.path, continues=bool(state.record.scopes))
            last = asyncio.run(_run(job, folder, site, state, view))
            return _finish(file, output, overrides, folder, job, state, last)
        except OSError as error:
            if error.errno not in DISK_TROUBLE:
                raise
            raise RunError(
                f"{folder.path}: {error.strerror}; every process is stopped. Nothing that was recorded is "
                "lost: make the disk usable, then run the same command again"
            ) from error


def _site(folder: RunFolder, uid: str, source: Path, port: int) -> Site:
    address = f"127.0.0.1:{port}"
    return Site(
        job_uid=uid,
        scheduler=address,
        listen=address,
        spec=str(folder.job_file),
        storage=str(folder.path),
        source=str(source),
        cores=len(os.sched_getaffinity(0)),
    )


async def _run(job: RLJob, folder: RunFolder, site: Site, state: State, view: View) -> Snapshot:
    link = SchedulerLink(site.scheduler)
    mark = f"{site.job_uid}:{site.storage}"
    try:
        async with LocalBackend(folder.logs, mark) as backend:
            running = LocalRun(job, folder, site, backend, link, view.show, state)
            loop = asyncio.get_running_loop()
            stops = [signal.SIGINT, signal.SIGTERM]
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup wants it to go on
                stops.append(signal.SIGHUP)
            for number in stops:
                loop.add_signal_handler(number, running.stop)
            with view:
                return await running.run()
    finally:
        await link.close()


def _is_finished(folder: RunFolder, job: RLJob) -> bool:
    """Also summed up: a run whose last words met a full disk is taken up once more to say them."""
    state = folder.state()
    done = state.get("phase") == "Succeeded" and job.spec.steps <= state.get("steps", 0)
    return done and folder.summary().get("phase") == "Succeeded"


def _choose_port(folder: RunFolder, asked: int | None) -> int:
    """The port asked for; else that of the run so far, while nobody else took it; else a free one."""
    if asked is not None:
        if not port_is_free(asked):
            raise RunError(
                f"port {asked} on 127.0.0.1 is in use by another program: choose another with --port, "
                "or leave --port out"
            )
        return asked
    before = str(folder.run().get("scheduler", "")).rpartition(":")[2]
    if before.isdigit() and port_is_free(int(before)):
        return int(before)
    return free_port()


def _held_out(folder: RunFolder) -> list[tuple[int, float]]:
    """As recorded: what was seen while the run went on lags behind and lacks equal means."""
    from roll_operator.scheduler import offline
    from roll_operator.scheduler.ledger.sqlite import LedgerError

    try:
        return offline.held_out(folder.ledger)
    except (LedgerError, sqlite3.Error):  # a run that failed before it had one
        return []


def _finish(
    file: Path,
    output: Path | None,
    overrides: Sequence[str],
    folder: RunFolder,
    job: RLJob,
    state: State,
    last: Snapshot,
) -> int:
    summary = summarize(folder, job, state)
    picture = draw(folder, job, _held_out(folder) or state.held_out)
    failure = last.record.failure
    if failure is not None:
        _print_log(folder, failure.pod, failure.attempt, failure.message)
        print(
            f"error: {failure.pod + ': ' if failure.pod else ''}{failure.message}", file=sys.stderr
        )
        return 2 if failure.exit_code == BAD_INPUT else 1
    if last.record.finished:
        _print_summary(folder, summary)
        if picture is None:
            print("  (no reward.png: matplotlib is not installed, or no step was recorded)")
        return 1 if summary["ledgerProblems"] else 0
    checkpoint = summary["checkpoint"]
    where = "nothing is saved yet" if checkpoint is None else f"checkpoint {checkpoint} is kept"
    command = ["roll", "run", str(file), *(["--output", str(output)] if output else [])]
    command += [part for change in overrides for part in ("--set", change)]
    print(f"stopped at step {summary['steps']}; {where}. Continue with: {shlex.join(command)}")
    return STOPPED


def _print_log(folder: RunFolder, pod: str, attempt: int, message: str) -> None:
    """What the log says beyond the message, which is told anyway."""
    log = folder.logs / f"{pod}.{attempt}.log"
    lines = [
        line
        for line in tail(log, LOG_LINES)
        if not any(said in line for said in message.splitlines() if said)
    ]
    if not lines:
        return
    print(f"last lines of {_shown(log)}:", file=sys.stderr)
    for line in lines:
        print(f"  {line}", file=sys.stderr)


def _print_summary(folder: RunFolder, summary: dict[str, Any]) -> None:
    if not summary:
        return
    samples = summary["samples"]
    restarts = {role: n for role, n in summary["restarts"].items() if n}
    seconds, earlier = summary["durationSeconds"], summary.get("earlierSeconds", 0.0)
    both = f" ({seconds:.0f} s with the runs before)" if earlier else ""
    print(
        f"{summary['job']}: {summary['phase']} after {summary['steps']} steps in "
        f"{seconds - earlier:.0f} s{both}"
    )
    if training_reward := summary.get("trainingReward"):
        print(f"  training reward  {training_reward['first']:.3f} → {training_reward['last']:.3f}")
    if held_out := summary["validationReward"]:
        print(f"  held-out reward  {held_out['first']:.3f} → {held_out['last']:.3f}")
    for line in side_by_side(summary.get("firstAnswers", {}), summary.get("lastAnswers", {})):
        print(f"  {line}")
    print(
        f"  samples          {samples['trained']} trained, {samples['lost']} lost, "
        f"{samples['trainedTwice']} trained twice"
    )
    if dropped := dropped_text(samples.get("dropped", {})):
        print(f"  not trained      {dropped}")
    if training := summary.get("trainingSeconds"):
        print(
            f"  speed            {figure(summary['samplesPerSecond'], 3)} samples/s in the {training:.0f} s from "
            "when all processes were ready"
        )
    print(f"  staleness        at most {summary['stalenessMax']}")
    print("  restarts         " + (", ".join(f"{r} {n}" for r, n in restarts.items()) or "none"))
    for problem in summary.get("ledgerProblems", []):
        print(f"  ledger           {problem}")
    kept = [
        n for n in ("summary.json", "reward.png", "metrics.jsonl") if (folder.path / n).exists()
    ]
    uri = folder.job().get("spec", {}).get("storage", {}).get("uri")
    kept += ["ledger", "logs", "tensorboard", *([] if uri else ["checkpoints"])]
    print(f"  in {_shown(folder.path)}: {', '.join(kept)}")
    if uri:
        print(f"  in {uri}: checkpoints")


def _shown(path: Path) -> str:
    """As short as it is unambiguous."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
