"""What every new cluster holds before anybody uses it: storage, and the rights of its DNS server."""

import json
from pathlib import Path
from typing import Any

from roll_cluster.settings import NODE, STORAGE_CLASS, VOLUMES

Manifest = dict[str, Any]


def first_objects(volumes: Path) -> str:
    items = [_storage_class(), *(_volume(name, volumes) for name in volume_names()), *_dns_rights()]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def volume_names() -> list[str]:
    return [f"roll-{number}" for number in range(VOLUMES)]


def _storage_class() -> Manifest:
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS, "annotations": default},
        "provisioner": "kubernetes.io/no-provisioner",
    }


def _volume(name: str, folder: Path) -> Manifest:
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "100Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": STORAGE_CLASS,
            "hostPath": {"path": str(folder / name), "type": "Directory"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }


def _dns_rights() -> list[Manifest]:
    api, name = "rbac.authorization.k8s.io", "system:coredns"
    reading = ["list", "watch"]
    rules = [
        {"apiGroups": [""], "resources": ["services", "namespaces"], "verbs": reading},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": reading},
    ]
    subject = {"apiGroup": api, "kind": "User", "name": name}
    return [
        {
            "apiVersion": f"{api}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": rules,
        },
        {
            "apiVersion": f"{api}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": name},
            "subjects": [subject],
        },
    ]
