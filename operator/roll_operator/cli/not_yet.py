"""What an RLJob may ask for and a run on this machine does not do: refused at once, never passed over.

What an engine, a strategy or a scorer cannot do is told by the worker that holds it.
"""

from collections.abc import Iterator
from pathlib import Path

from roll_api import ROLE_NAMES, InvalidJob, JobSpec, Problem, RLJob

PIPELINES = ("RLVR", "Agentic")


def refuse_what_is_not_there(job: RLJob, file: Path) -> None:
    """Raises InvalidJob with all that is asked for and not there yet."""
    asked = list(_asked(job.spec))
    if not asked:
        return
    from roll_api.document import read_document

    document = read_document(file.read_text(encoding="utf-8"), str(file))
    raise InvalidJob(
        Problem(str(file), document.line(("spec", *key.split("."))), f"spec.{key}", message)
        for key, message in asked
    )


def _asked(spec: JobSpec) -> Iterator[tuple[str, str]]:
    if spec.pipeline not in PIPELINES:
        yield "pipeline", f"{spec.pipeline} is not supported yet, {' and '.join(PIPELINES)} are"
    if spec.suspend:
        yield "suspend", "a suspended job does not run: set it to false; Ctrl-C stops a run"
    for role in ROLE_NAMES:
        if spec.roles.get(role).gpu is not None:
            yield f"roles.{role}.gpu", "GPUs are not given out on one machine yet: remove it"
