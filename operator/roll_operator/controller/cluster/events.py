"""Events for people, one at each transition.

A transition is told once, whichever writes and acts fail around it: what a plan announces stays with the job until
then. An Event's name is made from what it tells about: told again by the successor of an operator that was killed in
between, it is the same Event, and the API server says that it is there already. The same words about another
transition are another Event, also where no status was written in between. Nobody waits for an Event: a failed pod's
replacement least of all; so one may be missing where the operator was killed just then.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable

from roll_api import API_VERSION

from roll_operator.controller.cluster import paths
from roll_operator.controller.cluster.api import Api, Manifest
from roll_operator.controller.cluster.errors import AlreadyExists, ApiError, NotLeader
from roll_operator.controller.cluster.store import JobEntry
from roll_operator.plan import Announce
from roll_operator.plan.status import timestamp

MESSAGE = 1000
"""The API server's limit is 1024."""
CLOSE_SECONDS = 1.0

log = logging.getLogger(__name__)


class Events:
    def __init__(self, api: Api, identity: str, wall: Callable[[], float] = time.time) -> None:
        self._api, self._identity, self._wall = api, identity, wall
        self._on_their_way: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Who is on its way has a moment to arrive."""
        if self._on_their_way:
            _, late = await asyncio.wait(self._on_their_way, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def tell(self, entry: JobEntry, what: Announce) -> None:
        """An Event that is refused is no error: it is a courtesy."""
        task = asyncio.create_task(self._write(entry.key, self._body(entry, what)))
        self._on_their_way.add(task)
        task.add_done_callback(self._on_their_way.discard)

    def _body(self, entry: JobEntry, what: Announce) -> Manifest:
        now = timestamp(self._wall())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name_of(entry, what), "namespace": entry.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": "RLJob",
                "namespace": entry.namespace,
                "name": entry.name,
                "uid": entry.uid,
            },
            "type": what.type,
            "reason": what.reason,
            "message": what.message[:MESSAGE],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": "roll-operator"},
            "reportingComponent": "roll.dev/operator",
            "reportingInstance": self._identity,
        }

    async def _write(self, key: str, body: Manifest) -> None:
        try:
            await self._api.create(paths.home(body), body)
        except AlreadyExists:
            return
        except (ApiError, NotLeader) as error:
            log.warning("%s: the event %s was not written: %s", key, body["reason"], error)


def name_of(entry: JobEntry, what: Announce) -> str:
    """The version is that of the status which tells the same. Transitions between two writes are numbered, and the
    first has the same name whoever tells it."""
    same = entry.version, what.reason, what.message
    entry.told = {key: count for key, count in entry.told.items() if key[0] == entry.version}
    number = entry.told[same] = entry.told.get(same, 0) + 1
    about = f"{entry.uid}/{entry.version}/{what.reason}/{what.message}"
    about += f"/{number}" if number > 1 else ""
    return f"{entry.name}.{hashlib.sha256(about.encode()).hexdigest()[:16]}"
