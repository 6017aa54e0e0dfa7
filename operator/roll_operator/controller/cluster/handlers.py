"""The thin kopf handlers: a watch event becomes a fact in the store. Nothing is decided here.

Only `on.event` is used, so kopf writes nothing: no finalizer, no annotation, no Event. kopf supplies log-in,
watches, reconnects and lists again after 410.
"""

import logging
from collections.abc import Callable
from typing import Any

import kopf
from roll_api import GROUP, VERSION

from roll_operator.backends.kubernetes import SELECTOR, read_pod
from roll_operator.controller.cluster import metrics
from roll_operator.controller.cluster.proof import WatchProof
from roll_operator.controller.cluster.reading import read_job
from roll_operator.controller.cluster.store import Store
from roll_operator.plan.objects.cluster import JOB_LABEL

log = logging.getLogger(__name__)


class NoMemory(kopf.DiffBaseStorage):  # type: ignore[misc]  # kopf's types are not read
    """kopf compares objects with their last state for handlers that are not used here; this spares the copies."""

    def build(self, *, body: Any, extra_fields: Any = None) -> None:
        return None

    def fetch(self, *, body: Any) -> None:
        return None

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:
        return None


def registry(
    store: Store, proof: WatchProof, relisted: Callable[[], None], nodes: bool
) -> kopf.OperatorRegistry:
    """`relisted` is called when kopf reads a whole list: what it does not name is not reported as deleted."""
    handlers = kopf.OperatorRegistry()

    def login(**kwargs: Any) -> Any:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    async def job(event: Any, **_: Any) -> None:
        metrics.EVENTS_SEEN.labels("rljob").inc()
        manifest, metadata = event["object"], event["object"]["metadata"]
        key = f"{metadata['namespace']}/{metadata['name']}"
        proof.seen(metadata["uid"], int(metadata["resourceVersion"]))
        if event["type"] == "DELETED":
            store.drop_job(key, metadata["uid"])
            return
        if event["type"] is None:
            relisted()
        known = store.job(key)
        if (
            known is None
            or known.uid != metadata["uid"]
            or known.version < int(metadata["resourceVersion"])
        ):
            store.put_job(read_job(manifest, known))

    async def pod(event: Any, **_: Any) -> None:
        metrics.EVENTS_SEEN.labels("pod").inc()
        metadata = event["object"]["metadata"]
        proof.seen(metadata["uid"], int(metadata["resourceVersion"]))
        if event["type"] == "DELETED":
            name = (metadata.get("labels") or {}).get(JOB_LABEL, "")
            store.drop_pod(f"{metadata['namespace']}/{name}", metadata["uid"])
            return
        if event["type"] is None:
            relisted()
        facts = read_pod(event["object"])
        if facts is not None:
            store.put_pod(facts)

    async def node(event: Any, **_: Any) -> None:
        metrics.EVENTS_SEEN.labels("node").inc()
        name = event["object"]["metadata"]["name"]
        if event["type"] == "DELETED":
            store.drop_node(name)
        else:
            store.put_node(name, _is_ready(event["object"]))

    kopf.on.login(registry=handlers)(login)
    kopf.on.event(GROUP, VERSION, "rljobs", registry=handlers)(job)
    kopf.on.event("", "v1", "pods", registry=handlers)(pod)
    if nodes:
        kopf.on.event("", "v1", "nodes", registry=handlers)(node)
    return handlers


def watching() -> kopf.OperatorSettings:
    result = kopf.OperatorSettings()
    result.posting.enabled = False
    result.scanning.disabled = True  # neither CRDs nor namespaces have to be watched
    result.peering.standalone = True
    result.persistence.diffbase_storage = NoMemory()
    result.watching.label_selectors["pods"] = SELECTOR
    result.watching.chunk_size = 500
    # A connection that was cut without a word is noticed by silence.
    result.watching.server_timeout = 240
    result.watching.client_timeout = 300
    result.watching.connect_timeout = 10
    result.networking.request_timeout = 60
    result.networking.error_backoffs = [0.2, 0.5, 1, 2, 3, 5, 5, 10, 10, 15, 15, 30, 30, 60, 60]
    result.queueing.idle_timeout = 0.5  # of a task per object with news, which holds its manifest
    result.queueing.exit_timeout = 0.5
    result.process.ultimate_exiting_timeout = 20
    return result


def _is_ready(node: dict[str, Any]) -> bool:
    for condition in (node.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "Ready":
            return bool(condition.get("status") == "True")
    return False
