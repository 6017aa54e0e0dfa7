"""`roll submit`: a job's file and the local files that it names, sent to a cluster.

Invariant: no pod ever runs with other files than its job was submitted with. The job is written first, with the
digest of its files; its pods mount the ConfigMap of that digest and wait until it is there; and the digest of a
job that runs is not changed.
"""

import base64
from collections.abc import Sequence
from pathlib import Path

from roll_api import InvalidJob, RLJob, load_job

from roll_operator.cli.archive import Archive, pack, size_text
from roll_operator.cli.cluster.connection import Cluster, Manifest
from roll_operator.cli.named import check
from roll_operator.cli.not_yet import refuse_what_is_not_there
from roll_operator.cli.source import collect
from roll_operator.cli.validate import print_problems
from roll_operator.controller.cluster import errors, paths
from roll_operator.controller.folder import RunError
from roll_operator.plan.objects.cluster import SOURCE_ANNOTATION, metadata, source_name

AT_REST = ("Suspended", "Succeeded", "Failed")


def submit_job(
    file: Path, namespace: str | None, *, include: Sequence[str] = (), dry_run: bool = False
) -> int:
    try:
        job = load_job(file, cluster=True)
        refuse_what_is_not_there(job, file, cluster=True)
        files = collect(job, file, include)
        checked = check(job, file)
        if checked.errors:
            raise InvalidJob(checked.errors)
    except InvalidJob as error:
        print_problems(error.problems)
        return 2
    archive = pack(files)
    if "namespace" in job.metadata.model_fields_set:
        if namespace not in (None, job.metadata.namespace):
            raise RunError(
                f"{file} says namespace {job.metadata.namespace}, the command says {namespace}: "
                "remove one of the two"
            )
        namespace = job.metadata.namespace
    if dry_run:
        print(f"{file}: {job.name} is valid; nothing was sent")
    else:
        print(_send(Cluster(namespace), job, archive))
    for name, path in files.items():
        print(f"  {name} ({size_text(path.stat().st_size)})")
    if archive:
        along = "1 file goes" if len(files) == 1 else f"{len(files)} files go"
        print(f"{along} along, {size_text(len(archive.packed))} compressed")
    return 0


def _send(cluster: Cluster, job: RLJob, archive: Archive | None) -> str:
    place = paths.job(cluster.namespace, job.name)
    there = cluster.find(place)
    told = dict(job.metadata.annotations)
    if archive:
        told[SOURCE_ANNOTATION] = archive.digest
    before = _with(job, cluster.namespace, there["metadata"]) if there else None
    now = _with(job, cluster.namespace, {"annotations": told})
    if there and before:
        _refuse_what_runs(there, source_name(before), source_name(now))
    if archive:
        # Whatever speaks against the files is heard before the job is there.
        cluster.apply(*_config_map(now, archive, owned=False), dryRun="All")
    body = job.model_dump(mode="json", exclude_unset=True, exclude={"status"})
    body["metadata"] |= {"namespace": cluster.namespace, "annotations": told}
    made = cluster.apply(place, body)
    if archive:
        owner = _with(job, cluster.namespace, made["metadata"] | {"annotations": told})
        cluster.apply(*_config_map(owner, archive, owned=True))
    if before and (old := source_name(before)) and old != source_name(now):
        _forget(cluster, old)
    return _report(there, made)


def _with(job: RLJob, namespace: str, metadata: Manifest) -> RLJob:
    """The job as it is on the cluster, as far as its files are concerned."""
    known = {
        "namespace": namespace,
        "uid": metadata.get("uid", ""),
        "annotations": metadata.get("annotations") or {},
    }
    return job.model_copy(update={"metadata": job.metadata.model_copy(update=known)})


def _refuse_what_runs(there: Manifest, before: str | None, now: str | None) -> None:
    meta = there["metadata"]
    if meta.get("deletionTimestamp"):
        raise RunError(f"RLJob {meta['name']} is being deleted: submit it again when it is gone")
    phase = (there.get("status") or {}).get("phase") or "Pending"
    if before == now or phase in AT_REST:
        return
    raise RunError(
        f"RLJob {meta['name']} is {phase} with other files, and pods of one run must have the same: suspend "
        f"it first (kubectl patch rljob {meta['name']} -n {meta['namespace']} --type=merge "
        """-p '{"spec":{"suspend":true}}'), or give the job another name"""
    )


def _config_map(job: RLJob, archive: Archive, *, owned: bool) -> tuple[str, Manifest]:
    name = source_name(job)
    assert name is not None
    meta = metadata(job, name)
    if not owned:
        del meta["ownerReferences"]
    manifest: Manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta,
        "immutable": True,
        "binaryData": {"source.tar.gz": base64.b64encode(archive.packed).decode()},
    }
    return paths.place(manifest), manifest


def _forget(cluster: Cluster, name: str) -> None:
    """Files that no pod will mount any more; they would go with the job at the latest."""
    try:
        cluster.delete(paths.config_map(cluster.namespace, name))
    except (errors.NotFound, errors.Forbidden):
        return


def _report(there: Manifest | None, made: Manifest) -> str:
    meta = made["metadata"]
    what = f"RLJob {meta['name']} in namespace {meta['namespace']}"
    if there is None:
        return f"{what} created; kubectl roll status {meta['name']} -n {meta['namespace']} shows it"
    phase = (there.get("status") or {}).get("phase")
    if phase == "Suspended" and made["spec"].get("suspend"):
        return f"{what} changed; it is suspended (spec.suspend)"
    if phase in ("Succeeded", "Failed"):
        return f"{what} changed; it has {phase.lower()}, another spec.restart.id runs it again"
    return f"{what} changed"
