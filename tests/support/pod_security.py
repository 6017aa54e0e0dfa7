"""The restricted Pod Security Standard, as far as fields can break it; the API server has the last word."""

from typing import Any

ALLOWED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral",
    "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


def violations(pod: dict[str, Any]) -> list[str]:
    spec = pod["spec"]
    general = spec.get("securityContext", {})
    found = [f"spec.{key}" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    for volume in spec.get("volumes", []):
        if not set(volume) - {"name"} <= ALLOWED_VOLUMES:
            found.append(f"volume {volume['name']}")
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        own = general | container.get("securityContext", {})
        name = container["name"]
        if own.get("privileged"):
            found.append(f"{name}: privileged")
        if own.get("allowPrivilegeEscalation") is not False:
            found.append(f"{name}: allowPrivilegeEscalation")
        if own.get("capabilities", {}).get("drop") != ["ALL"]:
            found.append(f"{name}: capabilities.drop")
        if set(own.get("capabilities", {}).get("add", [])) - {"NET_BIND_SERVICE"}:
            found.append(f"{name}: capabilities.add")
        if own.get("runAsNonRoot") is not True or own.get("runAsUser") == 0:
            found.append(f"{name}: runs as root")
        if own.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            found.append(f"{name}: seccompProfile")
        if any("hostPort" in port for port in container.get("ports", [])):
            found.append(f"{name}: hostPort")
    return found
