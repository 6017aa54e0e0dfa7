"""A watch that lasts: what an API server ends, because it is new or we are slow, goes on where it was."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

Manifest = dict[str, Any]
Access = tuple[str, str, str, str]
"""URL, and files of authority, certificate and key."""
PAUSE = 0.2
"""Seconds after an answer that is neither a list nor a watch."""


async def watch(access: Access, path: str, **query: str) -> AsyncIterator[Manifest]:
    """Every object as it is now, and whenever it is changed; sooner or later some of them twice."""
    url, ca, certificate, key = access
    trusted = ssl.create_default_context(cafile=ca)
    trusted.load_cert_chain(certificate, key)
    timeout = aiohttp.ClientTimeout(total=None)
    asked = query | {"watch": "true", "timeoutSeconds": "3600"}
    version = ""
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=2**20) as session:
        while True:
            if not version:
                async with session.get(f"{url}{path}", ssl=trusted, params=query) as answer:
                    listed = await answer.json()
                if answer.status != 200:
                    await asyncio.sleep(PAUSE)
                    continue
                kind, version = listed["kind"].removesuffix("List"), _version(listed)
                for item in listed["items"]:
                    yield {"kind": kind} | item
            since = asked | {"resourceVersion": version}
            async with session.get(f"{url}{path}", ssl=trusted, params=since) as answer:
                if answer.status != 200:
                    version = ""
                    await asyncio.sleep(PAUSE)
                    continue
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":  # that was too long ago: all of it again
                        version = ""
                        break
                    version = _version(event["object"])
                    if event["type"] in ("ADDED", "MODIFIED"):
                        yield event["object"]


def _version(item: Manifest) -> str:
    return str(item["metadata"]["resourceVersion"])
