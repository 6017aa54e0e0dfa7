from roll_wire import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Pods(_message.Message):
    __slots__ = ("job_uid", "current", "gone", "authoritative", "leader")
    JOB_UID_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITATIVE_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    job_uid: str
    current: _containers.RepeatedCompositeFieldContainer[Pod]
    gone: _containers.RepeatedScalarFieldContainer[str]
    authoritative: bool
    leader: int
    def __init__(self, job_uid: _Optional[str] = ..., current: _Optional[_Iterable[_Union[Pod, _Mapping[str, object]]]] = ..., gone: _Optional[_Iterable[str]] = ..., authoritative: _Optional[bool] = ..., leader: _Optional[int] = ...) -> None: ...

class Pod(_message.Message):
    __slots__ = ("name", "uid", "role", "attempt")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    role: str
    attempt: int
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., role: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class PodsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProgressRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JobProgress(_message.Message):
    __slots__ = ("step", "steps", "published", "checkpoint", "reward", "samples_per_second", "staleness_mean", "staleness_max", "samples", "dropped", "redone", "workers", "finished", "error", "validation_first", "validation_last", "has_validation", "validation_step", "notices", "metrics", "lineage", "last_progress_at", "idle_seconds", "tokens", "ledger_lost", "held")
    class SamplesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class DroppedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    STALENESS_MEAN_FIELD_NUMBER: _ClassVar[int]
    STALENESS_MAX_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    REDONE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIRST_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_LAST_FIELD_NUMBER: _ClassVar[int]
    HAS_VALIDATION_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_STEP_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    LAST_PROGRESS_AT_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_LOST_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    step: int
    steps: int
    published: int
    checkpoint: int
    reward: float
    samples_per_second: float
    staleness_mean: float
    staleness_max: int
    samples: _containers.ScalarMap[str, int]
    dropped: _containers.ScalarMap[str, int]
    redone: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerState]
    finished: bool
    error: str
    validation_first: float
    validation_last: float
    has_validation: bool
    validation_step: int
    notices: _containers.RepeatedScalarFieldContainer[str]
    metrics: _containers.ScalarMap[str, float]
    lineage: int
    last_progress_at: float
    idle_seconds: float
    tokens: int
    ledger_lost: str
    held: SampleState
    def __init__(self, step: _Optional[int] = ..., steps: _Optional[int] = ..., published: _Optional[int] = ..., checkpoint: _Optional[int] = ..., reward: _Optional[float] = ..., samples_per_second: _Optional[float] = ..., staleness_mean: _Optional[float] = ..., staleness_max: _Optional[int] = ..., samples: _Optional[_Mapping[str, int]] = ..., dropped: _Optional[_Mapping[str, int]] = ..., redone: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerState, _Mapping[str, object]]]] = ..., finished: _Optional[bool] = ..., error: _Optional[str] = ..., validation_first: _Optional[float] = ..., validation_last: _Optional[float] = ..., has_validation: _Optional[bool] = ..., validation_step: _Optional[int] = ..., notices: _Optional[_Iterable[str]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., lineage: _Optional[int] = ..., last_progress_at: _Optional[float] = ..., idle_seconds: _Optional[float] = ..., tokens: _Optional[int] = ..., ledger_lost: _Optional[str] = ..., held: _Optional[_Union[SampleState, _Mapping[str, object]]] = ...) -> None: ...

class WorkerState(_message.Message):
    __slots__ = ("pod", "pod_uid", "role", "connected", "ready", "leases", "credits", "version")
    POD_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    pod: str
    pod_uid: str
    role: str
    connected: bool
    ready: bool
    leases: int
    credits: int
    version: _session_pb2.PolicyVersion
    def __init__(self, pod: _Optional[str] = ..., pod_uid: _Optional[str] = ..., role: _Optional[str] = ..., connected: _Optional[bool] = ..., ready: _Optional[bool] = ..., leases: _Optional[int] = ..., credits: _Optional[int] = ..., version: _Optional[_Union[_session_pb2.PolicyVersion, _Mapping[str, object]]] = ...) -> None: ...

class SamplesRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class SampleList(_message.Message):
    __slots__ = ("samples", "total")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    samples: _containers.RepeatedCompositeFieldContainer[SampleState]
    total: int
    def __init__(self, samples: _Optional[_Iterable[_Union[SampleState, _Mapping[str, object]]]] = ..., total: _Optional[int] = ...) -> None: ...

class SampleState(_message.Message):
    __slots__ = ("unit", "state", "stage", "turn", "worker", "version", "age_seconds", "stage_seconds", "attempt", "step", "validation")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STAGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    unit: _session_pb2.Unit
    state: str
    stage: str
    turn: int
    worker: str
    version: _session_pb2.PolicyVersion
    age_seconds: float
    stage_seconds: float
    attempt: int
    step: int
    validation: bool
    def __init__(self, unit: _Optional[_Union[_session_pb2.Unit, _Mapping[str, object]]] = ..., state: _Optional[str] = ..., stage: _Optional[str] = ..., turn: _Optional[int] = ..., worker: _Optional[str] = ..., version: _Optional[_Union[_session_pb2.PolicyVersion, _Mapping[str, object]]] = ..., age_seconds: _Optional[float] = ..., stage_seconds: _Optional[float] = ..., attempt: _Optional[int] = ..., step: _Optional[int] = ..., validation: _Optional[bool] = ...) -> None: ...

class SampleRequest(_message.Message):
    __slots__ = ("unit",)
    UNIT_FIELD_NUMBER: _ClassVar[int]
    unit: _session_pb2.Unit
    def __init__(self, unit: _Optional[_Union[_session_pb2.Unit, _Mapping[str, object]]] = ...) -> None: ...

class SampleStory(_message.Message):
    __slots__ = ("state", "events")
    STATE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    state: SampleState
    events: _containers.RepeatedCompositeFieldContainer[SampleEvent]
    def __init__(self, state: _Optional[_Union[SampleState, _Mapping[str, object]]] = ..., events: _Optional[_Iterable[_Union[SampleEvent, _Mapping[str, object]]]] = ...) -> None: ...

class SampleEvent(_message.Message):
    __slots__ = ("at", "what", "worker", "detail")
    class DetailEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    AT_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    at: float
    what: str
    worker: str
    detail: _containers.ScalarMap[str, str]
    def __init__(self, at: _Optional[float] = ..., what: _Optional[str] = ..., worker: _Optional[str] = ..., detail: _Optional[_Mapping[str, str]] = ...) -> None: ...
