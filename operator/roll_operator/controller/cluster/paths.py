"""Where the API server keeps each kind of object that the operator touches."""

from typing import Any

from roll_api import GROUP, VERSION

PLURALS = {
    "Certificate": "certificates",
    "ConfigMap": "configmaps",
    "Event": "events",
    "NetworkPolicy": "networkpolicies",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Pod": "pods",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "PodGroup": "podgroups",
    "RLJob": "rljobs",
    "Secret": "secrets",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
}


def collection(api_version: str, kind: str, namespace: str) -> str:
    root = "/api/v1" if api_version == "v1" else f"/apis/{api_version}"
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{scope}/{PLURALS[kind]}"


def home(manifest: dict[str, Any]) -> str:
    """The collection of an object's namespace."""
    return collection(manifest["apiVersion"], manifest["kind"], manifest["metadata"]["namespace"])


def place(manifest: dict[str, Any]) -> str:
    return f"{home(manifest)}/{manifest['metadata']['name']}"


def pod(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def job(namespace: str, name: str) -> str:
    return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/rljobs/{name}"


def token(namespace: str, account: str) -> str:
    return f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"


def config_map(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps/{name}"


def certificate(namespace: str, name: str) -> str:
    return f"/apis/cert-manager.io/v1/namespaces/{namespace}/certificates/{name}"
