"""`roll submit`: a job and the files that it names, trained in pods."""

import json
import shutil
from pathlib import Path

from roll_cluster.project import REPOSITORY
from support.kubernetes import Kubernetes, Manifest, eventually, roll
from support.rljobs import Job

EXAMPLE = REPOSITORY / "examples" / "custom_reward"
FIRST = "1.0"
"""A sample: the first one of the first group."""
ANOTHER = "def score(response: str) -> float:\n    return 0.25\n"


def test_the_files_of_a_job_are_those_that_it_was_started_with(
    operator: Kubernetes, namespace: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(EXAMPLE, tmp_path / "example"))
    # Many checkpoints are kept: what was said in samples before the oldest one is not.
    written = (EXAMPLE / "job.yaml").read_text() + "  checkpoint: {keepLast: 100}\n"
    file = folder / "job.yaml"
    assert "steps: 100\n" in written

    def submit(steps: int) -> tuple[int, str]:
        file.write_text(written.replace("steps: 100\n", f"steps: {steps}\n"))
        said = roll(operator, "submit", file, "-n", namespace)
        return said.returncode, said.stdout + said.stderr

    job = Job(operator, namespace, "custom-reward")
    endless = 1_000_000
    code, said = submit(endless)
    assert code == 0 and "1 file" in said, said
    job.until("trains", lambda status: status.get("step", 0) > 0)
    _tells_all_of_a_sample(job)

    (folder / "rewards.py").write_text(ANOTHER)
    code, said = submit(endless)
    assert code == 2 and "Running with other files" in said and "suspend" in said, said
    job.patch({"suspend": True})
    job.until_phase("Suspended")
    steps = job.status()["step"] + 5
    code, said = submit(steps)
    assert code == 0, said
    assert job.status()["phase"] == "Suspended"
    job.patch({"suspend": False})
    job.until_phase("Succeeded", 240)

    status = job.status()
    assert (status["step"], job.restarts()) == (steps, {})
    assert status["reward"] == 0.25  # by the new function
    left = operator.get("configmaps", "-n", namespace)["items"]
    sources = [m["metadata"]["name"] for m in left if "-source-" in m["metadata"]["name"]]
    digest = job.object()["metadata"]["annotations"]["roll.dev/source"]
    eventually("one set of files", lambda: sources == [f"custom-reward-source-{digest[:16]}"], 1)


def _tells_all_of_a_sample(job: Job) -> None:
    """From the scheduler's pod, while the job runs: its story from the process, its text from the ledger."""
    asked = ("samples", job.name, "-n", job.namespace, "--id", FIRST, "--format", "json")
    story: Manifest = {}

    def ended() -> bool:
        said = roll(job.cluster, *asked)
        assert said.returncode == 0, said.stderr
        story.update(json.loads(said.stdout))
        return str(story["state"]).startswith(("trained", "committed", "evaluated"))

    eventually("the first sample has ended", ended)
    prompt, response = story["said"]  # in tokens: the scheduler's image has no tokenizer
    assert (prompt["kind"], response["kind"]) == ("prompt", "response")
    assert prompt["tokens"] == len(story["row"]["prompt"])
    parts = story["rewardParts"]
    assert parts.keys() == {"mine", "mine.right", "mine.near", "mine.short"}
    assert parts["mine"] == story["reward"]
    workers = [(e["what"], e["worker"].rpartition("-")[0]) for e in story["events"]]
    roles = {"reset": "environment", "generate": "inference", "score": "reward"}
    assert workers[1:4] == [(stage, f"{job.name}-{role}") for stage, role in roles.items()]
