"""`kubectl roll status`: what the operator last wrote, with the pods as they are."""

import json
from collections.abc import Iterator
from typing import Any

from roll_operator.backends.kubernetes import PodFacts, read_pod
from roll_operator.cli.cluster.connection import Cluster, Manifest
from roll_operator.cli.status import status_lines
from roll_operator.plan import PodPhase

AT_REST = ("Succeeded", "Failed", "Suspended")
TOLD = frozenset({"Queued", "Stalled", "SpecChangePending", "LedgerLost", "Invalid"})
"""Conditions that ask for attention; the others are in the phase and its message."""


def show_cluster_status(name: str, namespace: str | None, *, as_json: bool) -> int:
    cluster = Cluster(namespace)
    document = read_cluster_status(cluster.job(name), cluster.pods(name))
    print(json.dumps(document, indent=1) if as_json else "\n".join(_lines(document)))
    return 0


def read_cluster_status(job: Manifest, pods: list[Manifest]) -> dict[str, Any]:
    """With the keys of `roll status` of a local run, where they mean the same."""
    status = dict(job.get("status") or {})
    status.pop("record", None)
    roles = status.get("roles") or {}
    figures, samples = status.get("progress") or {}, status.get("samples") or {}
    phase = status.get("phase") or "Pending"
    conditions = status.get("conditions") or []
    return {
        "job": job["metadata"]["name"],
        "namespace": job["metadata"]["namespace"],
        "phase": phase,
        "running": phase not in AT_REST,
        "ready": status.get("ready") or "",
        "step": status.get("step") or 0,
        "steps": status.get("step") or 0,
        "stepsWanted": figures.get("steps") or job["spec"].get("steps"),
        "etaSeconds": figures.get("etaSeconds"),
        "checkpoint": status.get("checkpoint"),
        "reward": status.get("reward"),
        "validationReward": status.get("validationReward"),
        "samples": samples,
        "samplesPerSecond": samples.get("perSecond") or 0.0,
        "stalenessMax": (status.get("staleness") or {}).get("max") or 0,
        "restarts": {role: n for role in roles if (n := roles[role].get("restarts"))},
        "message": status.get("message") or "",
        "pendingReason": status.get("pendingReason") or "",
        "conditions": conditions,
        "lastFailures": {
            role: failure for role in roles if (failure := roles[role].get("lastFailure"))
        },
        "pods": [_pod(facts) for pod in pods if (facts := read_pod(pod)) is not None],
        "acted": bool(status),
    }


def _pod(facts: PodFacts) -> dict[str, Any]:
    pod = facts.pod
    return {
        "name": pod.name,
        "role": pod.role,
        "node": facts.node or None,
        "attempt": pod.attempt + pod.restarts,
        "state": _state(facts),
        "uid": pod.uid,
    }


def _state(facts: PodFacts) -> str:
    pod = facts.pod
    if pod.phase is PodPhase.EXITED:
        if pod.exit_code == 0:
            return "ended"
        why = [f"exit code {pod.exit_code}"] if pod.exit_code is not None else []
        return f"failed ({', '.join([*why, *pod.reasons[:1]]) or 'no reason given'})"
    if pod.phase is PodPhase.STOPPING:
        return "stopping"
    if pod.pending is not None:
        return pod.pending[0]
    return "running" if pod.phase is PodPhase.RUNNING else "starting"


def _lines(document: dict[str, Any]) -> list[str]:
    lines = status_lines(document)
    if not document["acted"]:
        lines.append("message    no operator has looked at it yet: is one running in this cluster?")
    if document["pendingReason"]:
        lines.append(f"pending    {document['pendingReason']}")
    lines += [
        f"condition  {c['type']}: {c.get('message') or c.get('reason')}"
        for c in document["conditions"]
        if c.get("status") == "True" and c["type"] in TOLD
    ]
    lines += [_failure(role, failure) for role, failure in document["lastFailures"].items()]
    if document["pods"]:
        lines += ["", *_table(document["pods"])]
    return lines


def _failure(role: str, failure: dict[str, Any]) -> str:
    said = (failure.get("message") or "").strip().splitlines()
    line = f"failure    {failure.get('pod') or role}: {failure.get('reason') or 'ended'}"
    return f"{line}: {said[-1]}" if said else line


def _table(pods: list[dict[str, Any]]) -> Iterator[str]:
    names = max(len(pod["name"]) for pod in pods) + 2
    nodes = max(len(pod["node"] or "NODE") for pod in pods) + 2
    yield f"{'POD':<{names}}{'NODE':<{nodes}}{'ATTEMPT':<9}STATE"
    for pod in pods:
        yield f"{pod['name']:<{names}}{pod['node'] or '-':<{nodes}}{pod['attempt']:<9}{pod['state']}"
