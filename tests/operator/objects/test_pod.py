"""The pod of each role: names, identity, environment, files, security."""

import json
from dataclasses import replace
from typing import Any

import pytest
from roll_api import ROLE_NAMES, RLJob, spec_hash
from roll_operator.plan import Observed, StartPod, plan
from roll_operator.plan.desired import ROLES, grace_of
from roll_operator.plan.objects import Manifest, pod, site, support
from support.job_objects import CLUSTER, env_of, everything, find, make_job, pod_of, pods, starts
from support.pod_security import violations

JOB = make_job()
PODS = pods(JOB)
GPUS = {"count": 8, "products": ["NVIDIA-H100-80GB-HBM3"], "minMemoryMiB": 80_000}


def test_every_pod_has_a_stable_name_in_the_jobs_domain() -> None:
    assert list(PODS) == [
        "sums-scheduler-0",
        "sums-trainer-0",
        "sums-inference-0",
        "sums-inference-1",
        "sums-reward-0",
        "sums-environment-0",
    ]
    for name, manifest in PODS.items():
        spec = manifest["spec"]
        assert (spec["hostname"], spec["subdomain"]) == (name, "sums")
        assert env_of(manifest)["ROLL_HOST"] == f"{name}.sums.team.svc"


def test_every_object_belongs_to_the_job_and_says_so() -> None:
    for manifest in everything(JOB):
        metadata = manifest["metadata"]
        (owner,) = metadata["ownerReferences"]
        assert metadata["namespace"] == "team"
        assert (owner["kind"], owner["name"], owner["uid"]) == ("RLJob", "sums", "4f6e")
        assert owner["controller"] is True
        assert metadata["labels"]["roll.dev/job"] == "sums"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "roll-operator"
        assert metadata["labels"]["app.kubernetes.io/name"] == "rljob"


def test_a_pod_says_its_role_index_attempt_and_spec() -> None:
    manifest = pods(JOB, attempt=3)["sums-inference-1"]
    labels = manifest["metadata"]["labels"]
    assert labels["roll.dev/role"] == "inference"
    assert labels["roll.dev/index"] == "1"
    assert labels["roll.dev/attempt"] == "3"
    assert manifest["metadata"]["annotations"]["roll.dev/spec-hash"] == spec_hash(JOB)


@pytest.mark.parametrize("role", ROLES)
def test_what_differs_between_the_scheduler_and_workers(role: str) -> None:
    spec = pod_of(JOB, role)["spec"]
    (container,) = spec["containers"]
    scheduler = role == "scheduler"
    assert container["name"] == role
    assert container["image"] == (CLUSTER.operator_image if scheduler else CLUSTER.worker_image)
    package = "roll_operator.scheduler" if scheduler else "roll_workers"
    assert container["command"] == ["python", "-m", package]
    assert spec["restartPolicy"] == ("Always" if scheduler else "Never")
    assert ("livenessProbe" in container) is scheduler
    assert spec["terminationGracePeriodSeconds"] == grace_of(role)


def test_an_inference_pod_is_ready_for_the_cluster_when_its_process_says_so() -> None:
    """Or a drain could take the last one that serves, while another is there and loads its weights."""
    manifest = pod_of(JOB, "inference")
    (container,) = manifest["spec"]["containers"]
    told = env_of(manifest)["ROLL_READY"]
    assert container["readinessProbe"]["exec"]["command"] == ["test", "-f", told]
    writable = [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")]
    assert any(told.startswith(f"{folder}/") for folder in writable)


def test_the_jobs_image_is_the_workers_image() -> None:
    job = make_job({"spec.image": "mine:3"})
    assert pod_of(job, "reward")["spec"]["containers"][0]["image"] == "mine:3"
    assert pod_of(job, "scheduler")["spec"]["containers"][0]["image"] == CLUSTER.operator_image


@pytest.mark.parametrize(
    ("role", "variable", "value"),
    [
        ("scheduler", "ROLL_LISTEN", "[::]:7070"),
        ("scheduler", "ROLL_SOCKET", "/tmp/roll.sock"),
        ("scheduler", "ROLL_OPERATOR", CLUSTER.operator_identity),
        ("scheduler", "ROLL_TLS", "/etc/roll/tls"),
        ("trainer", "ROLL_TLS", "/etc/roll/tls"),
        ("reward", "ROLL_TLS", None),
        ("inference", "ROLL_OPERATOR", None),
        ("inference", "ROLL_SCHEDULER", "sums-scheduler-0.sums.team.svc:7070"),
        ("inference", "ROLL_PORT", "7071"),
        ("inference", "ROLL_METRICS_PORT", "9090"),
        ("inference", "ROLL_SPEC", "/etc/roll/job/job.json"),
        ("inference", "ROLL_TRUST", "/etc/roll/trust"),
        ("inference", "ROLL_TOKEN", "/var/run/secrets/roll/token"),
        ("inference", "ROLL_STORAGE", "/var/lib/roll"),
        ("inference", "ROLL_SOURCE", "/var/lib/roll/source"),
        ("inference", "ROLL_SOURCE_ARCHIVE", None),
        ("inference", "ROLL_JOB_UID", "4f6e"),
        ("inference", "ROLL_ATTEMPT", "0"),
        ("inference", "HOME", "/tmp"),
        ("reward", "ROLL_READY", None),
        ("inference", "MASTER_ADDR", None),
    ],
)
def test_what_a_process_is_told(role: str, variable: str, value: str | None) -> None:
    assert env_of(pod_of(JOB, role)).get(variable) == value


@pytest.mark.parametrize("role", ROLES)
def test_workers_wait_for_the_files_that_came_along_with_their_job(role: str) -> None:
    job = make_job({"metadata.annotations": {"roll.dev/source": "0123456789abcdef" * 4}})
    manifest = pod_of(job, role)
    volumes = [v for v in manifest["spec"]["volumes"] if v["name"] == "roll-archive"]
    archive = env_of(manifest).get("ROLL_SOURCE_ARCHIVE")
    if role == "scheduler":
        assert (volumes, archive) == ([], None)
        return
    assert volumes == [
        {"name": "roll-archive", "configMap": {"name": "sums-source-0123456789abcdef"}}
    ]
    mounts = manifest["spec"]["containers"][0]["volumeMounts"]
    (mount,) = (m for m in mounts if m["name"] == "roll-archive")
    assert archive == f"{mount['mountPath']}/source.tar.gz"
    assert mount["readOnly"] is True


def test_a_job_without_files_mounts_none() -> None:
    for manifest in PODS.values():
        assert "roll-archive" not in {v["name"] for v in manifest["spec"]["volumes"]}


def test_the_uid_of_a_pod_is_the_api_servers() -> None:
    for manifest in PODS.values():
        env = manifest["spec"]["containers"][0]["env"]
        (uid,) = (variable for variable in env if variable["name"] == "ROLL_POD_UID")
        assert uid["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.uid"}}


def test_a_role_has_its_own_variables_which_do_not_replace_the_jobs() -> None:
    job = make_job({"spec.roles.reward.env": {"A": "b", "ROLL_JOB": "x", "HOME": "/root"}})
    env = env_of(pod_of(job, "reward"))
    assert (env["A"], env["ROLL_JOB"], env["HOME"]) == ("b", "sums", "/root")


@pytest.mark.parametrize(
    ("trainer", "ranks", "local"),
    [
        ({"replicas": 1}, ["0/1"], "1"),
        ({"replicas": 2}, ["0/2", "1/2"], "1"),
        ({"replicas": 2, "gpu": {"count": 4}}, ["0/8", "4/8"], "4"),
    ],
)
def test_ranks_find_each_other(trainer: dict[str, Any], ranks: list[str], local: str) -> None:
    job = make_job({"spec.roles.trainer": trainer, "spec.storage": {"claim": "shared"}})
    found = [env_of(p) for name, p in pods(job).items() if "-trainer-" in name]
    assert [f"{env['RANK']}/{env['WORLD_SIZE']}" for env in found] == ranks
    for env in found:
        assert env["MASTER_ADDR"] == "sums-trainer-0.sums.team.svc"
        assert env["MASTER_PORT"] == "29500"
        assert env["LOCAL_WORLD_SIZE"] == local


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("gpu", [None, GPUS])
def test_every_pod_passes_the_restricted_standard(role: str, gpu: dict[str, Any] | None) -> None:
    job = make_job({f"spec.roles.{name}.gpu": gpu for name in ROLE_NAMES})
    manifest = pod_of(job, role)
    assert violations(manifest) == []
    assert manifest["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_judge_of_the_restricted_standard_sees_a_violation() -> None:
    job = make_job({"spec.roles.reward.template": {"spec": {"hostNetwork": True}}})
    assert violations(pod_of(job, "reward")) == ["spec.hostNetwork"]


def test_the_only_token_is_bound_to_the_job() -> None:
    for manifest in PODS.values():
        spec = manifest["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["serviceAccountName"] == "sums"
        tokens = [
            source["serviceAccountToken"]
            for volume in spec["volumes"]
            for source in volume.get("projected", {}).get("sources", [])
            if "serviceAccountToken" in source
        ]
        assert tokens == [{"path": "token", "audience": "roll.dev/4f6e", "expirationSeconds": 3600}]
    assert find(support(JOB, CLUSTER), "ServiceAccount")["automountServiceAccountToken"] is False


def test_every_mount_has_its_volume_and_every_volume_is_mounted() -> None:
    job = make_job({f"spec.roles.{name}.gpu": GPUS for name in ROLE_NAMES})
    for manifest in [*PODS.values(), *pods(job).values()]:
        volumes = [volume["name"] for volume in manifest["spec"]["volumes"]]
        mounts = manifest["spec"]["containers"][0]["volumeMounts"]
        assert sorted(volumes) == sorted(mount["name"] for mount in mounts)
        assert len({mount["mountPath"] for mount in mounts}) == len(mounts)


def volume(manifest: Manifest, name: str) -> Manifest | None:
    found = (v for v in manifest["spec"]["volumes"] if v["name"] == name)
    return next(found, None)


@pytest.mark.parametrize("role", ROLES)
def test_keys_lie_only_where_something_is_served(role: str) -> None:
    tls = volume(pod_of(JOB, role), "roll-tls")
    assert (tls is not None) == (role in ("scheduler", "trainer", "inference"))
    if tls is not None:
        assert tls["secret"]["secretName"] == "sums-tls-7"


def test_what_pods_are_told_has_the_name_of_its_content() -> None:
    config_map = find(support(JOB, CLUSTER), "ConfigMap")
    assert config_map["immutable"] is True
    assert config_map["metadata"]["name"] == f"sums-spec-{spec_hash(JOB)}"
    mounted = volume(PODS["sums-reward-0"], "roll-job")
    assert mounted == {"name": "roll-job", "configMap": {"name": config_map["metadata"]["name"]}}
    read = RLJob.from_json(config_map["data"]["job.json"])
    assert read.spec.model == JOB.spec.model
    assert (read.name, read.metadata.uid) == ("sums", "4f6e")


@pytest.mark.parametrize(
    "change",
    [
        {"spec.roles.inference.replicas": 5},
        {"spec.suspend": True},
        {"spec.failurePolicy": {"maxRestarts": 3}},
        {"metadata.generation": 9, "metadata.labels": {"a": "b"}},
        {"status": {"phase": "Running", "step": 3}},
    ],
)
def test_what_pods_are_told_outlives_changes_that_do_not_concern_them(
    change: dict[str, Any],
) -> None:
    """The ConfigMap cannot be changed, so the same name must mean the same content."""
    before, after = (find(support(job, CLUSTER), "ConfigMap") for job in (JOB, make_job(change)))
    assert after == before


def test_another_spec_is_another_config_map() -> None:
    other = make_job({"spec.steps": 11})
    names = {find(support(job, CLUSTER), "ConfigMap")["metadata"]["name"] for job in (JOB, other)}
    assert len(names) == 2


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {"requests": {"cpu": "100m", "memory": "256Mi"}}),
        ({"requests": {"cpu": "2"}}, {"requests": {"cpu": "2"}}),
        ({"limits": {"memory": "1Gi"}}, {"limits": {"memory": "1Gi"}}),
    ],
)
def test_a_pod_asks_for_what_its_job_says_and_for_little_otherwise(
    given: dict[str, Any], wanted: dict[str, Any]
) -> None:
    manifest = pod_of(make_job({"spec.roles.reward.resources": given}), "reward")
    assert manifest["spec"]["containers"][0]["resources"] == wanted


def test_the_schedulers_resources_are_the_jobs_to_choose() -> None:
    job = make_job({"spec.scheduler.resources": {"requests": {"memory": "4Gi"}}})
    resources = pod_of(job, "scheduler")["spec"]["containers"][0]["resources"]
    assert resources == {"requests": {"memory": "4Gi"}}


def test_pods_are_pulled_with_the_operators_secrets_and_run_with_the_jobs_priority() -> None:
    cluster = replace(CLUSTER, pull_secrets=("registry",), pull_policy="Always")
    job = make_job({"spec.scheduling.priorityClass": "high"})
    for manifest in pods(job, cluster).values():
        assert manifest["spec"]["imagePullSecrets"] == [{"name": "registry"}]
        assert manifest["spec"]["containers"][0]["imagePullPolicy"] == "Always"
        assert manifest["spec"]["priorityClassName"] == "high"


def test_the_same_start_gives_the_same_pod() -> None:
    """A create whose answer was lost is made again under the same name."""
    for start in starts(JOB):
        first, second = (pod(JOB, start, CLUSTER, "7") for _ in range(2))
        assert json.dumps(first) == json.dumps(second)


def test_the_plan_of_a_cluster_needs_only_the_job_and_the_operators_settings() -> None:
    actions = plan(JOB, Observed(), 1.0, site(JOB, CLUSTER)).actions
    assert sum(isinstance(action, StartPod) for action in actions) == len(PODS)
