"""The record as JSON in `status.record`: only what differs from the default is written, so it stays small.

Its size is bounded by the job's pods and budgets: one scope per place, at most `maxRestarts` times per role, one
failure per role with clipped words, and of fenced pods only those whose objects are still there.
"""

from typing import Any

from pydantic import TypeAdapter

from roll_operator.plan.model import Record

_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


def write_record(record: Record) -> dict[str, Any]:
    document: dict[str, Any] = _RECORD.dump_python(record, mode="json", exclude_defaults=True)
    return document


def read_record(document: dict[str, Any] | None) -> Record:
    """An unknown key of a newer operator is passed over; no document is an empty record."""
    return _RECORD.validate_python(document or {})
