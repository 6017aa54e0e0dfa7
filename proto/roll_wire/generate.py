"""Writes the stubs of `roll/v1/*.proto` into this package: `python -m roll_wire.generate [FOLDER]`.

Invariant: what is checked in equals what this program writes (a test compares them). The stubs lie flat
beside this file, so that `from roll_wire import session_pb2` is the one way to reach them.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet, MethodDescriptorProto

PACKAGE = Path(__file__).parent
SOURCES = PACKAGE.parent
PROTOS = SOURCES / "roll" / "v1"


def generate(into: Path) -> list[Path]:
    """Writes all stubs into a folder and returns their paths."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        descriptors = _protoc(folder)
        written = []
        for made in sorted((folder / "roll" / "v1").glob("*.py*")):
            text = made.read_text().replace("from roll.v1 import", "from roll_wire import")
            text = text.replace("_Mapping]", "_Mapping[str, object]]")  # mypy --strict reads it
            if made.name.endswith("_pb2_grpc.py"):
                services = re.findall(r"^class (\w+)Stub\b", text, flags=re.MULTILINE)
                if not services:
                    continue
                # Only types differ: a stub on an aio channel answers with awaitables.
                text += "".join(f"\n\n{name}AsyncStub = {name}Stub\n" for name in services)
            written.append(_write(into / made.name, text))
    for file in descriptors.file:
        if file.service:
            name = Path(file.name).stem
            text = "\n".join(_typed_services(descriptors, file.name)) + "\n"
            written.append(_write(into / f"{name}_pb2_grpc.pyi", text))
    return written


def _protoc(folder: Path) -> FileDescriptorSet:
    # A developer's tool: not installed where the stubs are only used.
    from grpc_tools import protoc  # type: ignore[import-untyped]

    descriptor_file = folder / "all.binpb"
    status = protoc.main(
        [
            "protoc",
            f"-I{SOURCES}",
            f"--python_out={folder}",
            f"--pyi_out={folder}",
            f"--grpc_python_out={folder}",
            f"--descriptor_set_out={descriptor_file}",
            *(str(path) for path in sorted(PROTOS.glob("*.proto"))),
        ]
    )
    if status:
        raise SystemExit(f"error: protoc failed with status {status}")
    return FileDescriptorSet.FromString(descriptor_file.read_bytes())


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _typed_services(descriptors: FileDescriptorSet, file_name: str) -> Iterator[str]:
    """The .pyi of one file's services; grpc's own generator writes none."""
    modules = {
        f".{file.package}.{message.name}": f"{Path(file.name).stem}_pb2.{message.name}"
        for file in descriptors.file
        for message in file.message_type
    }
    file = next(file for file in descriptors.file if file.name == file_name)
    methods = [method for service in file.service for method in service.method]
    used = {modules[name].split(".")[0] for m in methods for name in (m.input_type, m.output_type)}
    yield from [
        "from collections.abc import AsyncIterator, Awaitable",
        "from typing import Any",
        "",
        "import grpc",
        "import grpc.aio",
        *(f"from roll_wire import {module}" for module in sorted(used)),
    ]
    for service in file.service:
        for suffix, grpc_module in (("Stub", "grpc"), ("AsyncStub", "grpc.aio")):
            yield f"\nclass {service.name}{suffix}:"
            yield f"    def __init__(self, channel: {grpc_module}.Channel) -> None: ..."
            for method in service.method:
                ask, answer = modules[method.input_type], modules[method.output_type]
                yield f"    {method.name}: {grpc_module}.{_shape(method)}MultiCallable[{ask}, {answer}]"
        # All our servers are asyncio servers.
        yield f"\nclass {service.name}Servicer:"
        for method in service.method:
            ask, answer = modules[method.input_type], modules[method.output_type]
            asked = (
                f"request_iterator: AsyncIterator[{ask}]"
                if method.client_streaming
                else f"request: {ask}"
            )
            # A streaming handler is an async generator, or a coroutine that writes to the context.
            answered = "Any" if method.server_streaming else f"Awaitable[{answer}]"
            context = f"context: grpc.aio.ServicerContext[{ask}, {answer}]"
            yield f"    def {method.name}(self, {asked}, {context}) -> {answered}: ..."
        yield (
            f"\ndef add_{service.name}Servicer_to_server("
            f"servicer: {service.name}Servicer, server: grpc.Server | grpc.aio.Server) -> None: ..."
        )


def _shape(method: MethodDescriptorProto) -> str:
    asked = "Stream" if method.client_streaming else "Unary"
    return asked + ("Stream" if method.server_streaming else "Unary")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE)
