"""The environment role: gives prompts, takes actions. The data set is the environment of RLVR.

Invariants: every task ends as exactly one of result, failure or cancelled; between two turns an episode
lives here, in `episodes`, or nowhere: another worker makes it again from the trajectory (`episodes.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from roll_api import RLJob
from roll_wire import sample_pb2
from roll_wire.session_pb2 import Failure, Task

from roll_workers.environment.envs.dataset import DataSet
from roll_workers.environment.episodes import Episode, ReplayDiffers, World
from roll_workers.environment.setup import Setup, validation_seed
from roll_workers.environment.threads import Threads
from roll_workers.errors import UserError
from roll_workers.runtime.complaints import Complaints
from roll_workers.runtime.config import WorkerConfig
from roll_workers.runtime.session import Cancelled, Draining, Session, lease_key, unit_key
from roll_workers.user_code import describe

log = logging.getLogger(__name__)

CALL_SECONDS = 60.0  # of one call into a user's environment, when the task names no limit


class EnvError(Exception):
    """The user's environment raised: file, line and error."""


async def main(config: WorkerConfig, job: RLJob) -> None:
    """Serves the pool `environment` until drained. UserError where data or environment are unusable."""
    setup = Setup.of_job(job, config.storage, config.source)
    credits = job.spec.roles.environment.concurrency
    async with Session(config, pool="environment", credits=credits, data=setup.declared) as session:
        if setup.world is None:
            await serve_rows(session, setup.data)
        else:
            await Episodes(session, setup.world, setup.seed, user_file=setup.user_file).serve()


async def serve_rows(session: Session, data: dict[str, DataSet]) -> None:
    """RLVR: a reset is a look-up, so nothing is ever pending."""
    async for event in session:
        if not isinstance(event, Task):
            continue
        try:
            rows = data["validation" if event.validation else "train"]
            payload = rows.payload(rows.row(event.position, validation=event.validation))
        except KeyError:
            session.fail(event, Failure.INPUT, "the job has no validation data")
        except UserError as error:  # a prompt that does not fit, of a file that changed
            session.fail(event, Failure.INPUT, str(error))
        else:
            session.result(event, payload)


class Episodes:
    """The interactive episodes of this worker."""

    def __init__(
        self, session: Session, world: World, seed: int = 0, *, user_file: Path | None = None
    ) -> None:
        self.session, self.world, self.seed = session, world, seed
        self.resident: dict[tuple[int, int], Episode] = {}
        self._user_file = user_file
        self._threads = Threads() if user_file is not None else None
        self._complaints = Complaints(log)
        self._running: dict[tuple[int, int], asyncio.Task[None]] = {}

    async def serve(self) -> None:
        async for event in self.session:
            if isinstance(event, Task):
                key = lease_key(event.lease)
                self._running[key] = asyncio.create_task(self.handle(event))
                self._running[key].add_done_callback(partial(self._forget, key))
            elif isinstance(event, Cancelled):
                for unit in event.episodes:
                    self.resident.pop(unit_key(unit), None)
                for lease in event.leases:
                    if lease_key(lease) in self._running:
                        self._running[lease_key(lease)].cancel()
            elif isinstance(event, Draining):
                if self._running:
                    await asyncio.wait(list(self._running.values()), timeout=8)
                self.session.release()

    async def handle(self, task: Task) -> None:
        key = unit_key(task.unit)
        call = partial(self._call, task)
        # Whoever works on an episode takes it out: what goes wrong on the way leaves none behind.
        episode = self.resident.pop(key, None)
        try:
            if task.stage == "reset":
                episode, turn = await self.world.reset(
                    self._seed_of(task), call, validation=task.validation
                )
            else:
                before = sample_pb2.Trajectory.FromString(task.payload)
                if episode is None or not _is_at(episode, before):
                    episode = await self.world.replay(before, call)
                turn = await self.world.step(episode, before, call)
        except ReplayDiffers as error:
            self.session.fail(task, Failure.REPLAY, str(error))
        except TimeoutError:
            self._fail(task, Failure.TIMEOUT, f"did not end within {_limit(task):g} s")
        except EnvError as error:
            self._fail(task, Failure.INPUT, f"raised: {error}")
        except UserError as error:  # text that the tokenizer does not know
            self._complaints.tell(task.unit, str(error))
            self.session.fail(task, Failure.INPUT, str(error))
        except Exception as error:  # ours
            self._fail(task, Failure.INFRASTRUCTURE, f"raised: {describe(error)}")
        else:
            if not turn.done:
                self.resident[key] = episode
            self.session.result(
                task,
                turn.trajectory.SerializeToString(),
                reward=turn.reward,
                done=turn.done,
                resident=not turn.done,
            )

    def _fail(self, task: Task, kind: Failure.Kind, how: str) -> None:
        message = f"the environment's {task.stage} {how}"
        self._complaints.tell(task.unit, message)
        self.session.fail(task, kind, message)

    async def _call(self, task: Task, function: Callable[..., Any], *arguments: Any) -> Any:
        """Our own environments are quick and run here; a user's may hang."""
        if self._threads is None:
            return function(*arguments)
        return await self._threads.call(self._guarded, function, arguments, seconds=_limit(task))

    def _guarded(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Whatever the user's code raises, also TimeoutError and SystemExit, is its own failure."""
        try:
            return function(*arguments)
        except (ReplayDiffers, UserError):
            raise
        except BaseException as error:
            raise EnvError(describe(error, self._user_file)) from error

    def _seed_of(self, task: Task) -> int:
        return validation_seed(self.seed, task.position) if task.validation else task.seed

    def _forget(self, key: tuple[int, int], _: asyncio.Task[None]) -> None:
        self._running.pop(key, None)


def _limit(task: Task) -> float:
    """Half of the lease's time: our word that it hangs must come before the lease ends by itself."""
    return task.no_progress_ms / 2000 or CALL_SECONDS


def _is_at(episode: Episode, before: sample_pb2.Trajectory) -> bool:
    """Whether the episode stands where the trajectory ends; an older attempt's does not."""
    last = before.observations[-1] if before.observations else None
    return last is not None and (episode.turn, episode.hash) == (last.turn, last.hash)
