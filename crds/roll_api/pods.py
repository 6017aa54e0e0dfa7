"""What a cluster needs to know about pods: how much they use, where they stand, when they start."""

from typing import Annotated, Literal

from pydantic import Field

from roll_api.base import Model
from roll_api.shapes import shaped

ResourceName = Annotated[str, Field(min_length=1, max_length=253)]
Amount = Annotated[
    str,
    shaped(
        r"^[0-9]+(\.[0-9]+)?(m|[kMGTP]|[KMGTP]i)?$",
        "write an amount as Kubernetes does, e.g. 500m or 2Gi",
        max_length=32,
    ),
]
QueueName = Annotated[
    str,
    shaped(
        r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$",
        "write small letters, digits, '-' and '.', with a letter or a digit at both ends",
        max_length=63,
    ),
]
Amounts = Annotated[dict[ResourceName, Amount], Field(max_length=16)]


class Resources(Model):
    """What a container may count on, and what it may not exceed."""

    requests: Amounts = {}
    """Amounts that are set aside, e.g. cpu and memory, as text."""

    limits: Amounts = {}
    """Amounts that are never exceeded, as text."""


class Placement(Model):
    """How the replicas of a role stand to each other and to other jobs."""

    topology_key: Annotated[str, Field(min_length=1, max_length=317)] = "kubernetes.io/hostname"
    """Node label whose values are the places, e.g. hosts, racks or zones."""

    mode: Literal["Spread", "Pack"] | None = None
    """Evenly over all places, or all in one. Without it: as the cluster likes."""

    exclusive: bool = False
    """Whether pods of other RLJobs are kept out of the places."""


class Scheduling(Model):
    """When the pods of the job get their nodes."""

    queue: QueueName | None = None
    """Kueue's LocalQueue in which the job waits. Without it: none."""

    gang: Literal["Auto", "Never"] = "Auto"
    """Whether the pods get their nodes all at once or not at all. `Auto`: where the cluster can."""

    priority_class: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """PriorityClass of the pods."""
