"""The life of a sample over a Ray actor and over TransferQueue, for benchmarks/versus_transport.py.

Runs in an environment of its own, which has neither of this project's packages. Both peers keep nothing: a
crash of the actor, or of a storage unit, loses what is under way. Each gets what suits it best: 64 samples
a call, as our messages; the Ray actor is a few deques and knows no leases; TransferQueue gets dense tensors
and never has to wait for rows that are not there. Every payload is an object of its own, as it would be in a
rollout: pickle writes an object that occurs 64 times in a call only once.

    prompts in -> generate: assigned, result stored, acknowledged -> score: the same -> trainer fetches
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

CHUNK = 64  # samples a call
BATCH = 512  # samples the trainer fetches at a time
IN_FLIGHT = 2048
PROMPT, SCORE = 200, 40  # bytes
CLOCK = os.sysconf("SC_CLK_TCK")


def transport_cpu() -> float:
    """CPU seconds of every process below this one: actors, raylet, object store, storage units."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        used[pid] = (int(fields[11]) + int(fields[12])) / CLOCK
    below, total = {os.getpid()}, 0.0
    while found := {p for p, parent in parents.items() if parent in below and p not in below}:
        below |= found
        total += sum(used[p] for p in found)
    return total


class Count:
    def __init__(self) -> None:
        self.trained = 0
        self.acks: list[float] = []


async def measure(count: Count, running: list[Any], seconds: float, warm_up: float) -> None:
    tasks = [asyncio.create_task(each) for each in running]
    await asyncio.sleep(warm_up)
    first, cpu, began = count.trained, transport_cpu(), time.monotonic()
    count.acks = []
    await asyncio.sleep(seconds)
    samples, spent = count.trained - first, time.monotonic() - began
    acks = sorted(count.acks)
    for task in tasks:
        if task.done() and task.exception():
            raise task.exception()
    print(
        json.dumps(
            {
                "samples_per_second": samples / spent,
                "transport_cpu_ms_per_1000": (transport_cpu() - cpu) / max(1, samples) * 1e6,
                "ack_p50_ms": acks[len(acks) // 2] * 1e3 if acks else None,
                "ack_p99_ms": acks[len(acks) * 99 // 100] * 1e3 if acks else None,
            }
        ),
        flush=True,
    )


async def over_ray(size: int, seconds: float, warm_up: float) -> None:
    import ray

    @ray.remote(num_cpus=0)
    class Hub:
        """Samples by number; what waits for which stage."""

        def __init__(self) -> None:
            self.payloads: dict[int, list[bytes]] = {}
            self.generate: deque[int] = deque()
            self.score: deque[int] = deque()
            self.done: deque[int] = deque()
            self.next = 0

        def prompts(self, prompts: list[bytes]) -> None:
            for prompt in prompts:
                self.payloads[self.next] = [prompt]
                self.generate.append(self.next)
                self.next += 1

        def assign(self, stage: str, limit: int) -> list[tuple[int, bytes]]:
            queue = self.generate if stage == "generate" else self.score
            ids = [queue.popleft() for _ in range(min(limit, len(queue)))]
            return [(i, b"".join(self.payloads[i])) for i in ids]

        def result(self, stage: str, results: list[tuple[int, bytes]]) -> int:
            for i, payload in results:
                self.payloads[i].append(payload)
                (self.score if stage == "generate" else self.done).append(i)
            return len(results)

        def fetch(self, limit: int) -> list[bytes]:
            ids = [self.done.popleft() for _ in range(min(limit, len(self.done)))]
            return [b"".join(self.payloads.pop(i)) for i in ids]

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    hub = Hub.remote()
    count, room = Count(), asyncio.Semaphore(IN_FLIGHT // CHUNK)

    def payloads(size: int) -> list[bytes]:
        return [os.urandom(size) for _ in range(CHUNK)]

    prompts = payloads(PROMPT)

    async def environment() -> None:
        while True:
            await room.acquire()
            await hub.prompts.remote(prompts)

    async def worker(stage: str, answers: list[bytes]) -> None:
        while True:
            tasks = await hub.assign.remote(stage, CHUNK)
            if not tasks:
                await asyncio.sleep(0.001)
                continue
            began = time.perf_counter()
            await hub.result.remote(
                stage, [(i, x) for (i, _), x in zip(tasks, answers, strict=False)]
            )
            count.acks += [time.perf_counter() - began] * len(tasks)

    async def trainer() -> None:
        owed = 0
        while True:
            samples = await hub.fetch.remote(CHUNK)
            if not samples:
                await asyncio.sleep(0.001)
            count.trained += len(samples)
            owed += len(samples)
            while owed >= CHUNK:
                owed -= CHUNK
                room.release()

    engines = [worker("generate", payloads(size)) for _ in range(4)]
    scorers = [worker("score", payloads(SCORE)) for _ in range(2)]
    await measure(count, [environment(), *engines, *scorers, trainer()], seconds, warm_up)


async def over_transfer_queue(size: int, seconds: float, warm_up: float) -> None:
    import ray
    import torch
    import transfer_queue
    from tensordict import TensorDict

    torch.set_num_threads(1)
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    transfer_queue.init()
    client = transfer_queue.get_client()
    count = Count()

    def column(rows: int, width: int) -> Any:
        return torch.randint(0, 255, (rows, width), dtype=torch.uint8)

    response, score = column(CHUNK, size), column(CHUNK, SCORE)

    async def stage(partition: str, name: str, needs: list[str], adds: dict[str, Any]) -> None:
        meta = await client.async_get_meta(needs, CHUNK, partition, task_name=name)
        await client.async_get_data(meta)
        began = time.perf_counter()
        await client.async_put(TensorDict(adds, batch_size=CHUNK), metadata=meta)
        count.acks += [time.perf_counter() - began] * CHUNK

    async def lives(lane: int) -> None:
        """Batch after batch: every sample is generated, scored and fetched; then it is cleared."""
        n = 0
        while True:
            n += 1
            partition = f"{lane}-{n}"
            prompts = TensorDict({"prompt": column(BATCH, PROMPT)}, batch_size=BATCH)
            await client.async_put(prompts, partition_id=partition)
            for _ in range(BATCH // CHUNK):
                await stage(partition, "generate", ["prompt"], {"response": response})
            for _ in range(BATCH // CHUNK):
                await stage(partition, "score", ["prompt", "response"], {"score": score})
            fields = ["prompt", "response", "score"]
            meta = await client.async_get_meta(fields, BATCH, partition, task_name="train")
            count.trained += len(await client.async_get_data(meta))
            await client.async_clear_partition(partition)

    lanes = [lives(lane) for lane in range(IN_FLIGHT // BATCH)]
    await measure(count, lanes, seconds, warm_up)


if __name__ == "__main__":
    peer, kilobytes, seconds, warm_up = sys.argv[1:]
    run = {"ray": over_ray, "TransferQueue": over_transfer_queue}[peer]
    asyncio.run(run(int(kilobytes) * 1000, float(seconds), float(warm_up)))
    os._exit(0)  # what was started ends with its driver; nothing is worth a slow farewell
