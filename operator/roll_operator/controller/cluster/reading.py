"""From an RLJob's manifest to what the store keeps. A job that cannot be read is kept with the reason.

Whose job it is comes first, from the manifest as it is: another controller may read a spec that this one cannot.
"""

from typing import Any

from pydantic import ValidationError
from roll_api import JobStatus, RLJob, spec_hash

from roll_operator.controller.cluster.store import JobEntry
from roll_operator.plan import Record, answers_to
from roll_operator.plan.not_yet import not_yet
from roll_operator.plan.record import read_record

INVALID = "Invalid"
"""Type of the condition of a job that cannot be read, asks for what is not there yet, or makes the operator fail."""

KEPT = ("name", "namespace", "uid", "generation", "labels", "annotations", "creationTimestamp")
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def read_job(manifest: dict[str, Any], known: JobEntry | None = None) -> JobEntry:
    """`known` is what was kept of an earlier version: a job of the same generation is not read again."""
    metadata = manifest["metadata"]
    status = manifest.get("status") or {}
    entry = JobEntry(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        version=int(metadata["resourceVersion"]),
        generation=int(metadata.get("generation") or 0),
        job=None,
        deleting=bool(metadata.get("deletionTimestamp")),
        invalid=_invalid(status),
        managed=answers_to((manifest.get("spec") or {}).get("managedBy")),
    )
    kept = _kept(metadata)
    try:
        if known is not None and _same(known, entry):
            entry.job, entry.spec_hash = known.job, known.spec_hash
        else:
            entry.job = RLJob.parse_stored({**manifest, "metadata": kept, "status": None})
            entry.spec_hash = spec_hash(entry.job)
    except (ValidationError, TypeError, ValueError, AttributeError) as error:
        entry.problem = _said(error)
    try:
        entry.record = read_record(status.get("record"))
        entry.status = _reported(status)
    except (ValidationError, TypeError, ValueError) as error:
        # Acting on a record that is not understood could start what must not run twice.
        entry.job, entry.problem = None, f"status.record cannot be read: {_said(error)}"
        entry.reason, entry.record = "CannotBeRead", Record()
    under_way = entry.record.spec_hash and not entry.record.finished
    if entry.job is not None and not under_way:  # a run goes on as its spec of record says
        asked = [f"{key}: {said}" for key, said in not_yet(entry.job.spec, cluster=True)]
        if asked:
            entry.job, entry.problem, entry.reason = None, "; ".join(asked), "NotSupported"
    if not entry.managed:
        entry.problem = ""
    return entry


def _same(known: JobEntry, entry: JobEntry) -> bool:
    """By the generation alone: labels and annotations count from the next change of the spec on, so that all pods
    of a run have the same files (`roll submit` names them in an annotation)."""
    return known.job is not None and (known.uid, known.generation) == (entry.uid, entry.generation)


def _kept(metadata: dict[str, Any]) -> dict[str, Any]:
    kept = {key: metadata[key] for key in KEPT if key in metadata}
    annotations = kept.get("annotations") or {}
    if LAST_APPLIED in annotations:
        kept["annotations"] = {k: v for k, v in annotations.items() if k != LAST_APPLIED}
    return kept


def _reported(status: dict[str, Any]) -> JobStatus | None:
    """What plans report. `Invalid` is not theirs: a plan that was compared with it would differ for ever."""
    reported = {key: value for key, value in status.items() if key != "record"}
    if not reported:
        return None
    result = JobStatus.model_validate(reported)
    theirs = [c for c in result.conditions if c.type != INVALID]
    return result.model_copy(update={"conditions": theirs})


def _invalid(status: dict[str, Any]) -> str:
    for condition in status.get("conditions") or []:
        if condition.get("type") == INVALID and condition.get("status") == "True":
            return str(condition.get("message", ""))
    return ""


def _said(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"
    details = error.errors(include_url=False, include_context=False, include_input=False)
    said = [f"{'.'.join(str(part) for part in d['loc'])}: {d['msg']}" for d in details[:10]]
    return "; ".join(said)[:1000]
