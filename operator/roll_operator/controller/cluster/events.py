"""Events for people, one at each transition.

An Event's name is made from what it tells about: told again by an operator that was killed in between, it is
the same Event, and the API server says that it is there already.
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
        # The version is that of the status which tells the same: each transition has its own.
        about = f"{entry.uid}/{entry.version}/{what.reason}/{what.message}"
        name = f"{entry.name}.{hashlib.sha256(about.encode()).hexdigest()[:16]}"
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
