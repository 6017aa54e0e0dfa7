"""The spec of an RLJob: everything a user decides."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from roll_api.algorithm import Algorithm
from roll_api.base import Model
from roll_api.data import Data, EnvironmentSource, ModelSource
from roll_api.keeping import Checkpoint, FailurePolicy, Storage, Weights
from roll_api.pods import Scheduling
from roll_api.policy import Restart, RunPolicy
from roll_api.rewards import Reward
from roll_api.roles import Roles, SchedulerPod
from roll_api.rollout import Rollout
from roll_api.rules import RULES, Rule, read

Pipeline = Literal["RLVR", "Agentic", "SFT", "DPO", "Distill"]


class JobSpec(Model):
    """What is trained, on what, how, and by how many processes."""

    pipeline: Pipeline = "RLVR"
    """Kind of training: which stages a sample goes through."""

    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    """Training steps after which the job has succeeded."""

    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 42
    """Seed of data order, sampling and environments."""

    suspend: bool = False
    """Whether the job is stopped at a checkpoint and gives back its pods."""

    model: ModelSource
    """The model that is trained."""

    data: Data | None = None
    """Prompts to train on and prompts held out. Needed by all pipelines except Agentic."""

    environment: EnvironmentSource | None = None
    """The world in which an agentic job acts. Needed by Agentic, and read by it alone."""

    algorithm: Algorithm = Algorithm()
    """Advantage, loss and optimizer."""

    rollout: Rollout = Rollout()
    """Which samples start, how old they may get, what ends them."""

    rewards: Annotated[list[Reward], Field(max_length=32)] = []
    """How an answer is judged: the weighted sum of those whose tags match."""

    roles: Roles = Roles()
    """The processes of the job."""

    image: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Container image of the workers. Without it: the one that the operator was installed with."""

    scheduler: SchedulerPod = SchedulerPod()
    """The pod that follows every sample. Has no effect on one machine."""

    scheduling: Scheduling = Scheduling()
    """When and before whom the pods of the job get their nodes. Has no effect on one machine."""

    storage: Storage = Storage(size="10Gi")
    """Where checkpoints and weights lie. On one machine only `uri` counts: otherwise they are in the run's folder."""

    weights: Weights = Weights()
    """How new weights reach the inference role."""

    checkpoint: Checkpoint = Checkpoint()
    """What a trainer that died comes back to."""

    failure_policy: FailurePolicy = FailurePolicy()
    """How often what died is started again."""

    run_policy: RunPolicy = RunPolicy()
    """Deadlines, and what is left behind at the end."""

    restart: Restart = Restart()
    """A wish to begin again."""

    managed_by: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """Controller of the job. Any other value than `roll.dev/operator` makes this operator leave the job alone."""

    @model_validator(mode="after")
    def _rules_hold(self, info: ValidationInfo) -> "JobSpec":
        """All broken rules at once, each at its key."""
        on_cluster = bool((info.context or {}).get("cluster"))
        broken = [
            rule for rule in RULES if (on_cluster or not rule.cluster_only) and not rule.holds(self)
        ]
        if broken:
            dumped = self.model_dump()
            raise ValidationError.from_exception_data(
                "JobSpec", [_error(rule, dumped) for rule in broken]
            )
        return self


def _error(rule: Rule, spec: dict[str, Any]) -> InitErrorDetails:
    values = [(path, read(spec, path)) for path in rule.reads]
    known = ", ".join(f"{path}={v}" for path, v in values if isinstance(v, str | int | float))
    message = f"{rule.message} ({known})" if known else rule.message
    return InitErrorDetails(
        type=PydanticCustomError("rule", "{text}", {"text": message, "reads": rule.reads}),
        loc=tuple(rule.shown_at.split(".")),
        input=None,
    )
