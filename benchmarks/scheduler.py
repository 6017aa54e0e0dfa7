"""Whole sample lives per second through the real scheduler: gRPC, durable ledger, nothing computed.

The scheduler is the process that `roll run` starts (`python -m roll_operator.scheduler`), on a folder of
a real disk, with every commit synced. Drivers in one or two other processes play every role with raw
messages: reset once per group, a generated result of 1, 8 or 64 kB, a score, and a trainer that acquires
each batch, fetches its shard, reports, publishes, and commits a checkpoint every few steps. A sample counts
when the trainer has it.

The hub's CPU time is that of the scheduler's process, all threads, user and system: it hardly depends on
who else uses the machine. Samples per second do: they are a figure of two quiet cores.

    python benchmarks/scheduler.py                     # 1, 8 and 64 kB, about half a minute
    python benchmarks/scheduler.py --kilobytes 8 --seconds 20 --json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from roll_api import RLJob
from scheduler_drivers import Plan, drive

GROUP_SIZE = 8
SIZES = (1, 8, 64)  # kB
# Samples that the engines give credit for; fewer where a payload is large.
IN_FLIGHT = {1: 2048, 8: 2048, 64: 1024}
GOALS = {8: (10_000, 60.0), 64: (2_000, None)}  # samples/s, hub CPU ms per 1,000
CLOCK = os.sysconf("SC_CLK_TCK")


@dataclass
class Figures:
    """What one run showed, between its warm-up and its end."""

    kilobytes: int
    samples: int
    seconds: float
    samples_per_second: float
    hub_cpu_ms_per_1000: float
    driver_cpu_ms_per_1000: float
    ack_p50_ms: float
    ack_p99_ms: float
    load_before: float
    megabytes_resident: float


def job(in_flight: int) -> dict[str, Any]:
    return {
        "apiVersion": "roll.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "lives"},
        "spec": {
            "pipeline": "RLVR",
            "steps": 1_000_000,
            "model": {"path": "builtin:tiny-qwen2"},
            "data": {"train": {"path": "builtin:largest-of-three"}},
            "rollout": {
                "groupsPerStep": in_flight // GROUP_SIZE // 4,
                "groupSize": GROUP_SIZE,
                "maxStaleness": 4,
                "runAhead": 4,
            },
            "rewards": [{"name": "exact", "scorer": {"kind": "exactMatch"}}],
            "roles": {
                "trainer": {"replicas": 1},
                "inference": {"replicas": 1},
                "reward": {"replicas": 1},
                "environment": {"replicas": 1},
            },
            "checkpoint": {"everySteps": 4, "keepLast": 1},
        },
    }


@contextmanager
def scheduler(folder: Path, spec: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """The real process; gives its address and process id."""
    folder.mkdir(parents=True)
    parsed = RLJob.from_json(json.dumps(spec))
    (folder / "job.json").write_text(parsed.to_json())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    env = os.environ | {
        "ROLL_JOB": "lives",
        "ROLL_JOB_UID": "benchmark",
        "ROLL_SPEC": str(folder / "job.json"),
        "ROLL_STORAGE": str(folder),
        "ROLL_LISTEN": address,
    }
    with (folder / "scheduler.log").open("wb") as log:
        command = [sys.executable, "-m", "roll_operator.scheduler"]
        process = subprocess.Popen(command, env=env, stderr=log)
    try:
        _await_port(address, process)
        yield address, process.pid
        if process.poll() is not None:
            raise RuntimeError((folder / "scheduler.log").read_text()[-2000:])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def _await_port(address: str, process: subprocess.Popen[bytes]) -> None:
    host, port = address.split(":")
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            probe.settimeout(0.2)
            if probe.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError("the scheduler did not start listening")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK


def resident_megabytes(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(kilobytes: int, seconds: float, warm_up: float, folder: Path, split: bool) -> Figures:
    in_flight = IN_FLIGHT.get(kilobytes, 1024)
    load_before = os.getloadavg()[0]
    with scheduler(folder, job(in_flight)) as (address, pid):
        plan = Plan(address, kilobytes * 1000, in_flight, checkpoint_every=4)
        halves = (("policy",), ("environment", "reward", "trainer"))
        roles = halves if split else (sum(halves, ()),)
        drivers = [_start(plan, each) for each in roles]
        try:
            time.sleep(warm_up)
            first = [_ask(pipe) for _, pipe in drivers]
            began, hub = time.monotonic(), cpu_seconds(pid)
            time.sleep(seconds)
            hub, spent = cpu_seconds(pid) - hub, time.monotonic() - began
            last = [_ask(pipe) for _, pipe in drivers]
            resident = resident_megabytes(pid)
        finally:
            for process, _ in drivers:
                process.kill()
                process.join()
    samples = sum(x["trained"] for x in last) - sum(x["trained"] for x in first)
    if not samples:
        raise RuntimeError(f"no sample came through; see {folder}/scheduler.log")
    acks = sorted(ack for x in last for ack in x["acks"])
    driving = sum(x["cpu"] for x in last) - sum(x["cpu"] for x in first)
    return Figures(
        kilobytes=kilobytes,
        samples=samples,
        seconds=spent,
        samples_per_second=samples / spent,
        hub_cpu_ms_per_1000=hub / samples * 1e6,
        driver_cpu_ms_per_1000=driving / samples * 1e6,
        ack_p50_ms=acks[len(acks) // 2] * 1e3,
        ack_p99_ms=acks[len(acks) * 99 // 100] * 1e3,
        load_before=load_before,
        megabytes_resident=resident,
    )


def _start(plan: Plan, roles: tuple[str, ...]) -> tuple[Any, Connection]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=drive, args=(plan, roles, theirs), daemon=True)
    process.start()
    return process, ours


def _ask(pipe: Connection) -> dict[str, Any]:
    """What the driver counted so far; acknowledgements since it was last asked."""
    pipe.send(None)
    if not pipe.poll(60):
        raise RuntimeError("a driver does not answer")
    answer: dict[str, Any] = pipe.recv()
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kilobytes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--seconds", type=float, default=8.0, help="measured, after the warm-up")
    parser.add_argument("--warm-up", type=float, default=3.0)
    parser.add_argument("--split", action="store_true", help="two driver processes instead of one")
    parser.add_argument("--folder", type=Path, help="on a real disk; by default where this runs")
    parser.add_argument("--keep", action="store_true", help="keep the ledger")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    parent = args.folder or Path.cwd()
    folder = Path(tempfile.mkdtemp(prefix=".scheduler-benchmark-", dir=parent))
    found = []
    if not args.json:
        print(
            f"{'payload':>8} {'samples/s':>10} {'hub CPU ms/1,000':>17} {'drivers':>8} "
            f"{'ack p50 ms':>11} {'p99':>6} {'hub MB':>7} {'load':>5}"
        )
    try:
        for size in args.kilobytes:
            got = measure(size, args.seconds, args.warm_up, folder / str(size), args.split)
            found.append(got)
            if not args.json:
                print(
                    f"{size:>5} kB {got.samples_per_second:>10,.0f} "
                    f"{got.hub_cpu_ms_per_1000:>17.1f} {got.driver_cpu_ms_per_1000:>8.1f} "
                    f"{got.ack_p50_ms:>11.1f} {got.ack_p99_ms:>6.1f} "
                    f"{got.megabytes_resident:>7.0f} {got.load_before:>5.1f}",
                    flush=True,
                )
    finally:
        if args.keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if args.json:
        print(json.dumps([vars(f) for f in found], indent=1))


if __name__ == "__main__":
    main()
