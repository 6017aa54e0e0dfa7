"""The operator with many jobs, on a real API server with KWOK nodes, beside a bare creator of the same objects.

The bare creator uses the operator's client and writes, of each job, what stands beside the pods and the pods,
which were prepared beforehand, without a limit of its own; it is done when it has seen all pods ready. The
operator is done when all RLJobs, created at the same pace, show PodsReady. Each has the machine and a fresh
cluster, which has come to rest, to itself. Times, writes and rates are read from the API server's audit log.

    python benchmarks/operator                       # 100 jobs
    python benchmarks/operator --jobs 1000
    python benchmarks/operator --jobs 1000 --without-bare --failures 300
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise

import fleet
import uvloop
from audit import CALLS, Write, busiest_second, read, replacements, timeline
from kubernetes.aio import client, config
from roll_cluster import ClusterError
from roll_operator.controller.cluster.api import CONNECTIONS, Api
from roll_operator.controller.cluster.bucket import TokenBucket
from roll_operator.plan.objects import Cluster
from watching import watch
from world import BENCHMARK, OPERATOR, SYSTEM, World

FAILURES_PER_SECOND = 5.0
PATIENCE = 280.0


@dataclass
class Figures:
    """What one side showed."""

    side: str
    jobs: int
    load_before: float
    pods_created_s: float = 0.0
    ready_s: float = 0.0
    writes: int = 0
    writes_per_s: float = 0.0
    status_writes: int = 0
    status_writes_per_s: float = 0.0
    status_writes_busiest_s: int = 0
    rss_mb: float = 0.0
    rss_peak_mb: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    """By process, until all were ready."""
    steady: dict[str, float] = field(default_factory=dict)
    failures: int = 0
    replaced_p50_ms: float = 0.0
    replaced_p99_ms: float = 0.0
    replaced_max_ms: float = 0.0


class Shown:
    """One line that tells how far it is."""

    def __init__(self, what: str) -> None:
        self._what, self._began, self._at = what, time.monotonic(), 0.0

    def __call__(self, text: str, *, last: bool = False) -> None:
        now = time.monotonic()
        if last or now > self._at + 1:
            self._at = now
            end = "\n" if last or not sys.stderr.isatty() else "\r"
            line = f"{self._what}: {text}, {now - self._began:.0f} s"
            print(line.ljust(78), end=end, file=sys.stderr, flush=True)


async def all_ready(world: World, path: str, count: int, show: Shown) -> None:
    ready: set[str] = set()
    async with asyncio.timeout(PATIENCE), aclosing(watch(world.access(), path)) as items:
        async for item in items:
            uid = item["metadata"]["uid"]
            (ready.add if fleet.is_ready(item) else ready.discard)(uid)
            show(f"{len(ready):,} of {count:,} ready", last=len(ready) == count)
            if len(ready) == count:
                return


async def guarded(world: World, work: Awaitable[None]) -> None:
    """The work, as long as every process lives."""

    async def look() -> None:
        while True:
            world.check()
            world.spent.append((time.time(), world.cpu()))
            await asyncio.sleep(1)

    tasks = {asyncio.ensure_future(work), asyncio.ensure_future(look())}
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        task.result()


async def bare(world: World, jobs: int, got: Figures, args: argparse.Namespace) -> None:
    cluster = Cluster(
        "roll-operator:benchmark", "roll-worker:benchmark", SYSTEM, OPERATOR, pod_group_api=None
    )
    async with api(world) as admin:
        keys = await admin.get("/openid/v1/jwks", accept="application/jwk-set+json")
        made = [fleet.objects(number, cluster, json.dumps(keys)) for number in range(jobs)]
        world.rest()
        show = Shown(f"bare creator, {jobs:,} jobs")
        before, began = world.cpu(), time.time()
        seen = all_ready(world, "/api/v1/pods", jobs * fleet.PODS, show)
        await asyncio.gather(fleet.create(admin, made), seen)
        ready, after = time.time(), world.cpu()
    writes = [w for w in read(world.server.audit_log) if w.user == BENCHMARK and w.asked >= began]
    fill(got, after, before, began, ready, writes)
    if args.timeline:
        tell(world, began, ready)


async def operated(world: World, jobs: int, got: Figures, args: argparse.Namespace) -> None:
    world.start_operator(args.qps, args.profile, fleet.at_rest())
    world.rest()
    show = Shown(f"operator, {jobs:,} jobs")
    async with api(world) as admin:
        before, began = world.cpu(), time.time()
        seen = all_ready(world, "/apis/roll.dev/v1alpha1/rljobs", jobs, show)
        await asyncio.gather(fleet.submit(admin, jobs), seen)
        ready, after = time.time(), world.cpu()
        writes = [w for w in read(world.server.audit_log) if w.user == OPERATOR]
        fill(got, after, before, began, ready, writes)
        got.rss_mb, got.rss_peak_mb = world.memory("operator")
        if args.timeline:
            tell(world, began, ready)
        if args.steady:
            await steady(world, args.steady, got)
        if args.failures:
            await fail(world, admin, jobs, args.failures, got)
            got.rss_mb, got.rss_peak_mb = world.memory("operator")


def fill(
    got: Figures,
    after: dict[str, float],
    before: dict[str, float],
    began: float,
    ready: float,
    writes: list[Write],
) -> None:
    got.cpu_s = {name: round(after[name] - before[name], 1) for name in after}
    writes = [w for w in writes if w.kind != "leases" and w.answered <= ready]
    pods = [w.answered for w in writes if (w.verb, w.kind, w.code) == ("create", "pods", 201)]
    status = [w for w in writes if w.kind == "rljobs/status"]
    got.ready_s = ready - began
    got.pods_created_s = max(pods) - began
    got.writes, got.writes_per_s = len(writes), len(writes) / got.ready_s
    got.status_writes, got.status_writes_per_s = len(status), len(status) / got.ready_s
    got.status_writes_busiest_s = busiest_second(status)


async def steady(world: World, seconds: float, got: Figures) -> None:
    """All jobs run and report progress; nothing fails."""
    before, began = world.cpu()["operator"], time.time()
    show = Shown("steady")
    while time.time() < began + seconds:
        show(f"{seconds:.0f} s of it")
        await asyncio.sleep(1)
    spent = time.time() - began
    mine = [w for w in read(world.server.audit_log) if w.user == OPERATOR and w.asked >= began]
    status = [w for w in mine if w.kind == "rljobs/status"]
    got.steady = {
        "operator_cores": (world.cpu()["operator"] - before) / spent,
        "status_writes_per_s": len(status) / spent,
        "status_writes_busiest_s": busiest_second(status),
    }


async def fail(world: World, admin: Api, jobs: int, count: int, got: Figures) -> None:
    """Pods of different jobs fail one after the other; each role in turn."""
    show = Shown("failures")
    began = time.monotonic()
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number / FAILURES_PER_SECOND - time.monotonic()))
        job = number * 7919 % jobs
        role = fleet.ROLES[number % len(fleet.ROLES)]
        path = f"/api/v1/namespaces/{fleet.namespace(job)}/pods/job-{job}-{role}-0/status"
        await admin.patch(path, {"status": fleet.failed(role)})
        show(f"{number + 1} of {count}")
    show(f"{count} of {count}", last=True)
    jobs_path = "/apis/roll.dev/v1alpha1/rljobs"
    await asyncio.sleep(3)
    await all_ready(world, jobs_path, jobs, Shown("all replaced"))
    took = replacements(read(world.server.audit_log), BENCHMARK)
    got.failures = len(took)
    got.replaced_p50_ms = took[len(took) // 2] * 1e3
    got.replaced_p99_ms = took[len(took) * 99 // 100] * 1e3
    got.replaced_max_ms = took[-1] * 1e3


@asynccontextmanager
async def api(world: World) -> AsyncIterator[Api]:
    """The operator's own client, as the administrator and without a rate limit."""
    settings = client.Configuration()
    await config.load_kube_config(str(world.kubeconfig), client_configuration=settings)
    settings.connection_pool_maxsize = CONNECTIONS
    result = Api(client.ApiClient(settings), TokenBucket(1e9, 1e9), leads=lambda: True)
    try:
        yield result
    finally:
        await result.close()


def tell(world: World, began: float, ready: float) -> None:
    """Calls by the second, and the cores that each process had."""
    print(timeline(read(world.server.audit_log, CALLS), began, ready), file=sys.stderr)
    for (start, before), (end, after) in pairwise(world.spent):
        if began - 1 < start < ready:
            cores = (
                (name, (after[name] - before.get(name, 0.0)) / (end - start)) for name in after
            )
            row = ", ".join(f"{name} {share:.2f}" for name, share in cores)
            print(f"{start - began:7.1f} s: {row}", file=sys.stderr)


def show(got: Figures) -> None:
    print(
        f"\n{got.side}, {got.jobs:,} jobs, load {got.load_before:.1f} before\n"
        f"  all pods created {got.pods_created_s:.1f} s, all ready {got.ready_s:.1f} s\n"
        f"  writes {got.writes:,}, {got.writes_per_s:.0f} a second"
    )
    if got.side == "operator":
        print(
            f"  status writes {got.status_writes:,}, {got.status_writes_per_s:.1f} a second, "
            f"{got.status_writes_busiest_s} in the busiest\n"
            f"  memory {got.rss_mb:.0f} MB, at most {got.rss_peak_mb:.0f} MB"
        )
    spent = sum(got.cpu_s.values())
    shares = (f"{name} {cpu:.1f} s ({cpu / spent:.0%})" for name, cpu in got.cpu_s.items())
    print(f"  CPU {spent:.1f} s: {', '.join(shares)}")
    if got.steady:
        print("  steady: " + ", ".join(f"{k} {v:.2f}" for k, v in got.steady.items()))
    if got.failures:
        print(
            f"  {got.failures} failures, from each to its replacement: p50 {got.replaced_p50_ms:.0f}, "
            f"p99 {got.replaced_p99_ms:.0f}, at most {got.replaced_max_ms:.0f} ms"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--failures", type=int, default=0, help="pods that fail once all are ready")
    parser.add_argument(
        "--steady", type=float, default=0.0, help="seconds to look at a ready fleet"
    )
    parser.add_argument("--qps", type=float, default=1000.0, help="the operator's limit of writes")
    parser.add_argument("--without-bare", action="store_true")
    parser.add_argument("--without-operator", action="store_true")
    parser.add_argument("--profile", default="", help="command before the operator's own")
    parser.add_argument("--timeline", action="store_true", help="calls, and what each second saw")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    sides = {"bare creator": not args.without_bare, "operator": not args.without_operator}
    found: list[Figures] = []
    try:
        for side in (name for name, wanted in sides.items() if wanted):
            got = Figures(side, args.jobs, os.getloadavg()[0])
            with World(args.jobs * fleet.PODS) as world:
                world.create(*fleet.homes(args.jobs))
                run = (
                    bare(world, args.jobs, got, args)
                    if side == "bare creator"
                    else operated(world, args.jobs, got, args)
                )
                uvloop.run(guarded(world, run))
            found.append(got)
            if not args.json:
                show(got)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps([asdict(f) for f in found], indent=1))
    elif len(found) == 2:
        print(f"\noperator / bare creator: {found[1].ready_s / found[0].ready_s:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
