from roll_wire import session_pb2 as _session_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ManifestRequest(_message.Message):
    __slots__ = ("version", "digest")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    version: _session_pb2.PolicyVersion
    digest: str
    def __init__(self, version: _Optional[_Union[_session_pb2.PolicyVersion, _Mapping[str, object]]] = ..., digest: _Optional[str] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("version", "kind", "base", "tensors", "files", "term", "digest")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Manifest.Kind]
        FULL: _ClassVar[Manifest.Kind]
        ADAPTER: _ClassVar[Manifest.Kind]
        DELTA: _ClassVar[Manifest.Kind]
    KIND_UNSPECIFIED: Manifest.Kind
    FULL: Manifest.Kind
    ADAPTER: Manifest.Kind
    DELTA: Manifest.Kind
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    version: _session_pb2.PolicyVersion
    kind: Manifest.Kind
    base: _session_pb2.PolicyVersion
    tensors: _containers.RepeatedCompositeFieldContainer[TensorInfo]
    files: _containers.RepeatedCompositeFieldContainer[FileInfo]
    term: int
    digest: str
    def __init__(self, version: _Optional[_Union[_session_pb2.PolicyVersion, _Mapping[str, object]]] = ..., kind: _Optional[_Union[Manifest.Kind, str]] = ..., base: _Optional[_Union[_session_pb2.PolicyVersion, _Mapping[str, object]]] = ..., tensors: _Optional[_Iterable[_Union[TensorInfo, _Mapping[str, object]]]] = ..., files: _Optional[_Iterable[_Union[FileInfo, _Mapping[str, object]]]] = ..., term: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class TensorInfo(_message.Message):
    __slots__ = ("name", "shape", "dtype", "checksum")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    checksum: str
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., checksum: _Optional[str] = ...) -> None: ...

class FileInfo(_message.Message):
    __slots__ = ("name", "size", "content")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    content: str
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., content: _Optional[str] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("version", "file", "offset", "digest")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    version: _session_pb2.PolicyVersion
    file: str
    offset: int
    digest: str
    def __init__(self, version: _Optional[_Union[_session_pb2.PolicyVersion, _Mapping[str, object]]] = ..., file: _Optional[str] = ..., offset: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
