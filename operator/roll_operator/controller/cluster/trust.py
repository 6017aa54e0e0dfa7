"""Each job's certificate: its key in a Secret that the operator never reads again, its bundle in `<job>-trust`.

Where cert-manager makes the certificates, the bundle is its authority's, from a file that the operator was given.
Whoever made them before is trusted for as long as the job has pods, which may serve with theirs.

Invariant: the Secret exists before the bundle names its certificate, and the bundle is written before a pod that
serves with it is made. Killed in between, the operator leaves an unused Secret that goes with its job.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from roll_api import RLJob

from roll_operator.controller.cluster import paths
from roll_operator.controller.cluster.api import Api, Manifest
from roll_operator.controller.cluster.errors import ApiError, Invalid, NotFound
from roll_operator.plan.objects.cluster import metadata, tls_name, trust_name
from roll_operator.trust import certificates

SPREAD_SECONDS = 300.0
"""After this time every kubelet has written a new bundle into its pods."""
KEYS_SECONDS = 30.0
"""How long the cluster's public keys are taken as known: with the next look at a job (half a minute) and the kubelet's
next write (a minute and a half) new ones reach its scheduler before workers, who wait five minutes, give up."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trust:
    """What a job's pods trust, and the certificate that serves."""

    bundle: bytes
    keys: str
    """The cluster's public keys (JWKS)."""
    serial: str | None
    """None: cert-manager names the Secret, and renews it."""
    made_at: float
    rotates_at: float
    """Both of the newest one that the operator made."""
    former: bool = False
    """The bundle holds what pods may serve with that were made under another issuer."""


class TrustKeeper:
    def __init__(
        self, api: Api, authority: Path | None = None, wall: Callable[[], float] = time.time
    ) -> None:
        """`authority`: the certificate of who issues those of jobs; None: the operator makes them itself."""
        self._api, self._authority, self._wall = api, authority, wall
        self._jobs: dict[str, Trust] = {}
        self._keys, self._keys_until = "", 0.0
        self._asking = asyncio.Lock()

    async def bundle(self, job: RLJob) -> bytes:
        """What the job's scheduler is known by; nothing is made for it. Empty: there is none."""
        if job.metadata.uid in self._jobs:
            return self._jobs[job.metadata.uid].bundle
        return (await self._read(job)).get("ca.crt", "").encode()

    def forget(self, uid: str) -> None:
        self._jobs.pop(uid, None)

    def replaces(self, uid: str, serial: str) -> bool:
        """Whether a pod that serves with this certificate should serve with a newer one, which all trust by now."""
        trust = self._jobs.get(uid)
        if trust is None or not serial or trust.serial == serial:
            return False
        if trust.serial is None:  # cert-manager's follows when a rotation would be due
            return self._wall() >= trust.rotates_at
        return self._wall() >= trust.made_at + SPREAD_SECONDS

    async def of(self, job: RLJob, *, new: bool = False, empty: bool = False) -> Trust:
        """The job's trust, made or rotated when it is due. `new`: nothing was made for the job before; `empty`: no
        pod of it is there, so that nobody serves with what was made before."""
        uid, now = job.metadata.uid, self._wall()
        known, keys = self._jobs.get(uid), await self._cluster_keys()
        issuer = self._issuer(now)
        if known is not None and known.keys == keys and not (empty and known.former):
            current = now < known.rotates_at
            if (
                issuer is not None
            ):  # what else is in the bundle is former: a file may have lost an authority
                current = known.bundle.startswith(issuer)
                current = current and (known.former or known.bundle == issuer)
            if current:
                return known
        there = {} if new and known is None else await self._read(job)
        bundle = there.get("ca.crt", "").encode()
        names = certificates.names(job.name, job.metadata.namespace)
        if empty:
            bundle = certificates.own(bundle, names) if issuer is None else b""
        if issuer is not None:
            bundle = certificates.extended(bundle, issuer, now)
        elif now >= certificates.rotates_at(certificates.own(bundle, names)):
            pair = certificates.make(names, now)
            secret = secret_of(job, pair)
            await self._api.create(paths.home(secret), secret)
            bundle = certificates.extended(bundle, pair.certificate, now)
        own = certificates.own(bundle, names)
        self._jobs[uid] = trust = Trust(
            bundle,
            keys,
            serial=certificates.newest_serial(own) if issuer is None else None,
            made_at=certificates.made_at(own),
            rotates_at=certificates.rotates_at(own),
            former=bundle != (own if issuer is None else issuer),
        )
        return trust

    async def unissued(self, job: RLJob) -> str:
        """Whose word a certificate of cert-manager's waits for, and what is said of it; empty: it is there."""
        if self._authority is None:
            return ""
        home, name = job.metadata.namespace, job.name
        try:
            found = await self._api.get(paths.certificate(home, name))
        except ApiError as error:
            log.info("%s/%s: its certificate cannot be read: %s", home, name, error)
            return ""
        told = (found.get("status") or {}).get("conditions") or []
        if any(c.get("type") == "Ready" and c.get("status") == "True" for c in told):
            return ""
        said = dict.fromkeys(str(c["message"]) for c in told if c.get("message"))
        issuer = found["spec"]["issuerRef"]
        return (
            f"{issuer['kind']} {issuer['name']} has not issued certificate {name}: "
            f"{'; '.join(said) or 'cert-manager has not looked at it'}"
        )

    def _issuer(self, now: float) -> bytes | None:
        """The authority's certificates as its file has them now; None: the operator is its own."""
        if self._authority is None:
            return None
        try:
            return certificates.extended(b"", self._authority.read_bytes(), now)
        except (OSError, ValueError) as error:
            said = f"the issuer's certificate in {self._authority} can't be read: {error}"
            raise Invalid(0, "", said) from error

    async def _read(self, job: RLJob) -> dict[str, str]:
        try:
            found = await self._api.get(paths.config_map(job.metadata.namespace, trust_name(job)))
        except NotFound:
            return {}
        data: dict[str, str] = found.get("data") or {}
        return data

    async def _cluster_keys(self) -> str:
        async with self._asking:  # once for all jobs, however many are looked at
            if self._wall() >= self._keys_until:
                found = await self._api.get("/openid/v1/jwks", accept="application/jwk-set+json")
                self._keys = json.dumps(found, sort_keys=True, separators=(",", ":"))
                self._keys_until = self._wall() + KEYS_SECONDS
        return self._keys


def config_map(job: RLJob, trust: Trust) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, trust_name(job)),
        "data": {"ca.crt": trust.bundle.decode(), "jwks.json": trust.keys},
    }


def secret_of(job: RLJob, pair: certificates.KeyPair) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": metadata(job, tls_name(job, pair.serial)),
        "immutable": True,
        "stringData": {"tls.crt": pair.certificate.decode(), "tls.key": pair.key.decode()},
    }
