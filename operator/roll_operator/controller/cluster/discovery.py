"""Which API for gangs of pods the cluster serves, if any. Everybody who is known to the cluster may ask."""

from roll_operator.controller.cluster.api import Api
from roll_operator.controller.cluster.errors import NotFound
from roll_operator.plan.objects.gang import COSCHEDULING, IN_TREE, VOLCANO

PREFERRED = (IN_TREE, COSCHEDULING, VOLCANO)
"""What every kube-scheduler reads comes before what needs another one."""


async def pod_group_api(api: Api) -> str | None:
    """`group/version` of PodGroup; the version that the API server prefers comes first."""
    found = await api.get("/apis")
    groups = {group["name"]: group for group in found.get("groups") or []}
    for name in PREFERRED:
        for version in groups.get(name, {}).get("versions") or []:
            if await _serves(api, version["groupVersion"]):
                return str(version["groupVersion"])
    return None


async def _serves(api: Api, group_version: str) -> bool:
    try:
        found = await api.get(f"/apis/{group_version}")
    except NotFound:
        return False
    return any(resource["name"] == "podgroups" for resource in found.get("resources") or [])
