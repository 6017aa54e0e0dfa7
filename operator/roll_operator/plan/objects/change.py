"""What becomes of an object that is there already."""

from enum import StrEnum
from typing import Any

from roll_operator.plan.objects.cluster import Manifest
from roll_operator.plan.objects.gang import FIXED


class Change(StrEnum):
    KEEP = "Keep"
    APPLY = "Apply"
    REPLACE = "Replace"
    """Delete it once the job has no pods, and make it anew: its API allows no change."""


KEPT_KINDS = ("ConfigMap", "PersistentVolumeClaim", "Secret", "ServiceAccount")
"""Made once: named by their content, or holding what must not be touched."""

PRUNED_KINDS = ("PodDisruptionBudget", "PodGroup")
"""Deleted when the job no longer wants them; the rest goes with the job."""


def change(wanted: Manifest, found: Manifest) -> Change:
    if wanted["kind"] in KEPT_KINDS or _holds(wanted.get("spec"), found.get("spec")):
        return Change.KEEP
    fixed = wanted["kind"] == "PodGroup" and wanted["apiVersion"] in FIXED
    return Change.REPLACE if fixed else Change.APPLY


def _holds(wanted: Any, found: Any) -> bool:
    """Whether all that is wanted is found; the API server fills in more."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found and _holds(value, found[key]) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(wanted) == len(found)
            and all(map(_holds, wanted, found))
        )
    return bool(wanted == found)
