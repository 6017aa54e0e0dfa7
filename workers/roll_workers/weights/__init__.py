"""Versioned weights: published once by the trainer, pulled by whoever needs them.

A version is a folder `l<lineage>-v<number>` with `weights.safetensors` and `manifest.json`. It appears
whole or not at all, and whoever loads it checks every tensor against the digest that the scheduler
announced. Nobody is waited for: a slow or dead receiver costs the trainer nothing.
"""

from roll_workers.weights.fetch import FetchError, fetch
from roll_workers.weights.manifest import CorruptWeights, Version, version_name
from roll_workers.weights.publish import locations, publish
from roll_workers.weights.service import WeightsServicer, serve_weights

__all__ = [
    "CorruptWeights",
    "FetchError",
    "Version",
    "WeightsServicer",
    "fetch",
    "locations",
    "publish",
    "serve_weights",
    "version_name",
]
