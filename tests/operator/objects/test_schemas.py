"""Every rendered object against the published schemas, strictly: an unknown field is an error.

The schemas of Kubernetes come with `kubernetes-validate`; those of the other three are the spec part of their
published CRDs (scheduler-plugins 0.33, Volcano 1.12, cert-manager 1.18), of which only known fields are kept.
"""

from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest
from jsonschema import Draft202012Validator
from roll_api import RLJob
from roll_operator.plan.objects import Manifest
from support.job_objects import CLUSTER, FULL, everything, make_job

MINOR = {"scheduling.k8s.io/v1alpha3": "1.37", "scheduling.k8s.io/v1beta1": "1.37"}
"""The Kubernetes that serves an API, where it is not the one of the test cluster."""
CURRENT = "1.36"


def spec_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


COUNT = {"type": "integer", "minimum": 1}
TEXT = {"type": "string"}
OTHERS = {
    ("scheduling.x-k8s.io/v1alpha1", "PodGroup"): spec_of(
        minMember=COUNT, minResources={"type": "object"}, scheduleTimeoutSeconds={"type": "integer"}
    ),
    ("scheduling.volcano.sh/v1beta1", "PodGroup"): spec_of(
        minMember=COUNT,
        minTaskMember={"type": "object"},
        minResources={"type": "object"},
        priorityClassName=TEXT,
        queue=TEXT,
    ),
    ("cert-manager.io/v1", "Certificate"): spec_of(
        secretName=TEXT,
        dnsNames={"type": "array", "items": TEXT},
        duration={"type": "string", "pattern": "^([0-9]+h)?([0-9]+m)?([0-9]+s)?$"},
        privateKey=spec_of(
            algorithm={"enum": ["RSA", "ECDSA", "Ed25519"]},
            size={"type": "integer"},
            rotationPolicy={"enum": ["Never", "Always"]},
        ),
        usages={"type": "array", "items": {"enum": ["digital signature", "server auth"]}},
        issuerRef=spec_of(group=TEXT, kind={"enum": ["Issuer", "ClusterIssuer"]}, name=TEXT),
    ),
}


def check(manifest: Manifest, version: str = CURRENT) -> None:
    other = OTHERS.get((manifest["apiVersion"], manifest["kind"]))
    if other is None:
        version = MINOR.get(manifest["apiVersion"], version)
        kubernetes_validate.validate(manifest, version, strict=True)
    else:
        assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}
        Draft202012Validator(other).validate(manifest["spec"])


@pytest.mark.parametrize(
    ("job", "api", "issuer"),
    [
        (make_job(), None, None),
        (FULL, "scheduling.k8s.io/v1alpha2", None),
        (FULL, "scheduling.k8s.io/v1alpha3", None),
        (FULL, "scheduling.k8s.io/v1beta1", None),
        (FULL, "scheduling.x-k8s.io/v1alpha1", "ca"),
        (FULL, "scheduling.volcano.sh/v1beta1", "ClusterIssuer/ca"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_object_of_a_job_is_of_its_published_form(
    job: RLJob, api: str | None, issuer: str | None
) -> None:
    cluster = replace(
        CLUSTER,
        pod_group_api=api,
        cert_manager_issuer=issuer,
        pull_secrets=("registry",),
        metrics_namespaces=("monitoring",),
    )
    objects = everything(job, cluster)
    assert len(objects) >= 13
    for manifest in objects:
        check(manifest)


def test_an_unknown_field_is_seen() -> None:
    wrong = make_job({"spec.roles.reward.template": {"spec": {"nodeSelektor": {"a": "b"}}}})
    with pytest.raises(kubernetes_validate.ValidationError, match="nodeSelektor"):
        for manifest in everything(wrong):
            check(manifest)


def test_cert_managers_certificate_is_for_every_pod_of_the_job() -> None:
    cluster = replace(CLUSTER, cert_manager_issuer="ClusterIssuer/ca")
    (certificate,) = (o for o in everything(make_job(), cluster) if o["kind"] == "Certificate")
    assert certificate["spec"]["dnsNames"] == ["*.sums.team.svc"]
    assert certificate["spec"]["issuerRef"]["kind"] == "ClusterIssuer"
