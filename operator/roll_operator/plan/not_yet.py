"""What an RLJob may ask for and nothing here does yet: told at once, never passed over.

The contract has a word for it, and no worker of this version can do it: `roll` refuses such a job at its line, the
operator by the condition `Invalid`. What an engine, a strategy or a scorer cannot do is told by the worker that holds it.
"""

from collections.abc import Iterator

from roll_api import ROLE_NAMES, JobSpec

PIPELINES = ("RLVR", "Agentic")
ENGINES = ("transformers",)
STRATEGIES = ("torch",)


def not_yet(spec: JobSpec, *, cluster: bool) -> Iterator[tuple[str, str]]:
    """Keys below `spec`, each with what to do."""
    roles = spec.roles
    for key, word, known in (
        ("pipeline", spec.pipeline, PIPELINES),
        ("roles.inference.engine.kind", roles.inference.engine.kind, ENGINES),
        ("roles.trainer.strategy.kind", roles.trainer.strategy.kind, STRATEGIES),
    ):
        if word not in known:
            verb = "are" if len(known) > 1 else "is"
            yield key, f"{word} is not supported yet, {' and '.join(known)} {verb}"
    if cluster:
        return
    if spec.suspend:
        yield "suspend", "a suspended job does not run: set it to false; Ctrl-C stops a run"
    for role in ROLE_NAMES:
        if roles.get(role).gpu is not None:
            yield f"roles.{role}.gpu", "GPUs are not given out on one machine yet: remove it"
