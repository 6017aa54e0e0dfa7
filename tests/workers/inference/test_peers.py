"""An engine that comes while the trainer is away gets the weights from another one: real processes, a real scheduler."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from roll_wire import trainer_pb2
from roll_wire.session_pb2 import PolicyVersion
from roll_workers.builtin.models import resolve_model
from roll_workers.runtime.health import Services
from roll_workers.weights import publish, serve_weights
from safetensors.torch import load_file
from scheduler import config_for
from support.scheduler_process import JOB_UID, Peer, Scheduler

pytestmark = pytest.mark.slow
SECONDS = 200.0  # a busy machine takes long to import torch


class Trainer:
    """Publishes version 0, and serves it from a folder that nobody else sees."""

    def __init__(self, scheduler: Scheduler, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.services = Services(config_for(0, folder), serve_weights(folder / "weights"))
        self._do(self.services.start())
        peer = Peer(scheduler, "trainer", world=1)
        who = trainer_pb2.TrainerId(job_uid=JOB_UID, term=peer.expect("welcome").trainer_term)
        scheduler.trainer.Rewind(trainer_pb2.RewindRequest(trainer=who, step=0))
        [weights] = resolve_model("builtin:tiny-qwen2", folder, folder).glob("*.safetensors")
        manifest = publish(folder / "weights", (1, 0), load_file(weights), term=1)
        scheduler.trainer.PublishVersion(
            trainer_pb2.Publication(
                trainer=who,
                version=PolicyVersion(lineage=1, number=0),
                manifest_digest=manifest.digest,
                locations=[f"grpc:{self.services.address}"],
            )
        )

    def stop(self) -> None:
        self._do(self.services.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _do(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(SECONDS)


class Engine:
    def __init__(self, scheduler: Scheduler, index: int) -> None:
        folder = scheduler.folder / f"engine-{index}"
        folder.mkdir()
        told = {
            "ROLL_JOB": "sums",
            "ROLL_JOB_UID": JOB_UID,
            "ROLL_ROLE": "inference",
            "ROLL_INDEX": str(index),
            "ROLL_POD": f"sums-inference-{index}",
            "ROLL_POD_UID": f"uid-{index}",
            "ROLL_SCHEDULER": scheduler.address,
            "ROLL_SPEC": str(scheduler.folder / "job.json"),
            "ROLL_STORAGE": str(folder),
            "OMP_NUM_THREADS": "1",
        }
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "roll_workers"], env=os.environ | told, stderr=log
            )

    def holds(self, version: int) -> None:
        deadline = time.monotonic() + SECONDS
        while f"holds version {version} of lineage 1" not in self.log.read_text():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Scheduler]:
    scheduler = Scheduler(tmp_path).start()
    yield scheduler
    scheduler.close()


def test_an_engine_gets_the_weights_from_another_one_while_the_trainer_is_away(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    trainer = Trainer(scheduler, tmp_path)
    engines = [Engine(scheduler, 0)]
    try:
        engines[0].holds(0)
        trainer.stop()
        engines.append(Engine(scheduler, 1))
        engines[1].holds(0)
    finally:
        for engine in engines:
            engine.process.kill()
            engine.process.wait()
    assert "UNAVAILABLE" in engines[1].log.read_text(), "it asked the trainer first"
