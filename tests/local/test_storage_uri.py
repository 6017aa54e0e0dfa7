"""A run whose checkpoints lie in an object store."""

import json
from typing import Any

import pytest
from support.s3 import S3Server

pytestmark = [pytest.mark.object_store, pytest.mark.slow, pytest.mark.timeout(500)]


def test_a_killed_trainer_comes_back_from_the_store_and_the_run_replays(
    workshop: Any, s3: S3Server
) -> None:
    changes = {"spec": {"steps": 80, "storage": {"uri": "s3://bucket/runs"}}}
    run = workshop.start(workshop.write_job(changes))
    run.wait_for_step(11)
    live = json.loads(workshop.roll("status", str(run.folder), "-o", "json").stdout)
    assert (live["samples"]["lost"], live["samples"]["trainedTwice"]) == (0, 0), live
    run.kill("small-trainer-0")
    assert run.finish() == 0, run.err
    summary = run.summary()
    assert (summary["restarts"]["trainer"], summary["checkpoint"]) == (1, 80)
    assert (summary["samples"]["lost"], summary["samples"]["trainedTwice"]) == (0, 0)
    assert "in s3://bucket/runs: checkpoints" in run.out
    assert not list((run.folder / "checkpoints").rglob("*.pt"))
    kept = {name.split("/")[4] for name in s3.names("") if name.endswith("manifest.json")}
    assert {name[:11] for name in kept} == {"step-000060", "step-000070", "step-000080"}

    replayed = workshop.roll("replay", str(run.folder))
    assert replayed.returncode == 0 and "equal, bit for bit" in replayed.stdout, replayed.stderr
    moved = workshop.write_job({"spec": {"steps": 90, "storage": {"uri": "s3://bucket/other"}}})
    refused = workshop.start(moved)
    assert refused.finish() == 2
    assert "spec.storage.uri: was 's3://bucket/runs', now 's3://bucket/other'" in refused.err
