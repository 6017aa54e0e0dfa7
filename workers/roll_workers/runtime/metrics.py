"""What a worker process counts, on `/metrics` of its own port: one registry per process."""

from __future__ import annotations

import logging

from prometheus_client import Counter, Gauge, start_http_server

from roll_workers.errors import UserError
from roll_workers.runtime.config import WorkerConfig

log = logging.getLogger(__name__)

RESULTS = Counter("roll_worker_results", "Results acknowledged by the scheduler", ["verdict"])
FAILURES = Counter("roll_worker_failures", "Failures reported to the scheduler", ["kind"])
RECONNECTS = Counter("roll_worker_reconnects", "Times the stream to the scheduler broke")
LEASES = Gauge("roll_worker_leases", "Leases that this worker holds")
TOKENS = Counter("roll_worker_tokens", "Tokens sampled by results of this worker")


def serve_metrics(config: WorkerConfig) -> int | None:
    """Starts the exporter; returns its port, or None when it is off."""
    if config.metrics_port is None:
        return None
    try:
        # As the process's other services: a process on this machine only listens to itself.
        host = "127.0.0.1" if config.host == "127.0.0.1" else "0.0.0.0"
        server, _ = start_http_server(config.metrics_port, addr=host)
    except OSError as error:
        raise UserError(
            f"ROLL_METRICS_PORT: can't listen on port {config.metrics_port}: {error.strerror}; "
            "set another port, 0 for any free one, or leave it empty to turn metrics off"
        ) from error
    log.info("metrics on port %d", server.server_port)
    return int(server.server_port)
