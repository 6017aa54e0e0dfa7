"""Files named in a job are looked for beside the job's file."""

from pathlib import Path
from typing import Any

from roll_api.job import RLJob

_FILE_ENDINGS = (".jsonl", ".json", ".parquet", ".py", ".gguf")


def resolve_location(value: str, folder: Path) -> str:
    """An absolute path for what is a file or folder; `builtin:NAME`, a URI or a hub id stays.

    `org/name` is a hub id unless such a folder exists; `./name` is always a path.
    """
    if value.startswith("builtin:") or "://" in value:
        return value
    path = Path(value).expanduser()
    is_path = path.is_absolute() or value.startswith((".", "~")) or value.endswith(_FILE_ENDINGS)
    candidate = folder.resolve() / path
    return str(candidate) if is_path or candidate.exists() else value


def resolve_python(value: str, folder: Path) -> str:
    """`file.py:name` with an absolute file."""
    file, _, name = value.rpartition(":")
    return f"{folder.resolve() / Path(file).expanduser()}:{name}"


def resolve_paths(job: RLJob, folder: Path) -> RLJob:
    """The same job with absolute paths, for processes that run elsewhere than in the job's folder."""
    data = job.model_dump(exclude_none=True)
    spec = data["spec"]
    sources: list[dict[str, Any] | None] = [
        spec["model"],
        spec["model"].get("reference"),
        *(spec.get("data") or {}).values(),
    ]
    for source in sources:
        if source is not None:
            source["path"] = resolve_location(source["path"], folder)
    for holder in (spec.get("environment"), *(reward["scorer"] for reward in spec["rewards"])):
        if holder is not None and "python" in holder:
            holder["python"] = resolve_python(holder["python"], folder)
    return RLJob.parse(data)
