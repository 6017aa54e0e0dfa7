"""The same life of a sample through our durable scheduler, a Ray actor and TransferQueue, in one run.

assign -> result -> acknowledgement -> score -> the trainer fetches, 64 samples a message, drivers that
compute nothing. Ours writes every result to disk and syncs it before it acknowledges; the other two keep
nothing. They are installed on demand by uv into its own cache, never into this project's environment; a peer
that cannot be installed is reported as such, and nothing stands in for it.

    python benchmarks/versus_transport.py                 # 8 kB, about a minute once the peers are there
    python benchmarks/versus_transport.py --kilobytes 1 8 64 --json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import scheduler as ours

PEERS = {"ray": "ray==2.60.0", "TransferQueue": "TransferQueue==0.1.11"}
GOALS = {"ray": 1.5, "TransferQueue": 3.0}
# Ray would pack the folder, start every worker by uv again, and report its use; TransferQueue would log a
# warning at each call on a machine with fewer than 8 cores.
QUIET = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TQ_NUM_THREADS": str(os.cpu_count()),
}
PROGRAM = Path(__file__).with_name("transport_peers.py")


def uv() -> str | None:
    """The uv on the path, or the one that `make setup` keeps."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return shutil.which("uv") or shutil.which("uv", path=f"{cache}/roll/uv/bin")


def measure_peer(peer: str, kilobytes: int, seconds: float, warm_up: float) -> dict[str, Any]:
    found = uv()
    if found is None:
        return {"error": "uv is not there: run `make setup`"}
    command = [found, "run", "--no-project", "--python", "3.11", "--with", PEERS["ray"]]
    if peer != "ray":
        command += ["--with", PEERS[peer]]
    command += ["python", str(PROGRAM), peer, str(kilobytes), str(seconds), str(warm_up)]
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(
            command, cwd=elsewhere, env=os.environ | QUIET, capture_output=True, text=True,
            timeout=1800,
        )  # fmt: skip
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            return answer
    return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no answer"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kilobytes", type=int, nargs="*", default=[8])
    parser.add_argument("--seconds", type=float, default=8.0, help="measured, after the warm-up")
    parser.add_argument("--warm-up", type=float, default=4.0)
    parser.add_argument("--folder", type=Path, help="on a real disk; by default where this runs")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for size in args.kilobytes:
        folder = Path(tempfile.mkdtemp(prefix=".versus-", dir=args.folder or Path.cwd()))
        try:
            mine = ours.measure(size, args.seconds, args.warm_up, folder / "run", split=False)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        row: dict[str, Any] = {
            "kilobytes": size,
            "load_before": mine.load_before,
            "roll": {
                "samples_per_second": mine.samples_per_second,
                "transport_cpu_ms_per_1000": mine.hub_cpu_ms_per_1000,
                "ack_p50_ms": mine.ack_p50_ms,
                "ack_p99_ms": mine.ack_p99_ms,
            },
        }
        for peer in PEERS:
            row[peer] = measure_peer(peer, size, args.seconds, args.warm_up)
        rows.append(row)
        if not args.json:
            show(row)
    if args.json:
        print(json.dumps(rows, indent=1))
    sys.exit(any("error" in row[peer] for row in rows for peer in PEERS))


def show(row: dict[str, Any]) -> None:
    print(
        f"{row['kilobytes']} kB, load {row['load_before']:.1f} before\n"
        f"{'':<16}{'samples/s':>10} {'CPU ms/1,000':>13} {'ack p50/p99 ms':>15} "
        f"{'we: x as fast':>14} {'x less CPU':>11} {'goal':>6}"
    )
    mine = row["roll"]
    for name in ("roll", *PEERS):
        got = row[name]
        if "error" in got:
            print(f"{name:<16}not measured: {got['error']}")
            continue
        line = (
            f"{name:<16}{got['samples_per_second']:>10,.0f} "
            f"{got['transport_cpu_ms_per_1000']:>13.0f} "
            f"{got['ack_p50_ms']:>8.0f} /{got['ack_p99_ms']:>5.0f}"
        )
        if name != "roll":
            faster = mine["samples_per_second"] / got["samples_per_second"]
            cheaper = got["transport_cpu_ms_per_1000"] / mine["transport_cpu_ms_per_1000"]
            line += f" {faster:>13.1f}x {cheaper:>10.1f}x {GOALS[name]:>5}x"
        print(line, flush=True)


if __name__ == "__main__":
    main()
