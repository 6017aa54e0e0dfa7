"""Checkpoints in an object store: a real S3 server, which is stopped, robbed and given wrong keys."""

import json
import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from roll_api import RLJob
from roll_wire.ports import free_port
from roll_wire.trainer_pb2 import Checkpoint
from roll_workers import __main__ as entry
from roll_workers.errors import Unreachable, UserError
from roll_workers.runtime.config import WorkerConfig
from roll_workers.runtime.trainer_session import TrainerSession
from roll_workers.trainer import replay
from roll_workers.trainer.checkpoint import CheckpointStore, bucket, place_of
from roll_workers.trainer.loop import Trainer
from roll_workers.trainer.strategies.torch import TorchStrategy
from support.s3 import S3Server
from test_lost_ledger import Forgetful
from trainer_world import FACTS, Scheduler, job

pytestmark = pytest.mark.object_store

URI = "s3://bucket/team/a"
OURS = "team/a/j/uid"
SECONDS = 200


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "PATIENCE", 0.0)


@pytest.fixture
def strategy(model_folder: Path) -> TorchStrategy:
    made = TorchStrategy(0, 1)
    made.load(model_folder, job(model_folder).spec)
    return made


@pytest.fixture
def store(s3: S3Server, strategy: TorchStrategy, tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(place_of(tmp_path / "disk", URI, "j/uid", 0), strategy, 0)


def train(scheduler: Scheduler, of: RLJob, attempt: int = 0) -> None:
    config = scheduler.config(attempt)
    config.spec.write_text(of.to_json())
    with TrainerSession(config) as session:
        trainer = Trainer(config, of, session, output=scheduler.storage)
        try:
            trainer.run()
        finally:
            trainer.close()


def save(store: CheckpointStore, step: int) -> Checkpoint:
    saved = store.save(FACTS, step=step, term=1)
    return Checkpoint(step=step, lineage=1, path=saved.path, digest=saved.digest)


def with_uri(model: Path, uri: str, **spec: Any) -> RLJob:
    return job(model, storage={"uri": uri}, **spec)


@pytest.mark.parametrize("kind", ["s3", "file"])
def test_a_trainer_whose_disk_is_gone_goes_on_with_the_same_bits(
    s3: S3Server,
    schedulers: Callable[..., Scheduler],
    model_folder: Path,
    kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    uri = URI if kind == "s3" else f"file://{s3.bucket}/team/a"
    scheduler, undisturbed = schedulers("run"), schedulers("undisturbed")
    train(undisturbed, job(model_folder, steps=6))
    train(scheduler, with_uri(model_folder, uri, steps=4))
    steps = {name.split("/")[1] for name in s3.names(OURS) if "/" in name}
    assert steps == {"step-000002-t1", "step-000004-t1"}, "checkpoint 0 went as keepLast says"
    assert not list((scheduler.storage / "checkpoints").rglob("*.pt")), "nothing stays on the disk"

    if kind == "s3":
        shutil.rmtree(scheduler.storage)
        scheduler.storage.mkdir()
    train(scheduler, with_uri(model_folder, uri, steps=6), attempt=1)
    assert scheduler.rewinds == [0, 4]
    assert scheduler.versions[-1] == undisturbed.versions[-1]
    assert [row["step"] for row in scheduler.figures()] == [1, 2, 3, 4, 5, 6]

    oldest_first = scheduler.checkpoints[::-1]
    assert replay.replay(scheduler.config(attempt=2), oldest_first) == 0
    assert json.loads(capsys.readouterr().out)["equal"]


def test_a_lost_ledger_and_a_lost_disk_are_no_lost_job(
    s3: S3Server, tmp_path: Path, model_folder: Path
) -> None:
    scheduler = Forgetful(tmp_path / "run")
    try:
        train(scheduler, with_uri(model_folder, URI))
        shutil.rmtree(scheduler.storage)
        scheduler.storage.mkdir()
        scheduler.lose()
        train(scheduler, with_uri(model_folder, URI, steps=6), attempt=1)
    finally:
        scheduler.stop()
    assert scheduler.rewound is not None
    assert (scheduler.rewound.step, scheduler.rewound.bookmark) == (4, "batch 4")
    steps = {name.split("/")[1] for name in s3.names(OURS) if "/" in name}
    assert steps == {"step-000004-t1001", "step-000006-t1001"}


def test_an_upload_that_broke_off_is_no_checkpoint_and_is_cleared_away(
    s3: S3Server, store: CheckpointStore
) -> None:
    whole = save(store, 2)
    save(store, 4)
    (s3.bucket / OURS / "checkpoints/step-000004-t1/manifest.json").unlink()
    assert [c.step for c in store.found("uid")] == [2]
    store.remove_leftovers([whole], term=2)
    assert {name.split("/")[1] for name in s3.names(OURS)} == {"step-000002-t1"}


def test_a_file_that_did_not_arrive_leaves_the_checkpoint_without_its_manifest(
    s3: S3Server, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = bucket.Bucket._upload

    def half(self: bucket.Bucket, source: Path, target: str) -> None:
        if target.endswith("optimizer.pt"):
            source.write_bytes(source.read_bytes()[:-1])
        upload(self, source, target)

    monkeypatch.setattr(bucket.Bucket, "_upload", half)
    with pytest.raises(Unreachable, match=r"optimizer\.pt was uploaded and is not there whole"):
        save(store, 2)
    assert "checkpoints/step-000002-t1/manifest.json" not in s3.names(OURS)


@pytest.mark.parametrize("file", ["model/model.safetensors", "optimizer.pt", "manifest.json"])
@pytest.mark.parametrize("missing", [True, False])
def test_what_was_damaged_in_the_store_is_noticed_and_the_one_before_taken(
    s3: S3Server, store: CheckpointStore, file: str, missing: bool
) -> None:
    vouched = [save(store, 4), save(store, 2)]
    path = s3.bucket / OURS / "checkpoints/step-000004-t1" / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink() if missing else path.write_bytes(content)
    newest, _ = store.restore_first(vouched)
    assert newest is not None and newest.step == 2


def test_a_store_that_does_not_answer_is_not_one_that_lost_something(
    s3: S3Server, strategy: TorchStrategy, tmp_path: Path
) -> None:
    store, second, third = (
        CheckpointStore(place_of(tmp_path / name, URI, "j/uid", 0), strategy, 0)
        for name in ("disk", "second", "third")
    )
    vouched = [save(store, 4), save(store, 2)]
    s3.stop()
    with ThreadPoolExecutor() as pool:  # each tries for the six seconds of the store's library
        restored = pool.submit(store.restore_first, vouched)
        saved = pool.submit(save, second, 6)
        removed = pool.submit(third.remove, [vouched[0].path])
    with pytest.raises(Unreachable, match="s3://bucket/team/a can't be reached"):
        restored.result()
    with pytest.raises(Unreachable, match="can't write the checkpoint of step 6 to s3://bucket"):
        saved.result()
    removed.result()  # is left for later, and said
    s3.start()
    newest, _ = store.restore_first(vouched)
    assert newest is not None and newest.step == 4


def test_a_store_that_comes_back_within_a_minute_is_waited_for(
    s3: S3Server, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "PATIENCE", 60.0)
    s3.stop()
    mended = threading.Timer(2.0, s3.start)
    mended.start()
    save(store, 2)
    mended.join()
    assert [c.step for c in store.found("uid")] == [2]


@pytest.mark.parametrize(
    ("uri", "env", "says"),
    [
        ("s3://nowhere/a", {}, "s3://nowhere/a: the bucket does not exist"),
        (URI, {"AWS_SECRET_ACCESS_KEY": "x"}, "the secret does not belong to the access key"),
        (URI, {"AWS_ACCESS_KEY_ID": "x"}, "the store refuses: .*No user exists"),
        (URI, {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "has no credentials, or"),
        ("ftp://host/a", {}, r"ftp:// is no store that a worker knows: s3, gs, .* file"),
        ("file://a/b", {}, "names no absolute path: write file:///path"),
        ("s3://bucket/a?colour=red", {}, "Unexpected query parameter in S3 URI: 'colour'"),
    ],
)
def test_what_the_author_has_to_mend_is_said_in_one_sentence(
    s3: S3Server,
    strategy: TorchStrategy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uri: str,
    env: dict[str, str],
    says: str,
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=says) as raised:
        save(CheckpointStore(place_of(tmp_path / "disk", uri, "j/uid", 0), strategy, 0), 0)
    assert "\n" not in str(raised.value)


def test_a_bucket_that_amazon_does_not_know_is_no_outage() -> None:
    """Its region is looked for first: Arrow's own words for a bucket without one."""
    assert isinstance(bucket._judged(URI, OSError("Bucket 'bucket' not found")), UserError)


@pytest.mark.parametrize(
    ("uri", "endpoint", "code", "says"),
    [
        ("s3://nowhere/a", None, 2, "the bucket does not exist"),
        (URI, "http://127.0.0.1:9", 4, "can't be reached"),
    ],
)
def test_how_a_process_ends_says_whether_a_restart_may_help(
    s3: S3Server,
    scheduler: Scheduler,
    model_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    uri: str,
    endpoint: str | None,
    code: int,
    says: str,
) -> None:
    if endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    config = scheduler.config()
    config.spec.write_text(with_uri(model_folder, uri).to_json())
    monkeypatch.setattr(WorkerConfig, "from_env", lambda: config)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert entry.main() == code
    said = capsys.readouterr().err
    assert says in said.splitlines()[-1] and "Traceback" not in said


@pytest.mark.slow
def test_two_ranks_without_a_common_disk_save_and_come_back(
    s3: S3Server, schedulers: Callable[..., Scheduler], model_folder: Path, tmp_path: Path
) -> None:
    scheduler = schedulers("run", world=2)

    def run(of: RLJob, attempt: int) -> None:
        port = free_port()
        disks = [tmp_path / f"disk-{attempt}-{rank}" for rank in (0, 1)]
        ranks = [
            scheduler.start_worker(of, attempt, rank, port, ROLL_STORAGE=str(disks[rank]))
            for rank in (0, 1)
        ]
        assert [r.wait(SECONDS) for r in ranks] == [0, 0], scheduler.worker_log(attempt, 1)

    run(with_uri(model_folder, URI, steps=2), 0)
    assert "checkpoints/step-000002-t1/rng-00001.pt" in s3.names(OURS)
    run(with_uri(model_folder, URI, steps=4), 1)
    assert scheduler.rewinds == [0, 2]
    assert scheduler.checkpoints[0].step == 4
