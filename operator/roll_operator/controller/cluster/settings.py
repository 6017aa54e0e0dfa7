"""What the operator is told by its environment; every error at once, before anything starts."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PULL_POLICIES = ("Always", "IfNotPresent", "Never")


class BadSettings(Exception):
    """The environment is wrong; the message names every variable."""


@dataclass(frozen=True, slots=True)
class Settings:
    namespace: str
    service_account: str
    operator_image: str
    worker_image: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    watch_namespaces: tuple[str, ...] = ()
    """Empty: all."""
    metrics_namespaces: tuple[str, ...] = ()
    """Whose pods may read the metrics of the jobs' pods."""
    watch_nodes: bool = True
    """False where no cluster-wide right is granted: a pod on a lost node then waits for its node's return."""
    identity: str = ""
    lease_name: str = "roll-operator"
    metrics_port: int = 9090
    health_port: int = 8080
    pod_group_scheduler: str = ""
    """schedulerName of pods that are placed as a gang; empty: the usual one of the cluster's PodGroup."""
    cert_manager_issuer: str = ""
    authority: Path | None = None
    """The certificate by which what that issuer made is known: its Secrets are not the operator's to read."""
    qps: float = 200.0
    burst: float = 400.0
    status_qps: float = 20.0
    workers: int = 32
    log_level: str = "INFO"

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.service_account}"

    @classmethod
    def read(cls, env: Mapping[str, str]) -> "Settings":
        problems: list[str] = []

        def text(name: str, default: str | None = None) -> str:
            value = env.get(name) or default
            if value is None:
                problems.append(f"{name} is not set")
            return value or ""

        def number(name: str, default: float) -> float:
            value = env.get(name)
            try:
                result = float(value) if value else default
            except ValueError:
                result = 0.0
            if result <= 0:
                problems.append(f"{name} should be a number above 0, not {value!r}")
            return result

        def port(name: str, default: int) -> int:
            value = env.get(name) or str(default)
            if not value.isdigit() or int(value) > 65535:
                problems.append(f"{name} should be a port, not {value!r}")
                return 0
            return int(value)

        settings = cls(
            namespace=text("ROLL_OPERATOR_NAMESPACE"),
            service_account=text("ROLL_OPERATOR_SERVICE_ACCOUNT", "roll-operator"),
            operator_image=text("ROLL_OPERATOR_IMAGE"),
            worker_image=text("ROLL_WORKER_IMAGE"),
            pull_policy=text("ROLL_IMAGE_PULL_POLICY", "IfNotPresent"),
            pull_secrets=_names(env.get("ROLL_IMAGE_PULL_SECRETS", "")),
            watch_namespaces=_names(env.get("ROLL_WATCH_NAMESPACES", "")),
            metrics_namespaces=_names(env.get("ROLL_METRICS_NAMESPACES", "")),
            watch_nodes=env.get("ROLL_WATCH_NODES", "true").lower() != "false",
            identity=text("ROLL_IDENTITY", socket.gethostname()),
            lease_name=text("ROLL_LEASE_NAME", "roll-operator"),
            metrics_port=port("ROLL_METRICS_PORT", 9090),
            health_port=port("ROLL_HEALTH_PORT", 8080),
            pod_group_scheduler=env.get("ROLL_POD_GROUP_SCHEDULER", ""),
            cert_manager_issuer=env.get("ROLL_CERT_MANAGER_ISSUER", ""),
            authority=_path(env.get("ROLL_CERT_MANAGER_CA", "")),
            qps=number("ROLL_QPS", 200.0),
            burst=number("ROLL_BURST", 400.0),
            status_qps=number("ROLL_STATUS_QPS", 20.0),
            log_level=text("ROLL_LOG_LEVEL", "INFO").upper(),
        )
        if settings.pull_policy not in PULL_POLICIES:
            problems.append(
                f"ROLL_IMAGE_PULL_POLICY should be one of {', '.join(PULL_POLICIES)}, "
                f"not {settings.pull_policy!r}"
            )
        if bool(settings.cert_manager_issuer) != bool(settings.authority):
            problems.append(
                "ROLL_CERT_MANAGER_ISSUER and ROLL_CERT_MANAGER_CA, a file with the issuer's "
                "certificate, are set together or not at all"
            )
        if problems:
            raise BadSettings("; ".join(problems))
        return settings


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
