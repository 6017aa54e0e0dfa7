"""`kubectl roll logs --follow`: on and on, whatever is replaced or breaks meanwhile.

Invariant: every line is shown once. A stream that ends or breaks goes on after the last line shown, by the time that
the kubelet gave it, also in the container after it; a new pod is shown from its first line.
"""

import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from roll_operator.cli.cluster.connection import Cluster, explain
from roll_operator.cli.cluster.logs import Choice, Log, fits, log_path, logs_of
from roll_operator.cli.cluster.status import AT_REST
from roll_operator.controller.cluster import errors, paths
from roll_operator.controller.folder import RunError

POLL_SECONDS = 2.0


def follow_logs(cluster: Cluster, job: str, choice: Choice) -> int:
    """A thread per pod, new ones as pods are replaced, until the job is at rest and all is told."""
    known: dict[str, Follower] = {}
    lock = threading.Lock()
    last = choice.lines  # of what is there when it begins
    while True:
        try:
            found = cluster.find(paths.job(cluster.namespace, job))
            logs = [log for log in logs_of(cluster.pods(job), job) if fits(log, choice)]
        except (errors.Throttled, errors.Unavailable, RunError) as error:
            told = explain(error) if isinstance(error, errors.ApiError) else str(error)
            print(f"{told}; trying again", file=sys.stderr)
            time.sleep(POLL_SECONDS)
            continue
        for log in logs:
            before = known.get(log.uid)
            if before is None or (not before.is_alive() and (log.runs or not before.ended)):
                since = before.shown_until if before else ""
                known[log.uid] = Follower(cluster, log, lock, since, last)
                known[log.uid].start()
        if logs:
            last = 0
        for follower in known.values():
            if follower.stopped is not None:
                raise follower.stopped
        phase = ((found or {}).get("status") or {}).get("phase")
        if (found is None or phase in AT_REST) and not any(t.is_alive() for t in known.values()):
            return 0
        time.sleep(POLL_SECONDS)


class Follower(threading.Thread):
    """Shows what a pod writes after `since`, until the stream ends or breaks."""

    def __init__(
        self, cluster: Cluster, log: Log, lock: threading.Lock, since: str, last: int
    ) -> None:
        super().__init__(daemon=True)
        self._cluster, self._log, self._lock, self._last = cluster, log, lock, last
        self.shown_until = since
        self.ended = False
        self.stopped: BrokenPipeError | errors.Forbidden | None = None
        """`| head` has seen enough, or logs are not for this user to read: all following ends."""

    def run(self) -> None:
        try:
            for stamp, line in self._stamped():
                with self._lock:
                    print(f"{self._log.title} | {line}", flush=True)
                self.shown_until = stamp
            self.ended = True
        except (BrokenPipeError, errors.Forbidden) as stopped:
            self.stopped = stopped
        except (errors.ApiError, RunError):
            return  # it has not started yet, or the stream broke: asked again

    def _stamped(self) -> Iterator[tuple[str, str]]:
        query = {"container": self._log.role, "follow": "true", "timestamps": "true"}
        shown = self.shown_until
        if shown:
            # The API knows whole seconds: what was shown of this one is passed over.
            query["sinceTime"] = (
                f"{datetime.fromisoformat(shown).astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
            )
        elif self._last:
            query["tailLines"] = str(self._last)
        for text in self._cluster.lines(log_path(self._cluster, self._log), **query):
            stamp, _, line = text.partition(" ")
            if stamp > shown:
                yield stamp, line
