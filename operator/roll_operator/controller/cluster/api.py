"""Calls of the API server through `kubernetes.aio`, as plain dictionaries with typed errors.

The typed models of the client are passed by: they would cost a millisecond and twice the memory per pod.
Invariant: a write is sent only while this operator leads, after its token from the bucket; reads need neither.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client, config

from roll_operator.controller.cluster import metrics
from roll_operator.controller.cluster.bucket import TokenBucket
from roll_operator.controller.cluster.errors import (
    ApiError,
    NotLeader,
    Throttled,
    Unavailable,
    error_of,
)

Manifest = dict[str, Any]

CALL_SECONDS = 30.0
CONNECTIONS = 24
"""Calls at once. More of them would only wait in the API server, and those of schedulers and kubelets with them."""
PAGE = 500
"""Objects per answer of a list: about 2 MB of pods."""
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


async def connect() -> client.ApiClient:
    """By the pod's own account where there is one, else by KUBECONFIG."""
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        await config.load_kube_config(client_configuration=settings)
    settings.connection_pool_maxsize = CONNECTIONS
    # Proxies and passwords from the environment would be looked up, in files too, for every call.
    settings.client_session_kwargs = {"trust_env": False}
    connection = client.ApiClient(settings)
    connection.user_agent = "roll-operator"
    return connection


class Api:
    def __init__(
        self, connection: client.ApiClient, bucket: TokenBucket, leads: Callable[[], bool]
    ) -> None:
        self._connection, self._bucket, self._leads = connection, bucket, leads
        self.answered_at = time.monotonic()

    async def get(self, path: str, accept: str = "application/json") -> Manifest:
        return await self._json("GET", path, accept=accept)

    async def text(self, path: str, seconds: float, **query: str) -> str:
        answer = await self._call("GET", path, query=query, seconds=seconds)
        return answer.decode("utf-8", "replace")

    async def pages(
        self, path: str, selector: str = "", *, metadata_only: bool = False
    ) -> AsyncIterator[tuple[list[Manifest], str]]:
        """Page by page, with the version of the list."""
        accept = METADATA_ONLY if metadata_only else "application/json"
        query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        while True:
            page = await self._json("GET", path, query=query, accept=accept)
            yield page.get("items") or [], page["metadata"]["resourceVersion"]
            if not page["metadata"].get("continue"):
                return
            query["continue"] = page["metadata"]["continue"]

    async def create(self, path: str, body: Manifest, *, strict: bool = False) -> Manifest:
        """`strict`: a field that the server does not know is an error; otherwise it is passed over."""
        query = {"fieldValidation": "Strict"} if strict else None
        return await self._write("POST", path, body, query=query)

    async def patch(self, path: str, body: Manifest) -> Manifest:
        return await self._write("PATCH", path, body, content_type=MERGE)

    async def release(self, path: str, uid: str, finalizer: str) -> Manifest:
        """Takes this one finalizer from the object of this UID."""
        metadata = {"uid": uid, "$deleteFromPrimitiveList/finalizers": [finalizer]}
        return await self._write("PATCH", path, {"metadata": metadata}, content_type=STRATEGIC)

    async def create_lease(self, path: str, body: Manifest) -> Manifest:
        """Neither rate nor leadership may stand in the way of becoming the leader."""
        return await self._json("POST", path, body=body)

    async def replace_lease(self, path: str, body: Manifest) -> Manifest:
        return await self._json("PUT", path, body=body)

    async def apply(self, path: str, body: Manifest, manager: str) -> Manifest:
        """Server-side apply: what this manager no longer names goes away."""
        query = {"fieldManager": manager, "force": "true"}
        return await self._write("PATCH", path, body, query=query, content_type=APPLY)

    async def delete(self, path: str, uid: str, grace: int | None) -> Manifest:
        """Of this UID only: a namesake that came later stays."""
        body: Manifest = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
        }
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        return await self._write("DELETE", path, body)

    async def close(self) -> None:
        await self._connection.close()

    async def _write(self, verb: str, path: str, body: Manifest, **more: Any) -> Manifest:
        await self._bucket.take()
        if not self._leads():
            raise NotLeader(f"{verb} {path} was not sent: the lease is not held any more")
        try:
            answer = await self._json(verb, path, body=body, **more)
        except Throttled as error:
            self._bucket.pause(max(1.0, error.retry_after))
            raise
        return answer

    async def _json(self, verb: str, path: str, **more: Any) -> Manifest:
        answer: Manifest = json.loads(await self._call(verb, path, **more))
        return answer

    async def _call(
        self,
        verb: str,
        path: str,
        *,
        body: Manifest | None = None,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        seconds: float = CALL_SECONDS,
    ) -> bytes:
        target = f"{path}?{urlencode(query)}" if query else path
        code = "0"
        try:
            _, url, headers, *_ = await self._connection.param_serialize(
                verb,
                target,
                header_params={"Accept": accept, "Content-Type": content_type},
                auth_settings=["BearerToken"],
            )
            async with asyncio.timeout(seconds):
                response = await self._connection.call_api(verb, url, headers, body)
                content: bytes = await response.read()
            code = str(response.status)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(0, "", f"{verb} {path}: {error or type(error).__name__}") from error
        finally:
            metrics.API_CALLS.labels(verb, metrics.kind_of(path), code).inc()
        if response.status >= 400:
            raise error_of(response.status, response.headers, content)
        self.answered_at = time.monotonic()
        return content


__all__ = ["Api", "ApiError", "Manifest", "connect"]
