"""A run whose checkpoints lie in an object store."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from roll_cluster import ClusterError
from support.s3 import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    try:
        server = S3Server(tmp_path / "s3")
    except ClusterError as error:
        pytest.skip(f"tests on an S3 server left out: {error}")
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    server.start()
    yield server
    server.stop()


def test_a_killed_trainer_comes_back_from_the_store_and_the_run_replays(
    workshop: Any, s3: S3Server
) -> None:
    changes = {"spec": {"steps": 20, "storage": {"uri": "s3://bucket/runs"}}}
    run = workshop.start(workshop.write_job(changes))
    run.wait_for_step(11)
    run.kill("small-trainer-0")
    assert run.finish() == 0, run.err
    summary = run.summary()
    assert (summary["restarts"]["trainer"], summary["checkpoint"]) == (1, 20)
    assert (summary["samples"]["lost"], summary["samples"]["trainedTwice"]) == (0, 0)
    assert "in s3://bucket/runs: checkpoints" in run.out
    assert not list((run.folder / "checkpoints").rglob("*.pt"))
    kept = {name.split("/")[4] for name in s3.names("") if name.endswith("manifest.json")}
    assert {name[:11] for name in kept} == {"step-000000", "step-000010", "step-000020"}

    replayed = workshop.roll("replay", str(run.folder))
    assert replayed.returncode == 0 and "equal, bit for bit" in replayed.stdout, replayed.stderr
    moved = workshop.write_job({"spec": {"steps": 30, "storage": {"uri": "s3://bucket/other"}}})
    refused = workshop.start(moved)
    assert refused.finish() == 2
    assert "spec.storage.uri: was 's3://bucket/runs', now 's3://bucket/other'" in refused.err
