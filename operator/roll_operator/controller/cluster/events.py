"""Events for people, one at each transition.

An Event's name is made from what it tells about: told again by an operator that was killed in between, or after an
act that failed, it is the same Event, and the API server says that it is there already. The same words about
another transition are another Event, also where no status was written in between.
"""

import hashlib
import logging
import time
from collections.abc import Callable

from roll_api import API_VERSION

from roll_operator.controller.cluster.api import Api
from roll_operator.controller.cluster.errors import AlreadyExists, ApiError
from roll_operator.controller.cluster.store import JobEntry
from roll_operator.plan import Announce
from roll_operator.plan.status import timestamp

MESSAGE = 1000
"""The API server's limit is 1024."""

log = logging.getLogger(__name__)


class Events:
    def __init__(self, api: Api, identity: str, wall: Callable[[], float] = time.time) -> None:
        self._api, self._identity, self._wall = api, identity, wall

    async def tell(self, entry: JobEntry, what: Announce) -> None:
        """Never raises for an Event that is refused: it is a courtesy."""
        now = timestamp(self._wall())
        name = name_of(entry, what)
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": entry.namespace},
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
        try:
            await self._api.create(f"/api/v1/namespaces/{entry.namespace}/events", body)
        except AlreadyExists:
            return
        except ApiError as error:
            log.warning("%s: the event %s was not written: %s", entry.key, what.reason, error)


def name_of(entry: JobEntry, what: Announce) -> str:
    """The version is that of the status which tells the same. Transitions between two writes are numbered: each
    begins from a status of its own, and the first has the same name whoever tells it."""
    begins = entry.ahead[0] if entry.ahead else entry.status
    same = entry.version, what.reason, what.message
    number, before = entry.told.get(same, (0, None))
    if number == 0 or before is not begins:
        number += 1
    entry.told = {key: known for key, known in entry.told.items() if key[0] == entry.version}
    entry.told[same] = number, begins
    about = f"{entry.uid}/{entry.version}/{what.reason}/{what.message}"
    about += f"/{number}" if number > 1 else ""
    return f"{entry.name}.{hashlib.sha256(about.encode()).hexdigest()[:16]}"
