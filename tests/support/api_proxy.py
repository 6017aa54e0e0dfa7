"""A proxy before an API server that sees every call of an operator and may interfere.

It runs in a thread of its own. A rule sees a call before it is forwarded and may answer it instead, or sees the
answer before it is handed back and may act (kill the operator, for instance) while the operator knows nothing yet.
"""

import asyncio
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
from aiohttp import web

HOP = ("Transfer-Encoding", "Connection", "Content-Length", "Content-Encoding", "Host")
WRITES = ("POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    query: dict[str, str]
    who: str = ""
    """First part of the URL's path, by which callers are told apart."""
    status: int = 0
    """Of the answer; 0 before there is one."""

    @property
    def is_write(self) -> bool:
        return self.method in WRITES and "/leases" not in self.path

    @property
    def is_watch(self) -> bool:
        return "watch" in self.query


@dataclass(frozen=True)
class Answer:
    status: int
    body: str = "{}"
    headers: dict[str, str] = field(default_factory=dict)


Before = Callable[[Call], Answer | None]
After = Callable[[Call], None]


class Proxy:
    def __init__(self, server: str, ca: Path) -> None:
        self.server = server
        self._trust = ssl.create_default_context(cafile=str(ca))
        self.before: Before = lambda call: None
        self.after: After = lambda call: None
        self.hold: Callable[[Call], threading.Event | None] = lambda call: None
        """A call waits on its way to the server until the event is set."""
        self.calls: list[Call] = []
        self._watches: set[web.StreamResponse] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Proxy":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def cut_watches(self) -> None:
        """Every watch ends as if the connection had broken."""

        def cut() -> None:
            for response in list(self._watches):
                payload = response._req.transport if response._req else None
                if payload is not None:
                    payload.abort()

        self._loop.call_soon_threadsafe(cut)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        connector = aiohttp.TCPConnector(ssl=self._trust, limit=0)
        async with aiohttp.ClientSession(connector=connector) as self._session:
            app = web.Application(client_max_size=2**26)
            app.router.add_route("*", "/{path:.*}", self._forward)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.port = runner.addresses[0][1]
            self._ready.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        _, who, rest = request.path_qs.split("/", 2)
        call = Call(request.method, "/" + rest.split("?")[0], dict(request.query), who)
        given = self.before(call)
        if given is not None:
            self.calls.append(replace(call, status=given.status))
            return web.Response(
                status=given.status,
                text=given.body,
                headers=given.headers,
                content_type="application/json",
            )
        held = self.hold(call)
        if held is not None:
            await asyncio.to_thread(held.wait, 120)
        headers = {k: v for k, v in request.headers.items() if k not in HOP}
        try:
            async with self._session.request(
                request.method, f"{self.server}/{rest}", headers=headers, data=body or None
            ) as upstream:
                call = replace(call, status=upstream.status)
                self.calls.append(call)
                self.after(call)
                kept = {k: v for k, v in upstream.headers.items() if k not in HOP}
                response = web.StreamResponse(status=upstream.status, headers=kept)
                await response.prepare(request)
                if call.is_watch:
                    self._watches.add(response)
                try:
                    async for chunk in upstream.content.iter_any():
                        await response.write(chunk)
                    await response.write_eof()
                finally:
                    self._watches.discard(response)
                return response
        except (aiohttp.ClientError, ConnectionError) as error:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502, text=str(error))
