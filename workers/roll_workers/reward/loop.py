"""The reward role: takes finished answers, runs the job's scorers, hands back a reward or a typed failure.

Invariant: every task ends as exactly one of result, failure or cancelled; a scorer that raises, hangs or
returns no number is a failure and never a reward of zero.
"""

from __future__ import annotations

import asyncio
import logging
from functools import lru_cache, partial

from roll_api import RLJob
from roll_wire import sample_pb2
from roll_wire.session_pb2 import Failure, Task

from roll_workers.reward.rewards import Rewards
from roll_workers.reward.samples import read_sample
from roll_workers.reward.scorers import Reward, ScorerCrash, ScorerError, ScorerTimeout
from roll_workers.runtime.complaints import Complaints
from roll_workers.runtime.config import WorkerConfig
from roll_workers.runtime.session import Cancelled, Draining, Session, lease_key
from roll_workers.text import Codec

log = logging.getLogger(__name__)

Running = dict[tuple[int, int], asyncio.Task[None]]

KINDS = {
    ScorerError: Failure.INPUT,
    ScorerTimeout: Failure.TIMEOUT,
    ScorerCrash: Failure.INFRASTRUCTURE,
}
DRAIN_SECONDS = 8.0  # of the ten that a draining worker has
ALIVE_SECONDS = 5.0  # between two signs of life, at most


async def main(config: WorkerConfig, job: RLJob) -> None:
    """Serves the pool `reward` until drained. UserError where a scorer can't be loaded."""
    codec = Codec.of_model(job.spec.model.path, config.storage, config.source)
    rewards = Rewards.of_job(job.spec.rewards, config.source)
    try:
        await rewards.start()
        credits = job.spec.roles.reward.concurrency
        async with Session(config, pool="reward", credits=credits) as session:
            patience = job.spec.rollout.retry.no_progress_seconds
            await serve(session, codec, rewards, min(ALIVE_SECONDS, patience / 4))
    finally:
        await rewards.close()


async def serve(session: Session, codec: Codec, rewards: Rewards, beat: float) -> None:
    """`beat`: seconds between two signs of life of what is being judged."""
    running: Running = {}
    complaints = Complaints(log)
    alive = asyncio.create_task(_stay_alive(session, beat))
    try:
        async for event in session:
            if isinstance(event, Task) and rewards.immediate:
                await judge(session, codec, rewards, event, complaints)
            elif isinstance(event, Task):
                key = lease_key(event.lease)
                running[key] = asyncio.create_task(
                    judge(session, codec, rewards, event, complaints)
                )
                running[key].add_done_callback(partial(_forget, running, key))
            elif isinstance(event, Cancelled):
                for lease in event.leases:
                    if lease_key(lease) in running:
                        running[lease_key(lease)].cancel()
            elif isinstance(event, Draining):
                if running:
                    await asyncio.wait(list(running.values()), timeout=DRAIN_SECONDS)
                session.release()
    finally:
        alive.cancel()
        for judging in list(running.values()):
            judging.cancel()


async def judge(
    session: Session, codec: Codec, rewards: Rewards, task: Task, complaints: Complaints
) -> None:
    """One answer."""
    try:
        trajectory = sample_pb2.Trajectory.FromString(task.payload)
        reward = await rewards.score(read_sample(trajectory, codec))
    except (ScorerError, ScorerTimeout, ScorerCrash) as error:
        complaints.tell(task.unit, str(error))
        session.fail(task, KINDS[type(error)], str(error))
    except Exception as error:  # ours: the sample is not to blame, and the worker goes on
        log.exception("scoring failed")
        session.fail(task, Failure.INFRASTRUCTURE, f"{type(error).__name__}: {error}")
    else:
        session.result(task, payload_of(reward), reward=reward.value)


def payload_of(reward: Reward) -> bytes:
    """What the score stage adds to the trajectory."""
    return _payload(reward.value, tuple(reward.parts.items()), tuple(reward.turns))


@lru_cache(maxsize=256)
def _payload(value: float, parts: tuple[tuple[str, float], ...], turns: tuple[float, ...]) -> bytes:
    """Most rewards are one of few."""
    message = sample_pb2.Reward(value=value, parts=dict(parts), turns=turns)
    return sample_pb2.Trajectory(reward=message).SerializeToString()


def _forget(running: Running, key: tuple[int, int], _: asyncio.Task[None]) -> None:
    running.pop(key, None)


async def _stay_alive(session: Session, beat: float) -> None:
    """A scorer ends by its own time-out; until then its lease is not to be given to another worker."""
    beats = 0
    while True:
        await asyncio.sleep(beat)
        beats += 1
        for task in session.held():
            session.progress(task, beats)
