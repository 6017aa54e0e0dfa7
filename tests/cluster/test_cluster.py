"""The test cluster is a real one: what the other tests take for granted is shown here."""

import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from support.kubernetes import Kubernetes, Manifest, eventually

RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "runAsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def busybox(name: str, *command: str, **spec: Any) -> Manifest:
    """A pod that passes the restricted standard; `labels` and `mounts` aside, the rest is its spec."""
    container = {
        "name": "main",
        "image": "localhost/busybox:1",
        "command": list(command),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": spec.pop("mounts", []),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": spec.pop("labels", {})},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": RESTRICTED,
            "automountServiceAccountToken": False,
            "containers": [container],
            **spec,
        },
    }


def service(name: str, **spec: Any) -> Manifest:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


SLEEP = ("sleep", "3600")


@pytest.fixture
def own(cluster: Kubernetes) -> Kubernetes:
    """The cluster, where it was started on this machine."""
    if cluster.state is None:
        pytest.skip("says nothing about a cluster that was given by KUBECONFIG")
    return cluster


def test_the_node_is_ready_and_runs_this_version(own: Kubernetes) -> None:
    (node,) = [n for n in own.get("nodes")["items"] if n["metadata"]["name"] == "roll-node"]
    ready = {c["type"]: c["status"] for c in node["status"]["conditions"]}["Ready"]
    version = json.loads(own("version", "-o", "json"))["serverVersion"]["gitVersion"]
    assert (ready, version) == ("True", "v1.36.3")


def test_a_pod_runs_and_gives_its_log_and_a_shell(own: Kubernetes, namespace: str) -> None:
    own.apply(busybox("talker", "sh", "-c", "echo hello; sleep 3600"), namespace=namespace)
    own.wait("condition=Ready", "pod/talker", namespace=namespace)
    assert own("logs", "-n", namespace, "talker") == "hello\n"
    assert own("exec", "-n", namespace, "talker", "--", "id", "-u") == "10001\n"


def test_pods_find_each_other_by_name_and_by_service(own: Kubernetes, namespace: str) -> None:
    serve = ("sh", "-c", "echo $HOSTNAME >/tmp/index.html; exec httpd -f -p 8080 -h /tmp")
    ports = [{"port": 80, "targetPort": 8080}]
    web = {"app": "web"}
    own.apply(
        service("web", clusterIP="None", selector=web, publishNotReadyAddresses=True),
        service("front", selector=web, ports=ports),
        busybox("web-0", *serve, labels=web, hostname="web-0", subdomain="web"),
        busybox("client", *SLEEP),
        namespace=namespace,
    )
    own.wait("condition=Ready", "pod", "--all", namespace=namespace)

    def fetched(address: str) -> bool:
        url = f"http://{address}/"
        return own("exec", "-n", namespace, "client", "--", "wget", "-qO-", url) == "web-0\n"

    by_name = (f"web-0.web.{namespace}.svc:8080", f"front.{namespace}.svc", "front")
    for address in by_name:
        eventually(f"{address} answers", lambda address=address: fetched(address), 30)
    # A pod that is its own Service's only endpoint: the packet returns to where it came from.
    itself = own("exec", "-n", namespace, "web-0", "--", "wget", "-qO-", "http://front/")
    assert itself == "web-0\n"


def test_a_pod_reaches_the_api_server_and_nothing_outside(own: Kubernetes, namespace: str) -> None:
    own.apply(busybox("client", *SLEEP), namespace=namespace)
    own.wait("condition=Ready", "pod/client", namespace=namespace)

    def connects(address: str, port: str) -> str:
        attempt = f"nc -w 5 {address} {port} </dev/null && echo open || echo closed"
        return own("exec", "-n", namespace, "client", "--", "sh", "-c", attempt).strip()

    assert connects("kubernetes.default.svc", "443") == "open"
    assert connects("203.0.113.1", "443") == "closed"  # an address for documentation only


def test_volumes_whose_claims_go_at_once_are_emptied_and_offered_again(
    own: Kubernetes, namespace: str
) -> None:
    names = ("storage", "ledger")
    claims = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        for name in names
    ]
    writer = busybox(
        "writer",
        *(
            "sh",
            "-c",
            "for c in storage ledger; do mkdir /$c/folder && echo $c >/$c/folder/file; done",
        ),
        volumes=[{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names],
        mounts=[{"name": name, "mountPath": f"/{name}"} for name in names],
    )
    own.apply(*claims, writer, namespace=namespace)
    own.wait("jsonpath={.status.phase}=Succeeded", "pod/writer", namespace=namespace)
    bound = {n: own.get("pvc", n, "-n", namespace)["spec"]["volumeName"] for n in names}
    folders = {
        name: Path(own.get("pv", volume)["spec"]["hostPath"]["path"])
        for name, volume in bound.items()
    }
    assert {n: (f / "folder" / "file").read_text().strip() for n, f in folders.items()} == {
        name: name for name in names
    }

    own("delete", "pod/writer", "pvc/storage", "pvc/ledger", "-n", namespace)
    for volume in bound.values():
        eventually(
            f"{volume} is free",
            lambda volume=volume: own.get("pv", volume)["status"]["phase"] == "Available",
        )
    assert [list(folder.iterdir()) for folder in folders.values()] == [[], []]


def test_a_gang_waits_until_all_its_pods_are_there(own: Kubernetes, namespace: str) -> None:
    group = {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "gang"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }
    member = {"schedulingGroup": {"podGroupName": "gang"}}
    own.apply(group, busybox("first", *SLEEP, **member), namespace=namespace)
    own.apply(busybox("alone", *SLEEP), namespace=namespace)
    own.wait("condition=Ready", "pod/alone", namespace=namespace)  # the scheduler has seen both
    assert "nodeName" not in own.get("pod", "first", "-n", namespace)["spec"]
    own.apply(busybox("second", *SLEEP, **member), namespace=namespace)
    own.wait("condition=Ready", "pod/first", "pod/second", namespace=namespace)


def test_tokens_are_verified_with_the_published_keys(own: Kubernetes, namespace: str) -> None:
    own("create", "serviceaccount", "reader", "-n", namespace)
    given = own("create", "token", "reader", "-n", namespace, "--audience", "roll.dev/test")
    keys = jwt.PyJWKSet.from_json(own("get", "--raw", "/openid/v1/jwks"))
    key = keys[jwt.get_unverified_header(given.strip())["kid"]]
    claims = jwt.decode(given.strip(), key, ["RS256"], audience="roll.dev/test")
    assert claims["iss"] == "https://kubernetes.default.svc"
    assert claims["sub"] == f"system:serviceaccount:{namespace}:reader"


def test_a_token_of_any_age_can_be_minted_with_the_clusters_key(own: Kubernetes) -> None:
    assert own.state is not None
    signing_key = (own.state.pki / "sa.key").read_text()
    (published,) = jwt.PyJWKSet.from_json(own("get", "--raw", "/openid/v1/jwks")).keys
    long_ago = {"aud": "roll.dev/test", "exp": int(time.time()) - 3600}
    token = jwt.encode(long_ago, signing_key, "RS256")
    with pytest.raises(jwt.ExpiredSignatureError):
        jwt.decode(token, published, ["RS256"], audience="roll.dev/test")


def test_every_request_is_in_the_audit_log(own: Kubernetes, namespace: str) -> None:
    assert own.state is not None
    own("create", "configmap", "mark", "-n", namespace)
    lines = (own.state.log / "audit.log").read_text().splitlines()
    requests = [json.loads(line) for line in lines]
    (mark,) = [
        r
        for r in requests
        if r["verb"] == "create"
        and r.get("objectRef", {}).get("namespace") == namespace
        and r["objectRef"]["resource"] == "configmaps"
        and r["user"]["username"] == "roll-admin"
    ]
    assert (mark["level"], mark["responseStatus"]["code"]) == ("Metadata", 201)
