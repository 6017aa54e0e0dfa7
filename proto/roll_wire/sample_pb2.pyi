from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Trajectory(_message.Message):
    __slots__ = ("pieces", "facts", "blobs", "reward", "observations")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PIECES_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    pieces: _containers.RepeatedCompositeFieldContainer[Piece]
    facts: _containers.ScalarMap[str, str]
    blobs: _containers.RepeatedCompositeFieldContainer[Blob]
    reward: Reward
    observations: _containers.RepeatedCompositeFieldContainer[Observation]
    def __init__(self, pieces: _Optional[_Iterable[_Union[Piece, _Mapping[str, object]]]] = ..., facts: _Optional[_Mapping[str, str]] = ..., blobs: _Optional[_Iterable[_Union[Blob, _Mapping[str, object]]]] = ..., reward: _Optional[_Union[Reward, _Mapping[str, object]]] = ..., observations: _Optional[_Iterable[_Union[Observation, _Mapping[str, object]]]] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("kind", "sequence", "turn", "length", "columns", "finish_reason")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Piece.Kind]
        PROMPT: _ClassVar[Piece.Kind]
        ACTION: _ClassVar[Piece.Kind]
        OBSERVATION: _ClassVar[Piece.Kind]
    KIND_UNSPECIFIED: Piece.Kind
    PROMPT: Piece.Kind
    ACTION: Piece.Kind
    OBSERVATION: Piece.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    kind: Piece.Kind
    sequence: int
    turn: int
    length: int
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    finish_reason: str
    def __init__(self, kind: _Optional[_Union[Piece.Kind, str]] = ..., sequence: _Optional[int] = ..., turn: _Optional[int] = ..., length: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping[str, object]]]] = ..., finish_reason: _Optional[str] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "type", "data", "width")
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        TYPE_UNSPECIFIED: _ClassVar[Column.Type]
        I32: _ClassVar[Column.Type]
        F32: _ClassVar[Column.Type]
        U8: _ClassVar[Column.Type]
        I64: _ClassVar[Column.Type]
        F64: _ClassVar[Column.Type]
        BF16: _ClassVar[Column.Type]
    TYPE_UNSPECIFIED: Column.Type
    I32: Column.Type
    F32: Column.Type
    U8: Column.Type
    I64: Column.Type
    F64: Column.Type
    BF16: Column.Type
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: Column.Type
    data: bytes
    width: int
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[Column.Type, str]] = ..., data: _Optional[bytes] = ..., width: _Optional[int] = ...) -> None: ...

class Blob(_message.Message):
    __slots__ = ("sha256", "media_type", "size", "uri", "inline", "sequence", "token")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    media_type: str
    size: int
    uri: str
    inline: bytes
    sequence: int
    token: int
    def __init__(self, sha256: _Optional[str] = ..., media_type: _Optional[str] = ..., size: _Optional[int] = ..., uri: _Optional[str] = ..., inline: _Optional[bytes] = ..., sequence: _Optional[int] = ..., token: _Optional[int] = ...) -> None: ...

class Reward(_message.Message):
    __slots__ = ("value", "parts", "turns", "tokens")
    class PartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    value: float
    parts: _containers.ScalarMap[str, float]
    turns: _containers.RepeatedScalarFieldContainer[float]
    tokens: _containers.RepeatedCompositeFieldContainer[Column]
    def __init__(self, value: _Optional[float] = ..., parts: _Optional[_Mapping[str, float]] = ..., turns: _Optional[_Iterable[float]] = ..., tokens: _Optional[_Iterable[_Union[Column, _Mapping[str, object]]]] = ...) -> None: ...

class Observation(_message.Message):
    __slots__ = ("turn", "hash", "reward", "done", "action", "text")
    TURN_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    turn: int
    hash: bytes
    reward: float
    done: bool
    action: str
    text: str
    def __init__(self, turn: _Optional[int] = ..., hash: _Optional[bytes] = ..., reward: _Optional[float] = ..., done: _Optional[bool] = ..., action: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...
