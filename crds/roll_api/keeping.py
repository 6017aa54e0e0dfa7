"""What is kept, where, and what happens when something dies."""

from typing import Annotated, Literal

from pydantic import Field

from roll_api.base import Model
from roll_api.policy import FailureRule
from roll_api.shapes import shaped

Quantity = Annotated[
    str,
    shaped(
        r"^[1-9][0-9]*(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$",
        "write a size as Kubernetes does, e.g. 10Gi",
        max_length=32,
    ),
]
Uri = Annotated[
    str,
    shaped(
        r"^[a-z][a-z0-9+.-]*://[^ ]+$",
        "write SCHEME://PLACE, e.g. s3://bucket/prefix",
        max_length=1024,
    ),
]


class Storage(Model):
    """Where checkpoints lie; one of the three. On one machine `size` and `claim` mean the run's folder."""

    size: Quantity | None = None
    """Size of a volume that belongs to the job, e.g. 10Gi."""

    claim: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """PersistentVolumeClaim that is there already. More than one trainer pod needs ReadWriteMany."""

    uri: Uri | None = None
    """Object store, e.g. s3://bucket/prefix. Each job has a folder of its own there, which outlives it."""

    storage_class: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """StorageClass of the job's own volumes. Without it: the cluster's default."""

    ledger: Literal["Claim", "EmptyDir"] | None = None
    """Where the record of all samples lies. EmptyDir, the default beside `uri`: lost with its pod, the job goes back to a checkpoint."""

    ledger_size: Quantity = "10Gi"
    """Size of the ledger's volume."""

    @property
    def claims_ledger(self) -> bool:
        """Whether the ledger has a volume. A job in an object store asks for none unless it is told to."""
        return (self.ledger or ("Claim" if self.uri is None else "EmptyDir")) == "Claim"


class Weights(Model):
    """How new weights reach the inference role."""

    transfer: Literal["Auto", "Folder", "Stream"] = "Auto"
    """Way of the weights: a shared folder, or streamed from the trainer. `Auto`: the folder where there is one."""

    keep: Annotated[int, Field(ge=1, le=1000)] = 4
    """Newest versions that stay fetchable."""


class Checkpoint(Model):
    """What a trainer that died comes back to."""

    every_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    """Steps between two checkpoints."""

    keep_last: Annotated[int, Field(ge=1, le=1000)] = 3
    """Newest checkpoints that are kept."""


class FailurePolicy(Model):
    """How often what died is started again."""

    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 10
    """Restarts of one role within the window before the job fails."""

    window_seconds: Annotated[float, Field(gt=0, le=31_536_000)] = 3600.0
    """Seconds after which a restart no longer counts."""

    backoff_seconds: Annotated[float, Field(ge=0, le=3600)] = 5.0
    """Seconds before the second restart in a row; the first is immediate, each further one waits twice as long."""

    backoff_max_seconds: Annotated[float, Field(ge=0, le=86_400)] = 300.0
    """Longest wait before a restart, in seconds."""

    rules: Annotated[list[FailureRule], Field(max_length=32)] = []
    """What certain failures mean; the first rule that fits decides, before the built-in ones."""
