"""Where a job's files lie, and who sees them."""

from typing import Any

import pytest
from roll_operator.plan.desired import ROLES
from roll_operator.plan.objects import support
from support.job_objects import CLUSTER, make_job, pod_of

OWN, LEDGER, EMPTY = "sums-storage", "sums-ledger", "emptyDir"


def mounted(storage: dict[str, Any], role: str, **spec: Any) -> tuple[str, str | None]:
    """What is mounted whole, and in which folder of it the role keeps its files."""
    job = make_job({"spec.storage": storage} | {f"spec.{key}": v for key, v in spec.items()})
    pod = pod_of(job, role)["spec"]
    (container,) = pod["containers"]
    (mount,) = (m for m in container["volumeMounts"] if m["mountPath"] == "/var/lib/roll")
    assert "subPath" not in mount
    (volume,) = (v for v in pod["volumes"] if v["name"] == mount["name"])
    claim = volume.get("persistentVolumeClaim", {}).get("claimName")
    told = {variable["name"]: variable.get("value", "") for variable in container["env"]}
    assert told["ROLL_SOURCE"] == f"{told['ROLL_STORAGE']}/source"
    return claim or EMPTY, told["ROLL_STORAGE"].removeprefix("/var/lib/roll")[1:] or None


@pytest.mark.parametrize(
    ("storage", "scheduler", "trainer", "others"),
    [
        ({"size": "10Gi"}, (LEDGER, None), (OWN, None), (EMPTY, None)),
        ({"size": "10Gi", "ledger": "EmptyDir"}, (EMPTY, None), (OWN, None), (EMPTY, None)),
        ({"claim": "shared"}, (LEDGER, None), ("shared", "sums"), ("shared", "sums")),
        ({"uri": "s3://bucket/prefix"}, (EMPTY, None), (EMPTY, None), (EMPTY, None)),
        ({"uri": "s3://b", "ledger": "Claim"}, (LEDGER, None), (EMPTY, None), (EMPTY, None)),
    ],
)
def test_what_each_role_finds_at_its_storage(
    storage: dict[str, Any], scheduler: object, trainer: object, others: object
) -> None:
    wanted = dict.fromkeys(ROLES, others) | {"scheduler": scheduler, "trainer": trainer}
    assert {role: mounted(storage, role) for role in ROLES} == wanted


def test_streamed_weights_leave_a_given_claim_to_the_trainer() -> None:
    assert mounted({"claim": "one"}, "trainer", weights={"transfer": "Stream"}) == ("one", "sums")
    assert mounted({"claim": "one"}, "inference", weights={"transfer": "Stream"}) == (EMPTY, None)


@pytest.mark.parametrize(
    ("storage", "claims"),
    [
        ({"size": "7Gi"}, {OWN: "7Gi", LEDGER: "10Gi"}),
        ({"size": "7Gi", "ledgerSize": "1Gi"}, {OWN: "7Gi", LEDGER: "1Gi"}),
        ({"size": "7Gi", "ledger": "EmptyDir"}, {OWN: "7Gi"}),
        ({"claim": "shared"}, {LEDGER: "10Gi"}),
        ({"claim": "shared", "ledger": "EmptyDir"}, {}),
        ({"uri": "s3://bucket/prefix"}, {}),
        ({"uri": "s3://bucket/prefix", "ledger": "Claim"}, {LEDGER: "10Gi"}),
    ],
)
def test_the_job_claims_what_it_was_not_given(
    storage: dict[str, Any], claims: dict[str, str]
) -> None:
    found = [
        o
        for o in support(make_job({"spec.storage": storage}), CLUSTER)
        if o["kind"] == "PersistentVolumeClaim"
    ]
    assert {
        o["metadata"]["name"]: o["spec"]["resources"]["requests"]["storage"] for o in found
    } == claims
    assert all(o["spec"]["accessModes"] == ["ReadWriteOnce"] for o in found)
    assert all("storageClassName" not in o["spec"] for o in found)


def test_the_jobs_volumes_are_of_its_storage_class() -> None:
    job = make_job({"spec.storage": {"size": "1Gi", "storageClass": "fast"}})
    classes = [
        o["spec"]["storageClassName"]
        for o in support(job, CLUSTER)
        if o["kind"] == "PersistentVolumeClaim"
    ]
    assert classes == ["fast", "fast"]
