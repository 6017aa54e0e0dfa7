from roll_wire import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TrainerId(_message.Message):
    __slots__ = ("job_uid", "term", "rank")
    JOB_UID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    job_uid: str
    term: int
    rank: int
    def __init__(self, job_uid: _Optional[str] = ..., term: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class PositionRequest(_message.Message):
    __slots__ = ("trainer",)
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    trainer: TrainerId
    def __init__(self, trainer: _Optional[_Union[TrainerId, _Mapping[str, object]]] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("checkpoints", "lineage", "batched", "published", "steps", "oldest_batch", "bookmark")
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    BATCHED_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_BATCH_FIELD_NUMBER: _ClassVar[int]
    BOOKMARK_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    lineage: int
    batched: int
    published: int
    steps: int
    oldest_batch: int
    bookmark: str
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping[str, object]]]] = ..., lineage: _Optional[int] = ..., batched: _Optional[int] = ..., published: _Optional[int] = ..., steps: _Optional[int] = ..., oldest_batch: _Optional[int] = ..., bookmark: _Optional[str] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("step", "lineage", "path", "digest")
    STEP_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    step: int
    lineage: int
    path: str
    digest: str
    def __init__(self, step: _Optional[int] = ..., lineage: _Optional[int] = ..., path: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class RewindRequest(_message.Message):
    __slots__ = ("trainer", "step", "bookmark", "lineage")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BOOKMARK_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    trainer: TrainerId
    step: int
    bookmark: str
    lineage: int
    def __init__(self, trainer: _Optional[_Union[TrainerId, _Mapping[str, object]]] = ..., step: _Optional[int] = ..., bookmark: _Optional[str] = ..., lineage: _Optional[int] = ...) -> None: ...

class RewindReply(_message.Message):
    __slots__ = ("lineage", "term")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    lineage: int
    term: int
    def __init__(self, lineage: _Optional[int] = ..., term: _Optional[int] = ...) -> None: ...

class BatchRequest(_message.Message):
    __slots__ = ("trainer", "step")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    trainer: TrainerId
    step: int
    def __init__(self, trainer: _Optional[_Union[TrainerId, _Mapping[str, object]]] = ..., step: _Optional[int] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("step", "groups", "samples", "digest", "finished", "waited_seconds", "oldest", "retry", "bookmark")
    STEP_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    WAITED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    BOOKMARK_FIELD_NUMBER: _ClassVar[int]
    step: int
    groups: int
    samples: int
    digest: str
    finished: bool
    waited_seconds: float
    oldest: _session_pb2.PolicyVersion
    retry: bool
    bookmark: str
    def __init__(self, step: _Optional[int] = ..., groups: _Optional[int] = ..., samples: _Optional[int] = ..., digest: _Optional[str] = ..., finished: _Optional[bool] = ..., waited_seconds: _Optional[float] = ..., oldest: _Optional[_Union[_session_pb2.PolicyVersion, _Mapping[str, object]]] = ..., retry: _Optional[bool] = ..., bookmark: _Optional[str] = ...) -> None: ...

class ShardRequest(_message.Message):
    __slots__ = ("trainer", "step", "world")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    trainer: TrainerId
    step: int
    world: int
    def __init__(self, trainer: _Optional[_Union[TrainerId, _Mapping[str, object]]] = ..., step: _Optional[int] = ..., world: _Optional[int] = ...) -> None: ...

class ShardChunk(_message.Message):
    __slots__ = ("groups", "indices", "positions", "rewards", "group_sizes", "group_rewards", "sizes", "payloads")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZES_FIELD_NUMBER: _ClassVar[int]
    GROUP_REWARDS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedScalarFieldContainer[int]
    indices: _containers.RepeatedScalarFieldContainer[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    rewards: _containers.RepeatedScalarFieldContainer[float]
    group_sizes: _containers.RepeatedScalarFieldContainer[int]
    group_rewards: _containers.RepeatedScalarFieldContainer[float]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    payloads: bytes
    def __init__(self, groups: _Optional[_Iterable[int]] = ..., indices: _Optional[_Iterable[int]] = ..., positions: _Optional[_Iterable[int]] = ..., rewards: _Optional[_Iterable[float]] = ..., group_sizes: _Optional[_Iterable[int]] = ..., group_rewards: _Optional[_Iterable[float]] = ..., sizes: _Optional[_Iterable[int]] = ..., payloads: _Optional[bytes] = ...) -> None: ...

class StepReport(_message.Message):
    __slots__ = ("trainer", "step", "metrics", "publication")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    PUBLICATION_FIELD_NUMBER: _ClassVar[int]
    trainer: TrainerId
    step: int
    metrics: _containers.ScalarMap[str, float]
    publication: Publication
    def __init__(self, trainer: _Optional[_Union[TrainerId, _Mapping[str, object]]] = ..., step: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., publication: _Optional[_Union[Publication, _Mapping[str, object]]] = ...) -> None: ...

class Publication(_message.Message):
    __slots__ = ("trainer", "version", "manifest_digest", "locations")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LOCATIONS_FIELD_NUMBER: _ClassVar[int]
    trainer: TrainerId
    version: _session_pb2.PolicyVersion
    manifest_digest: str
    locations: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, trainer: _Optional[_Union[TrainerId, _Mapping[str, object]]] = ..., version: _Optional[_Union[_session_pb2.PolicyVersion, _Mapping[str, object]]] = ..., manifest_digest: _Optional[str] = ..., locations: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckpointCommit(_message.Message):
    __slots__ = ("trainer", "checkpoint")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    trainer: TrainerId
    checkpoint: Checkpoint
    def __init__(self, trainer: _Optional[_Union[TrainerId, _Mapping[str, object]]] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping[str, object]]] = ...) -> None: ...

class CheckpointReply(_message.Message):
    __slots__ = ("remove",)
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    remove: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, remove: _Optional[_Iterable[str]] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
