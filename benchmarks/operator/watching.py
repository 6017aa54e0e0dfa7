"""A watch that lasts: what an API server that just started ends, or turns away, begins again."""

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


async def watch(access: Access, path: str, **query: str) -> AsyncIterator[Manifest]:
    """Every object as it is now, and whenever it is changed; sooner or later some of them twice."""
    url, ca, certificate, key = access
    trusted = ssl.create_default_context(cafile=ca)
    trusted.load_cert_chain(certificate, key)
    timeout = aiohttp.ClientTimeout(total=None)
    asked = query | {"watch": "true", "timeoutSeconds": "3600"}
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=2**20) as session:
        while True:
            async with session.get(f"{url}{path}", ssl=trusted, params=asked) as answer:
                async for line in answer.content:
                    event = json.loads(line)
                    if event.get("type") in ("ADDED", "MODIFIED"):
                        yield event["object"]
            await asyncio.sleep(0.2)
