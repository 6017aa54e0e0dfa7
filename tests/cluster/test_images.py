"""The images as their pods have them: each is looked at from inside by images/check.py."""

from roll_cluster.project import REPOSITORY
from support.kubernetes import Kubernetes, Manifest, eventually
from support.rljobs import OPERATOR_IMAGE

WORKER_IMAGE = OPERATOR_IMAGE.replace("operator", "worker")


def looked_at(image: str, reference: str) -> Manifest:
    """No user is named: it is the image's own that has to pass the restricted standard. /tmp is as pods of jobs have it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": image},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "check",
                    "image": reference,
                    "command": ["python", "/mnt/check.py", image, "cpu"],
                    "volumeMounts": [
                        {"name": "check", "mountPath": "/mnt"},
                        {"name": "tmp", "mountPath": "/tmp"},
                    ],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
            "volumes": [
                {"name": "check", "configMap": {"name": "check"}},
                {"name": "tmp", "emptyDir": {}},
            ],
        },
    }


def test_both_images_hold_what_their_pods_need_and_no_more(
    operator: Kubernetes, namespace: str
) -> None:
    check = {"check.py": (REPOSITORY / "images" / "check.py").read_text()}
    operator.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "check"}, "data": check},
        looked_at("operator", OPERATOR_IMAGE),
        looked_at("worker", WORKER_IMAGE),
        namespace=namespace,
    )

    def phase(image: str) -> str:
        return str(operator.get("pod", image, "-n", namespace)["status"]["phase"])

    for image in ("operator", "worker"):
        over = lambda image=image: phase(image) in ("Succeeded", "Failed")  # noqa: E731
        eventually(f"{image} is checked", over, 120)
        said = operator("logs", "-n", namespace, image)
        assert phase(image) == "Succeeded" and f"check: {image}: " in said, said
