"""Rules between fields, each written once: where it shows, what it says, how Python and CEL check it.

Pydantic and the CRD both read this table, so a job means the same to `roll` and to the API server.
A rule's CEL stands at `spec`, after defaulting: fields with a default are always there, others need
`has()`. CEL never touches templates and free options: the API server hides them from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roll_api.spec import JobSpec


@dataclass(frozen=True)
class Rule:
    """What must hold between fields of one spec."""

    shown_at: str
    """The key that an error points to, relative to `spec`."""
    message: str
    reads: tuple[str, ...]
    """Keys that decide, `*` for any item; the rule is not judged while one is wrong by itself."""
    holds: Callable[[JobSpec], bool]
    cel: str
    cluster_only: bool = False
    """Whether the rule is about pods, and of no concern to a job on one machine."""


@dataclass(frozen=True)
class Transition:
    """What must hold between the old and the new spec of one job."""

    shown_at: str
    message: str
    reads: tuple[str, ...]
    cel: str
    unless_suspended: bool
    """Whether a suspended job may change it."""
    concerns: Callable[[JobSpec], bool] = lambda _: True
    """Whether the rule is about this (old) spec at all."""


_GENERATES = ("RLVR", "Agentic", "Distill")
_READS_DATA = ("RLVR", "SFT", "DPO", "Distill")


def _one_of(*values: object) -> bool:
    return sum(value is not None for value in values) == 1


def _shares(spec: JobSpec) -> int:
    """Into how many equal parts a batch is cut; Megatron's data-parallel size is in its options."""
    ranks = 1 if spec.roles.trainer.strategy.kind == "megatron" else spec.roles.trainer.ranks
    return ranks * spec.algorithm.minibatches


RULES: tuple[Rule, ...] = (
    Rule(
        "rollout.groupsPerStep",
        "groupsPerStep x groupSize must be a multiple of trainer ranks x algorithm.minibatches",
        (
            "rollout.groupsPerStep",
            "rollout.groupSize",
            "roles.trainer.replicas",
            "roles.trainer.gpu.count",
            "roles.trainer.strategy.kind",
            "algorithm.minibatches",
        ),
        lambda spec: spec.rollout.samples_per_step % _shares(spec) == 0,
        "self.rollout.groupsPerStep * self.rollout.groupSize % (self.algorithm.minibatches * "
        "(self.roles.trainer.strategy.kind == 'megatron' ? 1 : self.roles.trainer.replicas * "
        "(has(self.roles.trainer.gpu) ? self.roles.trainer.gpu.count : 1))) == 0",
    ),
    Rule(
        "rollout.runAhead",
        "runAhead must be at most maxStaleness: what starts earlier would be too old to train on",
        ("rollout.runAhead", "rollout.maxStaleness"),
        lambda spec: spec.rollout.effective_run_ahead <= spec.rollout.max_staleness,
        "!has(self.rollout.runAhead) || self.rollout.runAhead <= double(self.rollout.maxStaleness)",
    ),
    Rule(
        "rollout.groupSize",
        "advantage grpo compares samples of a group: groupSize must be at least 2",
        ("rollout.groupSize", "algorithm.advantage"),
        lambda spec: spec.algorithm.advantage != "grpo" or spec.rollout.group_size >= 2,
        "self.algorithm.advantage != 'grpo' || self.rollout.groupSize >= 2",
    ),
    Rule(
        "rollout.filter",
        "a filter needs above or below, and above must be less than below",
        ("rollout.filter.by", "rollout.filter.above", "rollout.filter.below"),
        lambda spec: spec.rollout.filter.by == "none" or spec.rollout.filter.lets_something_pass,
        "self.rollout.filter.by == 'none' || "
        "(has(self.rollout.filter.above) && has(self.rollout.filter.below) "
        "? self.rollout.filter.above < self.rollout.filter.below "
        ": has(self.rollout.filter.above) || has(self.rollout.filter.below))",
    ),
    Rule(
        "rollout.filter.by",
        "a filter by std compares samples of a group: groupSize must be at least 2",
        ("rollout.filter.by", "rollout.groupSize"),
        lambda spec: spec.rollout.filter.by != "std" or spec.rollout.group_size >= 2,
        "self.rollout.filter.by != 'std' || self.rollout.groupSize >= 2",
    ),
    Rule(
        "data",
        "this pipeline reads prompts: give data.train.path",
        ("pipeline", "data"),
        lambda spec: spec.pipeline not in _READS_DATA or spec.data is not None,
        "self.pipeline == 'Agentic' || has(self.data)",
    ),
    Rule(
        "data",
        "pipeline Agentic takes its prompts from environment: remove data",
        ("pipeline", "data"),
        lambda spec: spec.pipeline != "Agentic" or spec.data is None,
        "self.pipeline != 'Agentic' || !has(self.data)",
    ),
    Rule(
        "environment",
        "pipeline Agentic needs an environment: give environment.kind or environment.python",
        ("pipeline", "environment"),
        lambda spec: spec.pipeline != "Agentic" or spec.environment is not None,
        "self.pipeline != 'Agentic' || has(self.environment)",
    ),
    Rule(
        "environment",
        "only pipeline Agentic acts in an environment: remove it, or set pipeline: Agentic",
        ("pipeline", "environment"),
        lambda spec: spec.pipeline == "Agentic" or spec.environment is None,
        "self.pipeline == 'Agentic' || !has(self.environment)",
    ),
    Rule(
        "environment",
        "give exactly one of kind and python",
        ("environment.kind", "environment.python"),
        lambda spec: (
            spec.environment is None or _one_of(spec.environment.kind, spec.environment.python)
        ),
        "!has(self.environment) || has(self.environment.kind) != has(self.environment.python)",
    ),
    Rule(
        "rewards",
        "pipeline RLVR needs at least one reward",
        ("pipeline", "rewards"),
        lambda spec: spec.pipeline != "RLVR" or len(spec.rewards) > 0,
        "self.pipeline != 'RLVR' || self.rewards.size() > 0",
    ),
    Rule(
        "rewards",
        "names of rewards must differ",
        ("rewards", "rewards.*.name"),
        lambda spec: len({reward.name for reward in spec.rewards}) == len(spec.rewards),
        "self.rewards.all(a, self.rewards.exists_one(b, b.name == a.name))",
    ),
    Rule(
        "rewards",
        "give exactly one of kind and python to each scorer",
        ("rewards", "rewards.*.scorer.kind", "rewards.*.scorer.python"),
        lambda spec: all(_one_of(r.scorer.kind, r.scorer.python) for r in spec.rewards),
        "self.rewards.all(r, has(r.scorer.kind) != has(r.scorer.python))",
    ),
    Rule(
        "roles.inference.replicas",
        "this pipeline generates: roles.inference needs at least 1 replica; suspend: true stops a job",
        ("pipeline", "roles.inference.replicas"),
        lambda spec: spec.pipeline not in _GENERATES or spec.roles.inference.replicas >= 1,
        "!(self.pipeline in ['RLVR', 'Agentic', 'Distill']) || self.roles.inference.replicas >= 1",
    ),
    Rule(
        "roles.environment.replicas",
        "prompts come from roles.environment: it needs at least 1 replica",
        ("pipeline", "roles.environment.replicas"),
        lambda spec: spec.pipeline not in _GENERATES or spec.roles.environment.replicas >= 1,
        "!(self.pipeline in ['RLVR', 'Agentic', 'Distill']) || self.roles.environment.replicas >= 1",
    ),
    Rule(
        "roles.reward.replicas",
        "rewards run in roles.reward: it needs at least 1 replica",
        ("rewards", "roles.reward.replicas"),
        lambda spec: not spec.rewards or spec.roles.reward.replicas >= 1,
        "self.rewards.size() == 0 || self.roles.reward.replicas >= 1",
    ),
    Rule(
        "storage",
        "give exactly one of size, claim and uri",
        ("storage.size", "storage.claim", "storage.uri"),
        lambda spec: _one_of(spec.storage.size, spec.storage.claim, spec.storage.uri),
        "[has(self.storage.size), has(self.storage.claim), has(self.storage.uri)]"
        ".exists_one(given, given)",
    ),
    Rule(
        "storage",
        "more than one trainer pod needs a shared place for checkpoints: storage.claim or storage.uri",
        ("storage.size", "storage.claim", "storage.uri", "roles.trainer.replicas"),
        lambda spec: spec.roles.trainer.replicas == 1 or spec.storage.size is None,
        "self.roles.trainer.replicas == 1 || !has(self.storage.size)",
        cluster_only=True,
    ),
    Rule(
        "weights.transfer",
        "transfer Folder needs a volume that inference pods can mount: storage.claim",
        ("weights.transfer", "storage.claim"),
        lambda spec: spec.weights.transfer != "Folder" or spec.storage.claim is not None,
        "self.weights.transfer != 'Folder' || has(self.storage.claim)",
        cluster_only=True,
    ),
    Rule(
        "failurePolicy.backoffMaxSeconds",
        "backoffMaxSeconds must be at least backoffSeconds",
        ("failurePolicy.backoffSeconds", "failurePolicy.backoffMaxSeconds"),
        lambda spec: spec.failure_policy.backoff_max_seconds >= spec.failure_policy.backoff_seconds,
        "self.failurePolicy.backoffMaxSeconds >= self.failurePolicy.backoffSeconds",
    ),
)


_MAY_BE_ABSENT = (
    "data",
    "environment",
    "environment.kind",
    "environment.python",
    "image",
    "managedBy",
    "model.reference",
    "scheduling.queue",
    *(f"roles.{role}.gpu" for role in ("trainer", "inference", "reward", "environment")),
)
"""Keys without a default. All others are there in the old and the new object, whoever wrote them."""


def _unchanged(path: str) -> str:
    """CEL for "this key is as it was", whether or not it is there."""
    same = f"self.{path} == oldSelf.{path}"
    parts = path.split(".")
    for key in (".".join(parts[:depth]) for depth in range(len(parts), 0, -1)):
        if key in _MAY_BE_ABSENT:
            same = f"has(self.{key}) == has(oldSelf.{key}) && (!has(self.{key}) || {same})"
    return same


def _all_unchanged(paths: tuple[str, ...]) -> str:
    return " && ".join(map(_unchanged, paths))


def _fixed(shown_at: str, why: str, *paths: str) -> Transition:
    reads = paths or (shown_at,)
    message = f"{shown_at} cannot be changed: {why}"
    return Transition(shown_at, message, reads, _all_unchanged(reads), unless_suspended=False)


def _suspend_first(shown_at: str, *paths: str) -> Transition:
    reads = paths or (shown_at,)
    message = f"{shown_at} cannot be changed while the job runs: set suspend: true first"
    cel = f"oldSelf.suspend || {_all_unchanged(reads)}"
    return Transition(shown_at, message, reads, cel, unless_suspended=True)


def _queued(shown_at: str, message: str, *reads: str) -> Transition:
    """What a job in a queue may change only while suspended."""
    cel = f"oldSelf.suspend || !has(oldSelf.scheduling.queue) || {_all_unchanged(reads)}"
    return Transition(
        shown_at,
        message,
        reads,
        cel,
        unless_suspended=True,
        concerns=lambda spec: spec.scheduling.queue is not None,
    )


def _pod_keys(role: str) -> tuple[str, ...]:
    """What decides where a pod stands: a running one cannot be moved."""
    return (f"{role}.gpu", f"{role}.resources", f"{role}.placement")


_ELASTIC = ("inference", "reward", "environment")
_NEW_JOB = "what was learnt and recorded belongs to it; make a new job"

TRANSITIONS: tuple[Transition, ...] = (
    _fixed("pipeline", _NEW_JOB),
    _fixed("seed", _NEW_JOB),
    _fixed("model.path", _NEW_JOB),
    _fixed("data.train.path", _NEW_JOB),
    _fixed("environment", _NEW_JOB, "environment.kind", "environment.python"),
    _fixed("storage", "checkpoints lie there"),
    _fixed("managedBy", "two controllers would act on the same pods"),
    _suspend_first("model", "model.reference", "model.dtype"),
    _suspend_first("algorithm"),
    _suspend_first("rollout"),
    _suspend_first(
        "roles.trainer",
        "roles.trainer.replicas",
        "roles.trainer.threads",
        *_pod_keys("roles.trainer"),
        "roles.trainer.strategy.kind",
        "roles.trainer.strategy.microBatchTokens",
    ),
    _suspend_first("roles.inference.engine", "roles.inference.engine.kind"),
    *(_suspend_first(f"roles.{role}", *_pod_keys(f"roles.{role}")) for role in _ELASTIC),
    _suspend_first("scheduler.resources"),
    _suspend_first("scheduling"),
    _suspend_first("image"),
    _queued(
        "roles",
        "Kueue admitted a group of this size: set suspend: true before changing replicas",
        *(f"roles.{role}.replicas" for role in _ELASTIC),
    ),
)


def read(spec: Any, path: str) -> Any:
    """The value of a camelCase key path in a dumped spec; None where a part is absent."""
    for part in path.split("."):
        spec = spec.get(part) if isinstance(spec, dict) else None
    return spec


def refused_changes(old: JobSpec, new: JobSpec) -> list[Transition]:
    """The changes from one spec to another that a job's life does not allow."""
    before, after = old.model_dump(), new.model_dump()
    return [
        transition
        for transition in TRANSITIONS
        if transition.concerns(old)
        and not (transition.unless_suspended and old.suspend)
        and any(read(before, path) != read(after, path) for path in transition.reads)
    ]
