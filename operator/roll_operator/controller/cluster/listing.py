"""The store made equal to the cluster by lists: before the first act of a leader, and now and then.

Watches tell of deletions only while they are connected; a list tells of all of them.
"""

from collections.abc import AsyncIterator, Sequence

from roll_api import GROUP, VERSION

from roll_operator.backends.kubernetes import SELECTOR, read_pod
from roll_operator.controller.cluster.api import Api, Manifest
from roll_operator.controller.cluster.reading import read_job
from roll_operator.controller.cluster.store import Store


async def refresh(api: Api, store: Store, namespaces: Sequence[str]) -> list[str]:
    """What the lists do not hold, and is not newer than they are, is gone. Gives the uids of that."""
    here: dict[str, set[str]] = {"job": set(), "pod": set()}
    oldest: dict[str, int] = {}
    async for kind, item, version in _everything(api, namespaces):
        oldest[kind] = min(oldest.get(kind, version), version)
        if item is None:
            continue
        here[kind].add(item["metadata"]["uid"])
        if kind == "job":
            metadata = item["metadata"]
            known = store.job(f"{metadata['namespace']}/{metadata['name']}")
            store.put_job(read_job(item, known))
        else:
            facts = read_pod(item)
            if facts is not None:
                store.put_pod(facts)
    gone = [
        uid
        for kind, uid, version in store.versions()
        if uid not in here[kind] and version <= oldest[kind]
    ]
    for uid in gone:
        store.drop(uid)
    return gone


async def _everything(
    api: Api, namespaces: Sequence[str]
) -> AsyncIterator[tuple[str, Manifest | None, int]]:
    """Kind, object and version of its list; each list begins with its version alone."""
    for scope in [f"namespaces/{name}/" for name in namespaces] or [""]:
        lists = (
            ("pod", f"/api/v1/{scope}pods", SELECTOR),
            ("job", f"/apis/{GROUP}/{VERSION}/{scope}rljobs", ""),
        )
        for kind, path, selector in lists:
            async for items, version in api.pages(path, selector):
                yield kind, None, int(version)
                for item in items:
                    yield kind, item, int(version)
