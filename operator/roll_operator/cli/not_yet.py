"""What a job asks for and nothing does yet, with file and line."""

from pathlib import Path

from roll_api import InvalidJob, Problem, RLJob

from roll_operator.plan.not_yet import not_yet


def refuse_what_is_not_there(job: RLJob, file: Path, *, cluster: bool = False) -> None:
    """Raises InvalidJob with all of it."""
    if problems := what_is_not_there(job, file, cluster=cluster):
        raise InvalidJob(problems)


def what_is_not_there(job: RLJob, file: Path, *, cluster: bool = False) -> list[Problem]:
    asked = list(not_yet(job.spec, cluster=cluster))
    if not asked:
        return []
    from roll_api.document import read_document

    document = read_document(file.read_text(encoding="utf-8"), str(file))
    return [
        Problem(str(file), document.line(("spec", *key.split("."))), f"spec.{key}", message)
        for key, message in asked
    ]
