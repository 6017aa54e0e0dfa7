"""Real trainer processes: killed, drained, and two of them as one."""

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
import torch
from roll_wire.channel import CLIENT_OPTIONS
from roll_wire.ports import free_port
from roll_wire.session_pb2 import PolicyVersion
from roll_wire.weights_pb2 import FetchRequest, ManifestRequest
from roll_wire.weights_pb2_grpc import WeightsStub
from roll_workers.trainer.checkpoint import verify
from safetensors.torch import load_file
from trainer_world import Scheduler, job

pytestmark = pytest.mark.slow
SECONDS = 200  # a busy machine takes long to import torch
Schedulers = Callable[..., Scheduler]


def test_a_killed_trainer_and_its_successor_end_with_the_bits_of_an_undisturbed_one(
    schedulers: Schedulers, model_folder: Path
) -> None:
    of = job(model_folder, steps=6)
    killed, undisturbed = schedulers("a"), schedulers("b")
    killed.last_batch = 3
    first = killed.start_worker(of)
    other = undisturbed.start_worker(of)
    killed.wait_for(lambda: "report 3" in killed.log, SECONDS)
    first.kill()
    assert first.wait(SECONDS) == -signal.SIGKILL
    killed.last_batch = 6
    assert killed.start_worker(of, attempt=1).wait(SECONDS) == 0, killed.worker_log(1)
    assert other.wait(SECONDS) == 0, undisturbed.worker_log()

    assert killed.rewinds == [0, 2]
    trained = [(term, step) for term, step, _ in killed.reports]
    assert trained == [(1, 1), (1, 2), (1, 3), (2, 3), (2, 4), (2, 5), (2, 6)]
    assert killed.versions[-1] == undisturbed.versions[-1]


def test_a_drained_trainer_keeps_its_last_step_and_exits_well(
    scheduler: Scheduler, model_folder: Path
) -> None:
    of = job(model_folder, steps=9, checkpoint={"everySteps": 100})
    scheduler.last_batch = 3
    worker = scheduler.start_worker(of)
    scheduler.wait_for(lambda: scheduler.log.count("acquire 4") > 1, SECONDS)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(SECONDS) == 0, scheduler.worker_log()
    newest = scheduler.checkpoints[0]
    assert newest.step == 3
    verify(scheduler.storage / newest.path, newest.digest)


def test_a_trainer_stays_with_its_last_version_until_the_job_is_over(
    scheduler: Scheduler, model_folder: Path
) -> None:
    scheduler.validated = False
    worker = scheduler.start_worker(job(model_folder, steps=2))
    scheduler.wait_for(lambda: "commit 2" in scheduler.log, SECONDS)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(1.5)
    scheduler.validated = True
    assert worker.wait(SECONDS) == 0, scheduler.worker_log()


def test_a_receiver_that_stopped_reading_does_not_hold_up_the_trainer(
    scheduler: Scheduler, model_folder: Path
) -> None:
    scheduler.last_batch, scheduler.validated = (
        0,
        False,
    )  # it serves version 0, and stays at the end
    weights = {"transfer": "Stream", "keep": 1}
    worker = scheduler.start_worker(job(model_folder, steps=4, weights=weights))
    scheduler.wait_for(lambda: scheduler.address and "acquire 1" in scheduler.log, SECONDS)
    version = PolicyVersion(lineage=1, number=0)
    narrow = [*CLIENT_OPTIONS, ("grpc.http2.bdp_probe", 0)]  # no room for all of it on the way
    with grpc.insecure_channel(scheduler.address, options=narrow) as channel:
        manifest = WeightsStub(channel).GetManifest(ManifestRequest(version=version))
        [file] = manifest.files
        stream = WeightsStub(channel).Fetch(FetchRequest(version=version, file=file.name))
        received = next(stream).data
        scheduler.last_batch = 4
        scheduler.wait_for(lambda: "commit 4" in scheduler.log, SECONDS)
        assert any(
            "l1-v000000" in name and name.endswith("(deleted)") for name in open_files(worker.pid)
        ), "it still serves what it has removed, so the receiver did hang"
        received += b"".join(chunk.data for chunk in stream)
    assert len(received) == file.size, "and whoever goes on reading gets all of it"


def open_files(pid: int) -> list[str]:
    names = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            names.append(os.readlink(file))
    return names


def test_two_ranks_train_what_one_trains(schedulers: Schedulers, model_folder: Path) -> None:
    algorithm = {"learningRate": 1e-4, "entropy": 0.01, "lossAggregation": "seq-mean-token-mean"}
    one, two = schedulers("one"), schedulers("two", world=2)
    of = job(model_folder, algorithm=algorithm)
    alone = one.start_worker(of)
    port = free_port()
    ranks = [two.start_worker(of, rank=rank, master_port=port) for rank in (0, 1)]
    assert alone.wait(SECONDS) == 0, one.worker_log()
    assert [rank.wait(SECONDS) for rank in ranks] == [0, 0], two.worker_log() + two.worker_log(0, 1)

    assert two.log.count("report 4") == 1 and two.log.count("commit 4") == 1
    same = ("actor/pg_loss", "actor/grad_norm", "critic/entropy/mean", "critic/rewards/mean")
    for ours, theirs in zip(two.figures(), one.figures(), strict=True):
        assert {k: ours[k] for k in same} == pytest.approx({k: theirs[k] for k in same}, rel=1e-3)
        assert ours["system/samples"] == theirs["system/samples"]
    assert two.checkpoints[0].step == 4
    folders = [s.storage / s.checkpoints[0].path for s in (one, two)]
    assert (folders[1] / "rng-00001.pt").exists()
    weights = [load_file(folder / "model" / "model.safetensors") for folder in folders]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=2e-4)


def test_a_missing_model_is_the_users_error(scheduler: Scheduler, tmp_path: Path) -> None:
    worker = scheduler.start_worker(job(tmp_path / "nowhere"))
    assert worker.wait(SECONDS) == 2
    assert scheduler.worker_log().splitlines()[-1].startswith("error: model.path: the model folder")
