"""One whole job as YAML, for reviewers: `python tests/operator/objects/test_golden.py` writes it anew."""

import io
from pathlib import Path
from typing import Any

from roll_api import RLJob, load_job
from roll_operator.plan import Observed, StartPod, plan
from roll_operator.plan.objects import Cluster, pod, site, support
from ruamel.yaml import YAML
from ruamel.yaml.representer import RoundTripRepresenter

GOLDEN = Path(__file__).with_name("arithmetic.yaml")
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "arithmetic.yaml"


class Plain(RoundTripRepresenter):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def rendered() -> str:
    job = load_job(EXAMPLE, cluster=True)
    job = job.model_copy(
        update={"metadata": job.metadata.model_copy(update={"uid": "00000000-0000-4000-8000-000000000000"})}
    )  # fmt: skip
    cluster = Cluster(
        operator_image="roll-operator:dev",
        worker_image="roll-worker:dev",
        operator_namespace="roll-system",
        operator_identity="system:serviceaccount:roll-system:roll-operator",
        pod_group_api="scheduling.k8s.io/v1alpha2",
    )
    actions = plan(job, Observed(), 1.0, site(job, cluster)).actions
    starts = [action for action in actions if isinstance(action, StartPod)]
    objects = [*support(job, cluster), *(pod(job, start, cluster, 1) for start in starts)]
    text = io.StringIO()
    yaml = YAML()
    yaml.Representer = Plain
    yaml.width = 110
    yaml.explicit_start = True
    text.write(f"# {EXAMPLE.relative_to(EXAMPLE.parents[1])} on a cluster, as {Path(__file__).name} wrote it.\n")  # fmt: skip
    yaml.dump_all([*objects], text)
    return text.getvalue()


def test_the_example_becomes_these_objects() -> None:
    assert GOLDEN.read_text(encoding="utf-8") == rendered(), f"run: python {__file__}"


def test_the_example_is_told_to_its_pods() -> None:
    loaded = YAML(typ="safe", pure=True).load_all(GOLDEN)
    (told,) = (o["data"]["job.json"] for o in loaded if o["kind"] == "ConfigMap")
    read, written = RLJob.from_json(told).spec, load_job(EXAMPLE).spec
    for part in ("model", "data", "algorithm", "rollout", "rewards", "checkpoint", "seed", "steps"):
        assert getattr(read, part) == getattr(written, part)


if __name__ == "__main__":
    GOLDEN.write_text(rendered(), encoding="utf-8")
