"""Stand-ins for the processes of a job, to drive the controller alone: real processes, real gRPC, no training.

`python fake_job.py scheduler|worker`. The scheduler makes `STEPS_PER_SECOND` steps, remembers them in a file as
the ledger would, and calls those workers ready whose pods it was told of. What a worker does is in `FAKE_<ROLE>`.
"""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

LEDGER = Path(os.environ["ROLL_STORAGE"]) / "ledger"
STEPS_PER_SECOND = float(os.environ.get("FAKE_SPEED", "20"))


def scheduler() -> None:
    import grpc.aio
    from roll_wire import control_pb2, control_pb2_grpc

    job = json.loads(Path(os.environ["ROLL_SPEC"]).read_text())
    steps = job["spec"]["steps"]
    LEDGER.mkdir(exist_ok=True)
    memory = LEDGER / "fake-step"
    begun_at = time.monotonic()
    first = float(memory.read_text()) if memory.exists() else 0.0
    pods: dict[str, str] = {}

    class Control(control_pb2_grpc.ControlServicer):
        async def SyncPods(self, request, context):  # type: ignore[no-untyped-def]
            pods.clear()
            pods.update({pod.uid: pod.role for pod in request.current})
            with (LEDGER / "fake-sync.jsonl").open("a") as file:
                told = {"pid": os.getpid(), "current": list(pods), "gone": list(request.gone)}
                file.write(json.dumps(told) + "\n")
            return control_pb2.PodsReply()

        async def GetProgress(self, request, context):  # type: ignore[no-untyped-def]
            begun = first + (time.monotonic() - begun_at) * STEPS_PER_SECOND
            memory.write_text(str(begun))
            step = min(steps, int(begun))
            workers = [
                control_pb2.WorkerState(pod_uid=uid, role=role, connected=True, ready=True)
                for uid, role in pods.items()
            ]
            return control_pb2.JobProgress(
                step=step,
                steps=steps,
                checkpoint=step - 1,
                reward=step / steps,
                samples_per_second=100.0,
                samples={"leased": 8},
                workers=workers,
                finished=step >= steps,
                has_validation=True,
                validation_first=0.1,
                validation_last=0.9,
                validation_step=20,
            )

    async def serve() -> None:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        control_pb2_grpc.add_ControlServicer_to_server(Control(), server)
        server.add_insecure_port(os.environ["ROLL_LISTEN"])
        await server.start()
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        await ended.wait()
        await server.stop(0)

    asyncio.run(serve())


def worker() -> None:
    role = os.environ["ROLL_ROLE"]
    what = os.environ.get(f"FAKE_{role.upper()}", "")
    if what == "bad-input":
        print("error: train.jsonl:7: this line is not JSON", file=sys.stderr)
        sys.exit(2)
    if what == "crash":
        raise RuntimeError("out of luck")
    if what == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"{role} works", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    {"scheduler": scheduler, "worker": worker}[sys.argv[1]]()
