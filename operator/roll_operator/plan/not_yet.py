"""What an RLJob may ask for and nothing here does yet: told at once, never passed over.

What an engine, a strategy or a scorer cannot do is told by the worker that holds it.
"""

from collections.abc import Iterator

from roll_api import ROLE_NAMES, JobSpec

PIPELINES = ("RLVR", "Agentic")


def not_yet(spec: JobSpec, *, cluster: bool) -> Iterator[tuple[str, str]]:
    """Keys below `spec`, each with what to do."""
    if spec.pipeline not in PIPELINES:
        yield "pipeline", f"{spec.pipeline} is not supported yet, {' and '.join(PIPELINES)} are"
    if cluster:
        return
    if spec.suspend:
        yield "suspend", "a suspended job does not run: set it to false; Ctrl-C stops a run"
    for role in ROLE_NAMES:
        if spec.roles.get(role).gpu is not None:
            yield f"roles.{role}.gpu", "GPUs are not given out on one machine yet: remove it"
