"""Checkpoints that are whole or do not count.

Invariants:
- shards first, flushed to disk or uploaded; then a manifest with their sizes and checksums, which appears whole;
  then the ledger, whose word makes it a checkpoint;
- a folder's name holds step and trainer term, so a trainer that was replaced writes where nobody looks;
- nothing but the ledger's answer to a commit removes a checkpoint that the ledger vouched for.
"""

from roll_workers.trainer.checkpoint.manifest import (
    CorruptCheckpoint,
    Manifest,
    folder_name,
    verify,
)
from roll_workers.trainer.checkpoint.place import Place, place_of
from roll_workers.trainer.checkpoint.store import (
    CheckpointStore,
    Saved,
    read_manifest,
)

__all__ = [
    "CheckpointStore",
    "CorruptCheckpoint",
    "Manifest",
    "Place",
    "Saved",
    "folder_name",
    "place_of",
    "read_manifest",
    "verify",
]
