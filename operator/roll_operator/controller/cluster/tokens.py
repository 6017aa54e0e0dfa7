"""The operator's tokens for schedulers: one for each job, made by the API server for the operator's own account.

Invariant: a token that one job's scheduler was shown opens no other job's. A scheduler runs in its tenant's
namespace, where what it is shown may be read.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from roll_operator.backends.kubernetes import seconds
from roll_operator.controller.cluster import paths
from roll_operator.controller.cluster.api import Api
from roll_operator.controller.cluster.errors import ApiError
from roll_operator.trust.identity import operator_audience

LIFETIME = 3600
RENEWED_AFTER = 2 / 3  # of its life: clocks differ, and an API server may be away for a while
RETRY_SECONDS = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Held:
    token: str
    until: float
    """When the next one is asked for."""
    ends: float


class OperatorTokens:
    def __init__(
        self, api: Api, namespace: str, account: str, wall: Callable[[], float] = time.time
    ) -> None:
        self._api, self._path, self._wall = api, paths.token(namespace, account), wall
        self._held: dict[str, _Held] = {}
        """By the job's uid."""

    async def of(self, job_uid: str) -> str:
        """What the job's scheduler is shown; empty: there is none at the moment."""
        held = self._held.get(job_uid)
        if held is None or self._wall() >= held.until:
            self._drop_ended()
            held = self._held[job_uid] = await self._made(job_uid)
        return held.token

    async def _made(self, job_uid: str) -> _Held:
        """A new one; where none is to be had, that of before for as long as it is valid."""
        spec = {"audiences": [operator_audience(job_uid)], "expirationSeconds": LIFETIME}
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        now = self._wall()
        try:
            made = (await self._api.create(self._path, asked))["status"]
            token, ends = str(made["token"]), seconds(made["expirationTimestamp"])
        except (ApiError, ValueError, LookupError, TypeError) as error:  # or a proxy's page instead
            log.warning("no token for the scheduler of job %s: %s", job_uid, error)
            before = self._held.get(job_uid, _Held("", now, now))
            return replace(before, until=now + RETRY_SECONDS)
        return _Held(token, now + (ends - now) * RENEWED_AFTER, ends)

    def _drop_ended(self) -> None:
        """Those of jobs that nobody asked about again, too."""
        now = self._wall()
        for uid in [uid for uid, held in self._held.items() if now >= max(held.ends, held.until)]:
            del self._held[uid]
