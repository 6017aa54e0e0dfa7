"""The objects beside the pods: Service, ConfigMaps, claims, and so on, created once and mended when they differ.

They are not watched: the operator remembers what it made and found, and lists them now and then. A fixed name
that is taken by an object of somebody else is never touched.
"""

import hashlib
import json
from collections.abc import Collection, Sequence

from roll_operator.backends.kubernetes import SELECTOR, owner_of
from roll_operator.controller.cluster import paths
from roll_operator.controller.cluster.api import Api, Manifest
from roll_operator.controller.cluster.errors import AlreadyExists, Conflict, Invalid, NotFound
from roll_operator.controller.cluster.store import JobEntry
from roll_operator.plan.objects.cluster import JOB_LABEL

HASH = "roll.dev/applied"
"""Annotation with the hash of the manifest as the operator wrote it."""

KEPT = frozenset({"PersistentVolumeClaim", "ServiceAccount"})
"""Kinds that are not changed once they exist: others fill them in, or what they hold must not be touched."""

PRUNED = frozenset({"PodDisruptionBudget", "PodGroup"})
"""Kinds that are deleted when the job no longer wants them; the rest goes with the job."""

LISTED = (
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("v1", "ServiceAccount"),
    ("v1", "PersistentVolumeClaim"),
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
)


class NameTaken(Exception):
    """An object that is not the job's has the name that the job needs."""


Identity = tuple[str, str, str]
"""API version, kind and name."""

Seen = tuple[str, str, str]
"""Of an object: the hash that it was made from, its uid, and its version."""

Known = dict[Identity, Seen]


class Supports:
    def __init__(self, api: Api, pod_group_api: str | None = None) -> None:
        self._api, self.pod_group_api = api, pod_group_api
        groups = ((pod_group_api, "PodGroup"),) if pod_group_api else ()
        self._listed = (*LISTED, *groups)
        self._known: dict[str, Known] = {}
        """By the job's uid."""

    async def ensure(self, entry: JobEntry, manifests: Sequence[Manifest], *, empty: bool) -> None:
        """In the given order: an object may need those before it. `empty`: the job has no pods now."""
        for manifest in manifests:
            await self._ensure(entry, manifest)
        await self._prune(entry, {_identity(manifest) for manifest in manifests}, empty)

    def knows(self, uid: str) -> bool:
        """Whether anything was made for the job, now or before."""
        return uid in self._known

    def forget(self, uid: str) -> None:
        self._known.pop(uid, None)

    async def refresh(self, namespaces: Sequence[str]) -> None:
        """What is there, by lists of metadata."""
        found: dict[str, Known] = {}
        for api_version, kind in self._listed:
            for namespace in namespaces or [""]:
                path = paths.collection(api_version, kind, namespace)
                pages = self._api.pages(path, SELECTOR, metadata_only=True)
                async for items, _ in pages:
                    for item in items:
                        _note(found, (api_version, kind), item)
        self._known = found

    async def _ensure(self, entry: JobEntry, manifest: Manifest) -> None:
        digest, identity = digest_of(manifest), _identity(manifest)
        objects = self._known.setdefault(entry.uid, {})
        known = objects.get(identity)
        if known is not None and (known[0] == digest or _is_kept(manifest)):
            return
        marked = signed(manifest, digest)
        if known is None:
            known = objects[identity] = await self._create(entry, marked)
            if known[0] == digest or _is_kept(manifest):
                return
        objects[identity] = await self._mend(entry, marked, known)

    async def _create(self, entry: JobEntry, manifest: Manifest) -> Seen:
        """The object that is there now, made here or before."""
        try:
            made = await self._api.create(paths.home(manifest), manifest)
        except AlreadyExists:
            made = await self._api.get(paths.place(manifest))
            if owner_of(made) != entry.uid:
                raise NameTaken(
                    f"{manifest['kind']} {manifest['metadata']['name']} is there already and does not "
                    "belong to this job: rename or delete it, or give the job another name"
                ) from None
        except NotFound as error:
            if error.reason:
                raise  # the namespace is gone; of a path that it does not serve the server says no more than 404
            unserved = f"the cluster serves no {manifest['kind']} of {manifest['apiVersion']}"
            raise Invalid(error.status, error.reason, unserved) from error
        return _seen(made["metadata"])

    async def _mend(self, entry: JobEntry, manifest: Manifest, known: Seen) -> Seen:
        metadata = manifest["metadata"]
        patch = {key: value for key, value in manifest.items() if key != "metadata"}
        # The uid makes it this object and no namesake; the version, the one that was judged: what a later leader
        # has written stays.
        patch["metadata"] = {
            "uid": known[1],
            "resourceVersion": known[2],
            "labels": metadata["labels"],
            "annotations": metadata["annotations"],
        }
        try:
            made = await self._api.patch(paths.place(manifest), patch)
        except Conflict:  # changed meanwhile, or another object of that name: look at it again
            self._known[entry.uid].pop(_identity(manifest), None)
            raise
        except NotFound:
            return await self._create(entry, manifest)
        return _seen(made["metadata"])

    async def _prune(self, entry: JobEntry, wanted: Collection[Identity], empty: bool) -> None:
        objects = self._known.get(entry.uid, {})
        for identity in [i for i in objects if i[1] in PRUNED and i not in wanted]:
            api_version, kind, name = identity
            if kind == "PodGroup" and not empty:
                continue  # pods that wait for their nodes may belong to it
            reference = {
                "apiVersion": api_version,
                "kind": kind,
                "metadata": {"name": name, "namespace": entry.namespace},
            }
            await self._delete(reference, objects[identity][1])
            del objects[identity]

    async def _delete(self, manifest: Manifest, uid: str) -> None:
        try:
            await self._api.delete(paths.place(manifest), uid, None)
        except (NotFound, Conflict):
            return  # gone, or a namesake is there


def _is_kept(manifest: Manifest) -> bool:
    return manifest["kind"] in KEPT or bool(manifest.get("immutable"))


def _note(found: dict[str, Known], kind: tuple[str, str], item: Manifest) -> None:
    metadata, owner = item["metadata"], owner_of(item)
    if owner is not None and JOB_LABEL in (metadata.get("labels") or {}):
        found.setdefault(owner, {})[*kind, metadata["name"]] = _seen(metadata)


def _seen(metadata: Manifest) -> Seen:
    annotations = metadata.get("annotations") or {}
    return annotations.get(HASH, ""), metadata["uid"], metadata["resourceVersion"]


def _identity(manifest: Manifest) -> Identity:
    return manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"]


def digest_of(manifest: Manifest) -> str:
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def signed(manifest: Manifest, digest: str) -> Manifest:
    metadata = manifest["metadata"]
    annotations = {**(metadata.get("annotations") or {}), HASH: digest}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}
