"""The job's rewards on a few rows of its data, without a model: what `roll reward` starts.

The scorers are those of the reward role, in the same processes with the same time-outs. Exit codes: 0 all
answers were judged, 1 some could not be, 2 the user's error, as the roles have it.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import uvloop
from roll_api import RLJob
from roll_api.figures import figure

from roll_workers.environment.envs.dataset import Columns, check_prompt, facts_of
from roll_workers.environment.envs.rows import Rows, read_rows
from roll_workers.errors import UserError
from roll_workers.reward.rewards import Rewards
from roll_workers.reward.samples import scored_sample
from roll_workers.reward.scorers import (
    Reward,
    ScoredSample,
    ScorerCrash,
    ScorerError,
    ScorerTimeout,
)

LOOK_AHEAD = 100  # rows among which another row's answer is looked for


async def try_rewards(job: RLJob, source: Path, rows: int, response: str | None) -> int:
    if job.spec.data is None:
        raise UserError(
            "roll reward judges answers to rows of spec.data, and this job's prompts come from an environment"
        )
    if not job.spec.rewards:
        raise UserError("spec.rewards: the job names no reward")
    data = read_rows(job.spec.data.train.path, source, "train")
    rewards = Rewards.of_job(job.spec.rewards, source)
    try:
        await rewards.start()
        return await _judge_rows(rewards, data, Columns.of(job.spec.data.train), rows, response)
    finally:
        await rewards.close()


async def _judge_rows(
    rewards: Rewards, data: Rows, columns: Columns, rows: int, response: str | None
) -> int:
    judged, seconds, problems, tags = 0, 0.0, [], set()
    for index in range(min(rows, len(data))):
        row = data[index]
        check_prompt(data, index, row, columns, "train")
        facts = facts_of(row, columns)
        answer = facts.get("answer")
        expects = "no answer" if answer is None else f"answer {answer!r:.80}"
        print(f"{data.where(index)}: {facts['prompt']!r:.120}, {expects}")
        tags.add(facts["tag"])
        for said, whose in _responses(data, columns, index, answer, response):
            began = time.perf_counter()
            try:
                outcome = _shown(await rewards.score(_sample(facts, said)))
            except (ScorerError, ScorerTimeout, ScorerCrash) as error:
                outcome = f"failed: {error}"
                problems.append(str(error))
            judged += 1
            seconds += time.perf_counter() - began
            print(f"  {said!r:.80}{whose}: {outcome}")
    for entry in rewards.entries:
        if entry.tags and not entry.tags & tags:
            named = ", ".join(sorted(entry.tags))
            print(f"note: reward {entry.name!r} judged none of these rows, its tags are {named}")
    if problems:
        print(
            f"error: {len(problems)} of {judged} answers could not be judged; the first: {problems[0]}",
            file=sys.stderr,
        )
        return 1
    print(f"{judged} answers judged, {1000 * seconds / judged:.1f} ms each")
    return 0


def _sample(facts: dict[str, Any], response: str) -> ScoredSample:
    """`tokens` counts characters: there is no tokenizer here."""
    written = {key: json.dumps(value, default=str) for key, value in facts.items()}
    return scored_sample(written, response, tokens=len(response), turns=[])


def _responses(
    data: Rows, columns: Columns, index: int, answer: Any, response: str | None
) -> Iterator[tuple[str, str]]:
    """What is judged: the text asked for; else the row's own answer and another row's, which is wrong here."""
    if response is not None:
        yield response, ""
        return
    if answer is None:
        yield "", " (an empty response; --response TEXT judges another)"
        return
    yield str(answer), " (its own answer)"
    others = itertools.islice(data, LOOK_AHEAD)
    answers = (row.get(columns.answer) for row in others)
    wrong = [other for other in answers if other not in (None, answer)]
    if wrong:
        yield str(wrong[index % len(wrong)]), " (another row's answer)"


def _shown(reward: Reward) -> str:
    parts = ", ".join(f"{name} {figure(value)}" for name, value in reward.parts.items())
    return f"{figure(reward.value)}  ({parts})"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Reads a job as JSON from stdin.")
    parser.add_argument("source", type=Path, help="folder of the job's file")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--response")
    asked = parser.parse_args(arguments)
    job = RLJob.from_json(sys.stdin.read())
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a function may take its time
    try:
        return uvloop.run(try_rewards(job, asked.source, asked.rows, asked.response))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
