"""A command in the scheduler's container: `kubectl exec`, without kubectl.

The samples of a job are known to its scheduler alone, which listens on a socket inside its container.
"""

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

from roll_operator.cli.cluster.connection import Cluster
from roll_operator.controller.cluster import paths
from roll_operator.controller.folder import RunError

CONTAINER = "scheduler"
WAIT_SECONDS = 1.0


def run_in_scheduler(job: str, namespace: str | None, arguments: Sequence[str]) -> int:
    """Runs `roll …` there; what it writes is written here, and its exit code is returned."""
    cluster = Cluster(namespace)
    cluster.job(job)
    pod = f"{job}-scheduler-0"
    _refuse_what_is_away(cluster, job, pod)
    from kubernetes.client import CoreV1Api
    from kubernetes.client.exceptions import ApiException
    from kubernetes.stream import stream

    try:
        session = stream(
            CoreV1Api(cluster.client).connect_get_namespaced_pod_exec,
            pod,
            cluster.namespace,
            container=CONTAINER,
            command=["python", "-m", "roll_operator.cli", *arguments],
            # Nothing is sent. That it closes tells the command that nobody listens; a terminal would not.
            stdin=True,
            stdout=True,
            stderr=True,
            tty=False,
            _preload_content=False,
        )
    except ApiException as error:
        raise RunError(f"no command can be run in pod {pod}: {_words(error)}") from error
    return _relay(session, pod)


def _relay(session: Any, pod: str) -> int:
    from websocket import WebSocketException

    try:
        while session.is_open():
            session.update(timeout=WAIT_SECONDS)
            _write(session)
        _write(session)
        return int(session.returncode)
    except BrokenPipeError:
        raise
    except (WebSocketException, OSError, TypeError, KeyError, ValueError) as error:
        # Without the last message, which says how the command ended, the client finds no exit code.
        raise RunError(f"the connection to pod {pod} broke") from error
    finally:
        session.close()


def _write(session: Any) -> None:
    for channel, target in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        if getattr(session, f"peek_{channel}")():
            target.write(getattr(session, f"read_{channel}")())
            target.flush()


def _refuse_what_is_away(cluster: Cluster, job: str, pod: str) -> None:
    found = cluster.find(paths.pod(cluster.namespace, pod))
    if found is None:
        why = "is not there"
    else:
        states = (found.get("status") or {}).get("containerStatuses") or []
        if any(s["name"] == CONTAINER and "running" in (s.get("state") or {}) for s in states):
            return
        why = f"is {(found.get('status') or {}).get('phase', 'Pending')}, and does not run now"
    raise RunError(
        f"only the scheduler of {job} knows its samples, and its pod {pod} {why}: "
        f"kubectl roll status {job} -n {cluster.namespace} tells more"
    )


def _words(error: Any) -> str:
    """The API server's message, out of what the web socket's library made of its answer."""
    text = str(error.reason)
    if found := re.search(r'"message":("(?:[^"\\]|\\.)*")', text):
        return str(json.loads(found.group(1)))
    return " ".join(text.split())[:300]
