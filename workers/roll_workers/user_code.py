"""Loads what the user wrote: `file.py:name`, beside the job's file or by an absolute path.

Invariant: whatever is wrong with the file ends in one UserError that names the file, the line and the
error, never in a trace of ours.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

from roll_workers.errors import UserError


def load_object(reference: str, source: Path) -> Any:
    """The object `name` of `file.py:name`."""
    file, _, name = reference.rpartition(":")
    path = (source / file).resolve()
    if not path.is_file():
        raise UserError(f"{reference}: there is no file {path}")
    # One name per path: two files called rewards.py in different folders are two modules.
    digest = hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()
    module_name = f"roll_user_{path.stem}_{digest}"
    module = sys.modules.get(module_name)
    if module is None:
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # dataclasses and pickle look it up there
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))  # so that it can import its neighbours, also later
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[module_name]
            if isinstance(error, KeyboardInterrupt):
                raise
            raise UserError(
                f"{reference}: can't import it: {describe(error, path)} "
                f"(`python {file}` shows the whole trace)"
            ) from error
    if not hasattr(module, name):
        raise UserError(f"{reference}: {path} has no {name!r}")
    return getattr(module, name)


def describe(error: BaseException, path: Path | None = None) -> str:
    """`file.py, line 12: ValueError: why`, with the innermost line of the user's file (or of any)."""
    last = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}, line {error.lineno}: {last}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if path is not None and frame.filename == str(path)]
    frame = own[-1] if own else frames[-1] if frames else None
    if frame is None:
        return last
    return f"{Path(frame.filename).name}, line {frame.lineno}: {last}"
