"""GPUs of a pod: how many, of which product, with how much memory; by the labels of GPU feature discovery."""

from typing import Any

from roll_api.roles import Gpu

RESOURCE = "nvidia.com/gpu"
PRODUCT_LABEL = "nvidia.com/gpu.product"
MEMORY_LABEL = "nvidia.com/gpu.memory"
"""MiB of one GPU, a whole number."""

TOLERATION = {"key": RESOURCE, "operator": "Exists"}


def limits(gpu: Gpu | None) -> dict[str, str]:
    return {RESOURCE: str(gpu.count)} if gpu else {}


def tolerations(gpu: Gpu | None) -> list[dict[str, Any]]:
    """Nodes with GPUs are usually tainted, so that nothing else lands on them."""
    return [dict(TOLERATION)] if gpu else []


def node_affinity(gpu: Gpu | None) -> dict[str, Any] | None:
    expressions: list[dict[str, Any]] = []
    if gpu and gpu.products:
        expressions.append({"key": PRODUCT_LABEL, "operator": "In", "values": list(gpu.products)})
    if gpu and gpu.min_memory_mib is not None:
        # `Gt` is the only comparison of numbers that node affinity has: more than one less is at least.
        value = str(gpu.min_memory_mib - 1)
        expressions.append({"key": MEMORY_LABEL, "operator": "Gt", "values": [value]})
    if not expressions:
        return None
    terms = [{"matchExpressions": expressions}]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
