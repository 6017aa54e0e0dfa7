"""From a job to what its environment workers serve; everything that can be wrong is found here.

Two jobs with equal specs and equal data declare equal content hashes, on any machine.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from roll_wire.session_pb2 import DataSet as Declared

from roll_workers.environment.envs import Env
from roll_workers.environment.envs.dataset import Columns, DataSet
from roll_workers.environment.envs.rows import read_rows
from roll_workers.environment.episodes import World
from roll_workers.errors import UserError
from roll_workers.text import Codec

if TYPE_CHECKING:
    from roll_api import RLJob
    from roll_api.data import DataSource, EnvironmentSource

ENDLESS = -1
VALIDATION_EPISODES = 64  # the default that `environment.validation.samples` documents


@dataclass(slots=True)
class Setup:
    declared: list[Declared]
    seed: int
    data: dict[str, DataSet] = field(default_factory=dict)
    world: World | None = None
    user_file: Path | None = None  # of a world that the user wrote

    @classmethod
    def of_job(cls, job: RLJob, storage: Path, source: Path) -> Setup:
        codec = Codec.of_model(job.spec.model.path, storage, source)
        limit = prompt_limit(codec, job.spec.model.path, job.spec.rollout.sampling.max_new_tokens)
        if job.spec.pipeline == "Agentic":
            return _world(job, codec, source, limit)
        if job.spec.data is None:
            raise UserError("spec.data: the job has no data")
        sources: dict[str, DataSource] = {"train": job.spec.data.train}
        if job.spec.data.validation is not None:
            sources["validation"] = job.spec.data.validation
        data = {
            split: _data_set(job, split, of, codec, source, limit) for split, of in sources.items()
        }
        declared = [
            Declared(split=split, rows=len(rows.rows), content_hash=rows.content_hash)
            for split, rows in data.items()
        ]
        return cls(declared, job.spec.seed, data=data)


def prompt_limit(codec: Codec, model: str, max_new_tokens: int) -> int | None:
    """Tokens that a prompt may have."""
    if codec.context is None:
        return None
    if max_new_tokens >= codec.context:
        raise UserError(
            f"model.path: {model} has a context of {codec.context} tokens, too small for "
            f"rollout.sampling.maxNewTokens = {max_new_tokens} and a prompt"
        )
    return codec.context - max_new_tokens


def validation_seed(seed: int, position: int) -> int:
    """Seeds of validation episodes: the same at each validation, and none that training draws."""
    digest = hashlib.blake2b(f"validation/{seed}/{position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _data_set(
    job: RLJob, split: str, of: DataSource, codec: Codec, source: Path, limit: int | None
) -> DataSet:
    rows = DataSet(
        read_rows(of.path, source, split),
        codec,
        split=split,
        columns=Columns.of(of),
        chat=of.chat_template.use,
        system=of.chat_template.system,
        chat_options=of.chat_template.options,
        seed=job.spec.seed,
        max_prompt_tokens=limit,
    )
    rows.check(job.spec.rewards)
    return rows


def _world(job: RLJob, codec: Codec, source: Path, limit: int | None) -> Setup:
    of = job.spec.environment
    if of is None:
        raise UserError("spec.environment: an Agentic job needs an environment")
    if of.action_pattern is not None:
        try:
            re.compile(of.action_pattern)
        except re.error as error:
            raise UserError(
                f"environment.actionPattern: not a regular expression: {error}"
            ) from error
    make, content, user_file = _maker(of, source)
    env = make()
    if of.python is None:  # ours are cheap to try, and what they say must fit the model
        for validation in (False, *([True] if of.validation else [])):
            _check_first(env.reset(0, validation).text, codec, limit)
    world = World(
        make,
        codec,
        max_turns=of.max_turns,
        max_new_tokens=job.spec.rollout.sampling.max_new_tokens,
        action_pattern=of.action_pattern,
        format_penalty=of.format_penalty,
        rewards_itself=not job.spec.rewards,
    )
    declared = [Declared(split="train", rows=ENDLESS, content_hash=content)]
    if of.validation is not None:
        episodes = of.validation.samples or VALIDATION_EPISODES
        declared.append(Declared(split="validation", rows=episodes, content_hash=content))
    return Setup(declared, job.spec.seed, world=world, user_file=user_file)


def _maker(of: EnvironmentSource, source: Path) -> tuple[Callable[[], Env], str, Path | None]:
    """What makes an environment, a hash of what decides its behaviour, and the user's file if it is theirs."""
    options = dict(of.options)
    digest = hashlib.blake2b(json.dumps(options, sort_keys=True).encode(), digest_size=16)
    if of.python is not None:
        from roll_workers.environment.envs.python import UserEnvs

        envs = UserEnvs(of.python, source, options)
        digest.update(envs.path.read_bytes())
        return envs, digest.hexdigest(), envs.path
    from roll_workers.environment.envs.frozen_lake import FrozenLake

    unknown = set(options) - set(inspect.signature(FrozenLake).parameters)
    if unknown:
        known = ", ".join(inspect.signature(FrozenLake).parameters)
        raise UserError(
            f"environment.options: frozenLake knows no {', '.join(sorted(unknown))}; it knows {known}"
        )
    digest.update(b"frozenLake")
    return lambda: FrozenLake(**options), digest.hexdigest(), None


def _check_first(text: str, codec: Codec, limit: int | None) -> None:
    try:
        tokens = (
            codec.encode_chat([{"role": "user", "content": text}])
            if codec.has_chat
            else (codec.encode(text))
        )
    except UserError as error:
        raise UserError(f"environment: {error}") from error
    if limit is not None and len(tokens) > limit:
        raise UserError(
            f"environment: its first observation has {len(tokens)} tokens, but the model's context of "
            f"{codec.context} leaves {limit} beside rollout.sampling.maxNewTokens"
        )
