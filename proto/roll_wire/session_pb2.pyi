from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Unit(_message.Message):
    __slots__ = ("group", "index")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    group: int
    index: int
    def __init__(self, group: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class LeaseId(_message.Message):
    __slots__ = ("term", "number")
    TERM_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    term: int
    number: int
    def __init__(self, term: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class PolicyVersion(_message.Message):
    __slots__ = ("lineage", "number")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    lineage: int
    number: int
    def __init__(self, lineage: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class FromWorker(_message.Message):
    __slots__ = ("hello", "credit", "progress", "results", "failures", "ping", "holding", "call")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    HOLDING_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    credit: Credit
    progress: Progress
    results: Results
    failures: Failures
    ping: Ping
    holding: Holding
    call: Call
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping[str, object]]] = ..., credit: _Optional[_Union[Credit, _Mapping[str, object]]] = ..., progress: _Optional[_Union[Progress, _Mapping[str, object]]] = ..., results: _Optional[_Union[Results, _Mapping[str, object]]] = ..., failures: _Optional[_Union[Failures, _Mapping[str, object]]] = ..., ping: _Optional[_Union[Ping, _Mapping[str, object]]] = ..., holding: _Optional[_Union[Holding, _Mapping[str, object]]] = ..., call: _Optional[_Union[Call, _Mapping[str, object]]] = ...) -> None: ...

class ToWorker(_message.Message):
    __slots__ = ("welcome", "assign", "cancel", "ack", "policy", "drain", "refused", "answer")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    assign: Assign
    cancel: Cancel
    ack: Ack
    policy: Policy
    drain: Drain
    refused: Refused
    answer: Answer
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping[str, object]]] = ..., assign: _Optional[_Union[Assign, _Mapping[str, object]]] = ..., cancel: _Optional[_Union[Cancel, _Mapping[str, object]]] = ..., ack: _Optional[_Union[Ack, _Mapping[str, object]]] = ..., policy: _Optional[_Union[Policy, _Mapping[str, object]]] = ..., drain: _Optional[_Union[Drain, _Mapping[str, object]]] = ..., refused: _Optional[_Union[Refused, _Mapping[str, object]]] = ..., answer: _Optional[_Union[Answer, _Mapping[str, object]]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("job_uid", "role", "pool", "pod", "pod_uid", "incarnation", "credits", "version", "held", "rank", "world", "attempt", "data", "address", "protocol")
    JOB_UID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    job_uid: str
    role: str
    pool: str
    pod: str
    pod_uid: str
    incarnation: int
    credits: int
    version: PolicyVersion
    held: _containers.RepeatedCompositeFieldContainer[Held]
    rank: int
    world: int
    attempt: int
    data: _containers.RepeatedCompositeFieldContainer[DataSet]
    address: str
    protocol: int
    def __init__(self, job_uid: _Optional[str] = ..., role: _Optional[str] = ..., pool: _Optional[str] = ..., pod: _Optional[str] = ..., pod_uid: _Optional[str] = ..., incarnation: _Optional[int] = ..., credits: _Optional[int] = ..., version: _Optional[_Union[PolicyVersion, _Mapping[str, object]]] = ..., held: _Optional[_Iterable[_Union[Held, _Mapping[str, object]]]] = ..., rank: _Optional[int] = ..., world: _Optional[int] = ..., attempt: _Optional[int] = ..., data: _Optional[_Iterable[_Union[DataSet, _Mapping[str, object]]]] = ..., address: _Optional[str] = ..., protocol: _Optional[int] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("unit", "lease", "stage", "turn", "resident")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    unit: Unit
    lease: LeaseId
    stage: str
    turn: int
    resident: bool
    def __init__(self, unit: _Optional[_Union[Unit, _Mapping[str, object]]] = ..., lease: _Optional[_Union[LeaseId, _Mapping[str, object]]] = ..., stage: _Optional[str] = ..., turn: _Optional[int] = ..., resident: _Optional[bool] = ...) -> None: ...

class DataSet(_message.Message):
    __slots__ = ("split", "rows", "content_hash")
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    split: str
    rows: int
    content_hash: str
    def __init__(self, split: _Optional[str] = ..., rows: _Optional[int] = ..., content_hash: _Optional[str] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("credits",)
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    credits: int
    def __init__(self, credits: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ProgressItem]
    def __init__(self, items: _Optional[_Iterable[_Union[ProgressItem, _Mapping[str, object]]]] = ...) -> None: ...

class ProgressItem(_message.Message):
    __slots__ = ("unit", "lease", "tokens", "partial", "oldest", "newest", "partial_tokens", "waiting")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    unit: Unit
    lease: LeaseId
    tokens: int
    partial: bytes
    oldest: PolicyVersion
    newest: PolicyVersion
    partial_tokens: int
    waiting: bool
    def __init__(self, unit: _Optional[_Union[Unit, _Mapping[str, object]]] = ..., lease: _Optional[_Union[LeaseId, _Mapping[str, object]]] = ..., tokens: _Optional[int] = ..., partial: _Optional[bytes] = ..., oldest: _Optional[_Union[PolicyVersion, _Mapping[str, object]]] = ..., newest: _Optional[_Union[PolicyVersion, _Mapping[str, object]]] = ..., partial_tokens: _Optional[int] = ..., waiting: _Optional[bool] = ...) -> None: ...

class Results(_message.Message):
    __slots__ = ("stage", "groups", "indices", "leases", "turns", "tokens", "lineages", "oldest", "newest", "has_reward", "rewards", "done", "resident", "base_tokens", "sizes", "payloads")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LINEAGES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    HAS_REWARD_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    BASE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    stage: str
    groups: _containers.RepeatedScalarFieldContainer[int]
    indices: _containers.RepeatedScalarFieldContainer[int]
    leases: _containers.RepeatedScalarFieldContainer[int]
    turns: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    lineages: _containers.RepeatedScalarFieldContainer[int]
    oldest: _containers.RepeatedScalarFieldContainer[int]
    newest: _containers.RepeatedScalarFieldContainer[int]
    has_reward: _containers.RepeatedScalarFieldContainer[bool]
    rewards: _containers.RepeatedScalarFieldContainer[float]
    done: _containers.RepeatedScalarFieldContainer[bool]
    resident: _containers.RepeatedScalarFieldContainer[bool]
    base_tokens: _containers.RepeatedScalarFieldContainer[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    payloads: bytes
    def __init__(self, stage: _Optional[str] = ..., groups: _Optional[_Iterable[int]] = ..., indices: _Optional[_Iterable[int]] = ..., leases: _Optional[_Iterable[int]] = ..., turns: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., lineages: _Optional[_Iterable[int]] = ..., oldest: _Optional[_Iterable[int]] = ..., newest: _Optional[_Iterable[int]] = ..., has_reward: _Optional[_Iterable[bool]] = ..., rewards: _Optional[_Iterable[float]] = ..., done: _Optional[_Iterable[bool]] = ..., resident: _Optional[_Iterable[bool]] = ..., base_tokens: _Optional[_Iterable[int]] = ..., sizes: _Optional[_Iterable[int]] = ..., payloads: _Optional[bytes] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("unit", "lease", "stage", "turn", "payload", "tokens", "oldest", "newest", "has_reward", "reward", "done", "resident", "base_tokens")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    HAS_REWARD_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    BASE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    unit: Unit
    lease: LeaseId
    stage: str
    turn: int
    payload: bytes
    tokens: int
    oldest: PolicyVersion
    newest: PolicyVersion
    has_reward: bool
    reward: float
    done: bool
    resident: bool
    base_tokens: int
    def __init__(self, unit: _Optional[_Union[Unit, _Mapping[str, object]]] = ..., lease: _Optional[_Union[LeaseId, _Mapping[str, object]]] = ..., stage: _Optional[str] = ..., turn: _Optional[int] = ..., payload: _Optional[bytes] = ..., tokens: _Optional[int] = ..., oldest: _Optional[_Union[PolicyVersion, _Mapping[str, object]]] = ..., newest: _Optional[_Union[PolicyVersion, _Mapping[str, object]]] = ..., has_reward: _Optional[bool] = ..., reward: _Optional[float] = ..., done: _Optional[bool] = ..., resident: _Optional[bool] = ..., base_tokens: _Optional[int] = ...) -> None: ...

class Failures(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Failure]
    def __init__(self, items: _Optional[_Iterable[_Union[Failure, _Mapping[str, object]]]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("unit", "lease", "stage", "turn", "kind", "message")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Failure.Kind]
        INFRASTRUCTURE: _ClassVar[Failure.Kind]
        TIMEOUT: _ClassVar[Failure.Kind]
        INPUT: _ClassVar[Failure.Kind]
        RETURNED: _ClassVar[Failure.Kind]
        REPLAY: _ClassVar[Failure.Kind]
    KIND_UNSPECIFIED: Failure.Kind
    INFRASTRUCTURE: Failure.Kind
    TIMEOUT: Failure.Kind
    INPUT: Failure.Kind
    RETURNED: Failure.Kind
    REPLAY: Failure.Kind
    UNIT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    unit: Unit
    lease: LeaseId
    stage: str
    turn: int
    kind: Failure.Kind
    message: str
    def __init__(self, unit: _Optional[_Union[Unit, _Mapping[str, object]]] = ..., lease: _Optional[_Union[LeaseId, _Mapping[str, object]]] = ..., stage: _Optional[str] = ..., turn: _Optional[int] = ..., kind: _Optional[_Union[Failure.Kind, str]] = ..., message: _Optional[str] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("sent_at",)
    SENT_AT_FIELD_NUMBER: _ClassVar[int]
    sent_at: float
    def __init__(self, sent_at: _Optional[float] = ...) -> None: ...

class Holding(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: PolicyVersion
    def __init__(self, version: _Optional[_Union[PolicyVersion, _Mapping[str, object]]] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("id", "lease", "stage", "payload")
    ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    id: int
    lease: LeaseId
    stage: str
    payload: bytes
    def __init__(self, id: _Optional[int] = ..., lease: _Optional[_Union[LeaseId, _Mapping[str, object]]] = ..., stage: _Optional[str] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("id", "payload", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: int
    payload: bytes
    error: str
    def __init__(self, id: _Optional[int] = ..., payload: _Optional[bytes] = ..., error: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("term", "trainer_term", "lineage", "fenced", "evicted", "ledger", "protocol")
    TERM_FIELD_NUMBER: _ClassVar[int]
    TRAINER_TERM_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    term: int
    trainer_term: int
    lineage: int
    fenced: _containers.RepeatedCompositeFieldContainer[LeaseId]
    evicted: _containers.RepeatedCompositeFieldContainer[Unit]
    ledger: str
    protocol: int
    def __init__(self, term: _Optional[int] = ..., trainer_term: _Optional[int] = ..., lineage: _Optional[int] = ..., fenced: _Optional[_Iterable[_Union[LeaseId, _Mapping[str, object]]]] = ..., evicted: _Optional[_Iterable[_Union[Unit, _Mapping[str, object]]]] = ..., ledger: _Optional[str] = ..., protocol: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Assign(_message.Message):
    __slots__ = ("stage", "groups", "indices", "leases", "turns", "attempts", "min_versions", "seeds", "positions", "validation", "kept_tokens", "no_progress_ms", "sizes", "payloads")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    KEPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NO_PROGRESS_MS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    stage: str
    groups: _containers.RepeatedScalarFieldContainer[int]
    indices: _containers.RepeatedScalarFieldContainer[int]
    leases: _containers.RepeatedScalarFieldContainer[int]
    turns: _containers.RepeatedScalarFieldContainer[int]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    min_versions: _containers.RepeatedScalarFieldContainer[int]
    seeds: _containers.RepeatedScalarFieldContainer[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    validation: _containers.RepeatedScalarFieldContainer[bool]
    kept_tokens: _containers.RepeatedScalarFieldContainer[int]
    no_progress_ms: int
    sizes: _containers.RepeatedScalarFieldContainer[int]
    payloads: bytes
    def __init__(self, stage: _Optional[str] = ..., groups: _Optional[_Iterable[int]] = ..., indices: _Optional[_Iterable[int]] = ..., leases: _Optional[_Iterable[int]] = ..., turns: _Optional[_Iterable[int]] = ..., attempts: _Optional[_Iterable[int]] = ..., min_versions: _Optional[_Iterable[int]] = ..., seeds: _Optional[_Iterable[int]] = ..., positions: _Optional[_Iterable[int]] = ..., validation: _Optional[_Iterable[bool]] = ..., kept_tokens: _Optional[_Iterable[int]] = ..., no_progress_ms: _Optional[int] = ..., sizes: _Optional[_Iterable[int]] = ..., payloads: _Optional[bytes] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("unit", "lease", "stage", "turn", "attempt", "min_version", "seed", "position", "validation", "kept_tokens", "payload", "no_progress_ms")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    KEPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    NO_PROGRESS_MS_FIELD_NUMBER: _ClassVar[int]
    unit: Unit
    lease: LeaseId
    stage: str
    turn: int
    attempt: int
    min_version: int
    seed: int
    position: int
    validation: bool
    kept_tokens: int
    payload: bytes
    no_progress_ms: int
    def __init__(self, unit: _Optional[_Union[Unit, _Mapping[str, object]]] = ..., lease: _Optional[_Union[LeaseId, _Mapping[str, object]]] = ..., stage: _Optional[str] = ..., turn: _Optional[int] = ..., attempt: _Optional[int] = ..., min_version: _Optional[int] = ..., seed: _Optional[int] = ..., position: _Optional[int] = ..., validation: _Optional[bool] = ..., kept_tokens: _Optional[int] = ..., payload: _Optional[bytes] = ..., no_progress_ms: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("leases", "episodes")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[LeaseId]
    episodes: _containers.RepeatedCompositeFieldContainer[Unit]
    def __init__(self, leases: _Optional[_Iterable[_Union[LeaseId, _Mapping[str, object]]]] = ..., episodes: _Optional[_Iterable[_Union[Unit, _Mapping[str, object]]]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("leases", "verdicts")
    class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        VERDICT_UNSPECIFIED: _ClassVar[Ack.Verdict]
        STORED: _ClassVar[Ack.Verdict]
        DUPLICATE: _ClassVar[Ack.Verdict]
        FENCED: _ClassVar[Ack.Verdict]
    VERDICT_UNSPECIFIED: Ack.Verdict
    STORED: Ack.Verdict
    DUPLICATE: Ack.Verdict
    FENCED: Ack.Verdict
    LEASES_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedScalarFieldContainer[int]
    verdicts: _containers.RepeatedScalarFieldContainer[Ack.Verdict]
    def __init__(self, leases: _Optional[_Iterable[int]] = ..., verdicts: _Optional[_Iterable[_Union[Ack.Verdict, str]]] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ("version", "manifest_digest", "locations")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LOCATIONS_FIELD_NUMBER: _ClassVar[int]
    version: PolicyVersion
    manifest_digest: str
    locations: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[_Union[PolicyVersion, _Mapping[str, object]]] = ..., manifest_digest: _Optional[str] = ..., locations: _Optional[_Iterable[str]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
