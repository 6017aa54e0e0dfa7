"""Rules between fields, each written once: where it shows, what it says, how Python and CEL check it.

Pydantic and the CRD both read this table, so a job means the same to `roll` and to the API server.
A rule's CEL stands at `spec`, after defaulting: fields with a default are always there, others need
`has()`. CEL reads no key of templates and free options: the API server hides them from it, but compares them
with the section that they are in.
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
    but: tuple[Transition, ...] = ()
    """Where one of these refuses the change, this one says nothing."""
    seen: Callable[[Any], Any] = lambda value: value
    """What of a key's value must stay as it was."""
    while_there: bool = False
    """Whether the keys may come and go, and only must not change while they stay."""

    def broken_by(self, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
        """The keys that differ between two dumped specs, as far as the rule looks at them."""
        values = [(path, read(old, path), read(new, path)) for path in self.reads]
        return [
            path
            for path, before, after in values
            if self.seen(before) != self.seen(after)
            and not (self.while_there and (before is None or after is None))
        ]


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
    "data.validation",
    "environment",
    "environment.actionPattern",
    "environment.kind",
    "environment.python",
    "environment.validation",
    "image",
    "managedBy",
    "scheduling.queue",
    *(f"roles.{role}.gpu" for role in ("trainer", "inference", "reward", "environment")),
)
"""Keys without a default. All others are there in the old and the new object, whoever wrote them."""


def _unchanged(path: str, *, below: str = "") -> str:
    """CEL for "this key is as it was", whether or not it is there. What it is `below` is there."""
    same = f"self.{path} == oldSelf.{path}"
    parts = path.split(".")
    for key in (".".join(parts[:depth]) for depth in range(len(parts), 0, -1)):
        if key in _MAY_BE_ABSENT and key != below:
            same = f"has(self.{key}) == has(oldSelf.{key}) && (!has(self.{key}) || {same})"
    return same


def _all_unchanged(paths: tuple[str, ...]) -> str:
    return " && ".join(map(_unchanged, paths))


def _fixed(shown_at: str, why: str, *paths: str) -> Transition:
    reads = paths or (shown_at,)
    message = f"{shown_at} cannot be changed: {why}"
    return Transition(shown_at, message, reads, _all_unchanged(reads), unless_suspended=False)


def _fixed_while_there(path: str, why: str) -> Transition:
    """For a key below sections that a job may have or not."""
    parts = path.split(".")
    above = (".".join(parts[:depth]) for depth in range(1, len(parts)))
    absent = [f"!has(self.{key}) || !has(oldSelf.{key})" for key in above if key in _MAY_BE_ABSENT]
    cel = " || ".join([*absent, f"self.{path} == oldSelf.{path}"])
    message = f"{path} cannot be changed: {why}"
    return Transition(path, message, (path,), cel, unless_suspended=False, while_there=True)


def _suspend_first(
    shown_at: str, *paths: str, within: str = "", but: tuple[Transition, ...] = ()
) -> Transition:
    """What a running job may not change: a section, without what rules of their own fix in it (`but`), or keys of
    the section `within`.

    Each write of the status has the rules evaluated, with an equal spec; and each key that a rule reads costs as much
    as its object has keys. One comparison of a section is cheaper than those of its keys, which decide after it.
    """
    reads = paths or (shown_at,)
    message = f"{shown_at} cannot be changed while the job runs: set suspend: true first"
    same = _all_unchanged(reads)
    if within:
        both = f"has(self.{within}) && has(oldSelf.{within})"
        keys = [_unchanged(path, below=within) for path in reads]
        there = [both] if within in _MAY_BE_ABSENT else []
        same = f"{_unchanged(within)} || {' && '.join([*there, *keys])}"
    elsewhere = "".join(f" || !({other.cel})" for other in but)
    cel = f"{same}{elsewhere} || oldSelf.suspend"
    return Transition(shown_at, message, reads, cel, unless_suspended=True, but=but)


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


def _suspend_role_first(role: str, *own: str) -> Transition:
    """All of a role but `replicas`, where they may change, and what CEL does not see."""
    shared = ("threads", "gpu", "resources", "placement", "env")
    keys = (f"roles.{role}.{key}" for key in (*shared, *own))
    return _suspend_first(f"roles.{role}", *keys, within=f"roles.{role}")


_ELASTIC = ("inference", "reward", "environment")
_NEW_JOB = "what was learnt and recorded belongs to it; make a new job"
_SHAPE = "recorded batches and slots of steps have this shape; make a new job"

_MODEL = _fixed("model.path", _NEW_JOB)
_TRAIN = _fixed("data.train.path", _NEW_JOB)
_HELD_OUT = _fixed_while_there(
    "data.validation.path", "rewards on it are compared; make a new job, or remove validation"
)
_GROUPS = _fixed("rollout.groupsPerStep", _SHAPE)
_GROUP = _fixed("rollout.groupSize", _SHAPE)

TRANSITIONS: tuple[Transition, ...] = (
    _fixed("pipeline", _NEW_JOB),
    _fixed("seed", _NEW_JOB),
    _MODEL,
    _TRAIN,
    _HELD_OUT,
    _fixed("environment", _NEW_JOB, "environment.kind", "environment.python"),
    _GROUPS,
    _GROUP,
    Transition(
        "rewards",
        "a job keeps having rewards, or having none: recorded episodes are scored, or not; make a new job",
        ("rewards",),
        "(self.rewards.size() == 0) == (oldSelf.rewards.size() == 0)",
        unless_suspended=False,
        seen=bool,
    ),
    _fixed("storage", "checkpoints lie there"),
    _fixed("managedBy", "two controllers would act on the same pods"),
    _suspend_first("model", but=(_MODEL,)),
    _suspend_first("data", but=(_TRAIN, _HELD_OUT)),
    _suspend_first(
        "environment",
        *(
            f"environment.{key}"
            for key in ("maxTurns", "actionPattern", "formatPenalty", "validation")
        ),
        within="environment",
    ),
    _suspend_first("algorithm"),
    _suspend_first("rollout", but=(_GROUPS, _GROUP)),
    _suspend_first("rewards"),
    _suspend_role_first("trainer", "replicas", "strategy.kind", "strategy.microBatchTokens"),
    _suspend_role_first("inference", "engine.kind", "engine.slots"),
    _suspend_role_first("reward", "concurrency"),
    _suspend_role_first("environment", "concurrency"),
    _suspend_first("scheduler.resources"),
    _suspend_first("scheduling"),
    _suspend_first("image"),
    _suspend_first("weights"),
    _suspend_first("checkpoint"),
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
        and transition.broken_by(before, after)
        and not any(other.broken_by(before, after) for other in transition.but)
    ]
