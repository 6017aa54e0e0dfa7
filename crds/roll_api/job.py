"""RLJob itself: one object that describes one run."""

import hashlib
import json
import weakref
from copy import deepcopy
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, ValidationError

from roll_api.base import Model
from roll_api.shapes import shaped
from roll_api.spec import JobSpec
from roll_api.status import JobStatus

GROUP = "roll.dev"
VERSION = "v1alpha1"
API_VERSION: Literal["roll.dev/v1alpha1"] = "roll.dev/v1alpha1"

# `<job>-environment-999`, the longest pod name, is a DNS label of at most 63 characters.
NAME_LENGTH = 63 - len("-environment-999")
JobName = Annotated[
    str,
    shaped(
        r"^[a-z]([a-z0-9-]*[a-z0-9])?$",
        "write small letters, digits and '-', beginning with a letter, e.g. my-job",
        min_length=1,
        max_length=NAME_LENGTH,
    ),
]


class ObjectMeta(Model):
    """Kubernetes' own part of the object; what is not named here is kept as it is."""

    model_config = ConfigDict(extra="allow")

    name: JobName
    """Name of the job, a DNS label."""
    namespace: str = "default"
    """Namespace of the job."""
    uid: str = ""
    """Identity of the object, given by the API server or by the run's folder."""
    generation: int = 0
    """Count of spec changes."""
    labels: dict[str, str] = {}
    """Labels."""
    annotations: dict[str, str] = {}
    """Annotations."""


class RLJob(Model):
    """One reinforcement-learning run of a language model."""

    api_version: Literal["roll.dev/v1alpha1"]
    """Version of the contract."""
    kind: Literal["RLJob"]
    """Kind of the object."""
    metadata: ObjectMeta
    """Name and labels."""
    spec: JobSpec
    """What the user decides."""
    status: JobStatus | None = None
    """What the operator reports."""

    @property
    def name(self) -> str:
        return self.metadata.name

    @classmethod
    def parse(cls, data: Any, *, cluster: bool = False) -> Self:
        """Reads an object as written in YAML or JSON; raises pydantic's ValidationError with all errors.

        `cluster` adds the rules that concern pods.
        """
        return cls.model_validate(data, by_alias=True, by_name=False, context={"cluster": cluster})

    @classmethod
    def parse_stored(cls, data: dict[str, Any]) -> Self:
        """Reads an object that an API server accepted, passing over keys of a newer contract."""
        try:
            return cls.parse(data)
        except ValidationError as error:
            pruned = deepcopy(data)
            for detail in error.errors(include_url=False, include_context=False):
                if detail["type"] == "extra_forbidden":
                    _remove(pruned, detail["loc"])
            return cls.parse(pruned)

    def to_json(self) -> str:
        """The job as handed to a worker; `RLJob.from_json` reads it back."""
        return self.model_dump_json(exclude_none=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        return cls.parse(json.loads(text))


def _remove(data: Any, loc: tuple[int | str, ...]) -> None:
    for part in loc[:-1]:
        data = data[part]
    data.pop(loc[-1], None)


OF_THE_OPERATOR = ("suspend", "failurePolicy", "runPolicy", "restart", "managedBy")
"""Keys of the spec that no process reads."""


def told_spec(job: RLJob) -> dict[str, Any]:
    """The spec as the processes of a job are told it; scaling, suspending and budgets do not change it."""
    spec = job.spec.model_dump(mode="json", exclude_none=True)
    for key in OF_THE_OPERATOR:
        spec.pop(key, None)
    for role in ("inference", "reward", "environment"):
        del spec["roles"][role]["replicas"]
    return spec


_hashes: dict[int, str] = {}
"""By the identity of a job, which is immutable, for as long as it lives: a plan asks a dozen times."""


def spec_hash(job: RLJob) -> str:
    """Names what the pods of a job are made from."""
    known = _hashes.get(id(job))
    if known is None:
        canonical = json.dumps(told_spec(job), sort_keys=True, separators=(",", ":"))
        known = _hashes[id(job)] = hashlib.sha256(canonical.encode()).hexdigest()[:16]
        weakref.finalize(job, _hashes.pop, id(job), None).atexit = False
    return known
