"""The four kinds of processes of a job, and what each of them is given."""

from typing import Annotated, Literal

from pydantic import Field

from roll_api.base import FreeForm, Model
from roll_api.pods import Placement, Resources

RoleName = Literal["trainer", "inference", "reward", "environment"]
ROLE_NAMES: tuple[RoleName, ...] = ("trainer", "inference", "reward", "environment")

Replicas = Annotated[int, Field(ge=0, le=1000)]


class Gpu(Model):
    """GPUs of one replica."""

    count: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs per replica."""

    products: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=63)]], Field(max_length=16)
    ] = []
    """GPU products that will do, as in the node label `nvidia.com/gpu.product`. Empty: any."""

    min_memory_mib: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        default=None, alias="minMemoryMiB"
    )
    """Memory per GPU in MiB, at least."""


class Role(Model):
    """What every role has."""

    replicas: Replicas = 1
    """Processes of the role."""

    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """CPU threads per replica."""

    gpu: Gpu | None = None
    """GPUs per replica. Without it: none."""

    resources: Resources = Resources()
    """CPU and memory per replica."""

    placement: Placement = Placement()
    """On which nodes the replicas may stand together."""

    env: Annotated[dict[str, Annotated[str, Field(max_length=32_768)]], Field(max_length=128)] = {}
    """Environment variables."""

    template: FreeForm = {}
    """Pod template that the generated one is merged with. Has no effect on one machine."""


class Strategy(Model):
    """How the model is spread over the trainer's ranks."""

    kind: Literal["torch", "fsdp2", "megatron"] = "torch"
    """Library that trains."""

    micro_batch_tokens: Annotated[int, Field(ge=1, le=100_000_000)] = 16_384
    """Padded tokens of one forward and backward pass, at most."""

    options: FreeForm = {}
    """Arguments of the strategy."""


class Engine(Model):
    """What generates."""

    kind: Literal["transformers", "vllm"] = "transformers"
    """Library that generates."""

    slots: Annotated[int, Field(ge=1, le=65_536)] = 64
    """Samples generated at the same time by one replica."""

    options: FreeForm = {}
    """Arguments of the engine."""


class TrainerRole(Role):
    """Turns batches into the next version of the weights."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """Processes of the role; with GPUs, each replica has one rank per GPU."""

    strategy: Strategy = Strategy()
    """How the model is spread over the ranks."""

    @property
    def ranks(self) -> int:
        """Processes of the training world: one per GPU, or one per replica without GPUs."""
        return self.replicas * (self.gpu.count if self.gpu else 1)


class InferenceRole(Role):
    """Generates answers with the newest version of the weights."""

    engine: Engine = Engine()
    """What generates."""


class RewardRole(Role):
    """Runs the scorers."""

    concurrency: Annotated[int, Field(ge=1, le=65_536)] = 64
    """Samples that one replica holds at the same time."""


class EnvironmentRole(Role):
    """Supplies prompts and takes actions."""

    concurrency: Annotated[int, Field(ge=1, le=65_536)] = 256
    """Samples that one replica holds at the same time."""


class SchedulerPod(Model):
    """The pod that follows every sample."""

    resources: Resources = Resources()
    """CPU and memory."""

    template: FreeForm = {}
    """Pod template that the generated one is merged with."""


class Roles(Model):
    """The processes of the job. A role that is not named has no process."""

    trainer: TrainerRole = TrainerRole()
    """Turns batches into weights."""

    inference: InferenceRole = InferenceRole(replicas=0)
    """Generates answers."""

    reward: RewardRole = RewardRole(replicas=0)
    """Runs the scorers."""

    environment: EnvironmentRole = EnvironmentRole(replicas=0)
    """Supplies prompts and takes actions."""

    def get(self, name: RoleName) -> Role:
        role: Role = getattr(self, name)
        return role
