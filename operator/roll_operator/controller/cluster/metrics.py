"""What the operator tells Prometheus about itself."""

from prometheus_client import Counter, Gauge, Histogram

QUEUE_DEPTH = Gauge("roll_operator_queue_depth", "Jobs that wait for a worker; 0 on a standby.")
QUEUE_WAIT = Gauge(
    "roll_operator_queue_oldest_seconds",
    "How long the first job in line has waited; 0 on a standby.",
)
RECONCILE_SECONDS = Histogram(
    "roll_operator_reconcile_seconds",
    "Time of one look at a job, its calls included.",
    ["result"],
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
API_CALLS = Counter(
    "roll_operator_api_calls_total", "Calls of the API server.", ["verb", "kind", "code"]
)
STATUS_WRITES = Counter(
    "roll_operator_status_writes_total", "Status writes by what made them due.", ["why"]
)
EVENTS_SEEN = Counter("roll_operator_watch_events_total", "Watch events.", ["kind"])
JOBS = Gauge("roll_operator_jobs", "Jobs by phase, told by the leader alone.", ["phase"])
PODS = Gauge("roll_operator_pods", "Pods of jobs that exist; 0 on a standby.")
RESTARTS = Counter(
    "roll_operator_restarts_total", "Restarts of pods, counted against a budget or not.",
    ["role", "counted"],
)  # fmt: skip
SCHEDULER_CALLS = Counter(
    "roll_operator_scheduler_calls_total", "Calls of the jobs' schedulers.", ["call", "result"]
)
LEADER = Gauge("roll_operator_leader", "1 while this operator acts.")


def kind_of(path: str) -> str:
    """The resource in an API path, and its subresource: few values, whatever the objects' names."""
    parts = path.split("/")
    rest = parts[4:] if parts[1] == "apis" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    if not rest or not rest[0]:
        return parts[1]
    return f"{rest[0]}/{rest[2]}" if len(rest) > 2 else rest[0]
