"""What NetworkPolicies allow: the semantics of networking.k8s.io/v1, evaluated on plain objects.

A pod that no policy selects is open; one that is selected may do what any of its policies allows. A connection
needs the consent of both ends.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

Policy = dict[str, Any]


@dataclass(frozen=True)
class End:
    """A pod, or (without labels) an address outside of the cluster."""

    namespace: str = ""
    labels: Mapping[str, str] | None = None
    address: str = "10.1.0.9"
    namespace_labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_namespace_labels(self) -> dict[str, str]:
        return {"kubernetes.io/metadata.name": self.namespace, **self.namespace_labels}


def connects(
    policies: Iterable[Policy], source: End, target: End, port: int, protocol: str = "TCP"
) -> bool:
    known = list(policies)
    return _allows(known, source, target, port, protocol, "Egress") and _allows(
        known, target, source, port, protocol, "Ingress"
    )


def _allows(
    policies: list[Policy], end: End, other: End, port: int, protocol: str, direction: str
) -> bool:
    if end.labels is None:
        return True
    applying = [
        policy["spec"]
        for policy in policies
        if policy["metadata"]["namespace"] == end.namespace
        and direction in policy["spec"]["policyTypes"]
        and matches(policy["spec"]["podSelector"], end.labels)
    ]
    if not applying:
        return True
    rules, peers = ("egress", "to") if direction == "Egress" else ("ingress", "from")
    return any(
        _peer(rule.get(peers), end.namespace, other) and _port(rule.get("ports"), port, protocol)
        for spec in applying
        for rule in spec.get(rules, [])
    )


def _peer(peers: list[dict[str, Any]] | None, namespace: str, other: End) -> bool:
    return not peers or any(_is(peer, namespace, other) for peer in peers)


def _is(peer: dict[str, Any], namespace: str, other: End) -> bool:
    if "ipBlock" in peer:
        block = peer["ipBlock"]
        address = ip_address(other.address)
        excepted = any(address in ip_network(cidr) for cidr in block.get("except", []))
        return address in ip_network(block["cidr"]) and not excepted
    if other.labels is None:
        return False
    if "namespaceSelector" in peer:
        there = matches(peer["namespaceSelector"], other.all_namespace_labels)
    else:
        there = other.namespace == namespace
    return there and matches(peer.get("podSelector", {}), other.labels)


def _port(ports: list[dict[str, Any]] | None, port: int, protocol: str) -> bool:
    return not ports or any(
        p.get("protocol", "TCP") == protocol and p.get("port", port) == port for p in ports
    )


def matches(selector: dict[str, Any], labels: Mapping[str, str]) -> bool:
    """A label selector; an empty one selects everything."""
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for wanted in selector.get("matchExpressions", []):
        key, has = wanted["key"], wanted["key"] in labels
        holds = {
            "Exists": has,
            "DoesNotExist": not has,
            "In": has and labels[key] in wanted.get("values", []),
            "NotIn": not has or labels[key] not in wanted.get("values", []),
        }
        if not holds[wanted["operator"]]:
            return False
    return True
