"""Verifies service-account tokens offline: the cluster's public keys lie in a file that may change.

Invariant: a token counts only if one of the keys that are in the file now signed it, it has not expired, and
it was made for exactly one purpose: this job's pods, or the operator's calls about this job. Only asymmetric algorithms are known, so
a public key is never taken for a shared secret.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import jwt

from roll_operator.trust.identity import BadToken, NoKeys, PodIdentity, audience, operator_audience

log = logging.getLogger(__name__)

ALGORITHMS = ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512"]
LEEWAY_SECONDS = 10.0  # clocks of nodes and of the API server differ


class Keys:
    """The key set in a file, read again when the file is another one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._keys: dict[str | None, jwt.PyJWK] = {}

    def find(self, name: str | None) -> jwt.PyJWK | None:
        self._refresh()
        return self._keys.get(name)

    def _refresh(self) -> None:
        try:
            now = self._path.stat()  # of the file behind the link that a ConfigMap's volume swaps
            seen = (now.st_ino, now.st_mtime_ns, now.st_size)
            if seen == self._seen:
                return
            found = jwt.PyJWKSet.from_dict(json.loads(self._path.read_bytes()))
        except (OSError, ValueError, AttributeError, jwt.PyJWTError) as error:
            if not self._keys:
                raise NoKeys(
                    f"the cluster's keys in {self._path} can't be read: {error}"
                ) from error
            log.warning("the cluster's keys in %s can't be read again: %s", self._path, error)
            return
        self._seen = seen
        self._keys = {key.key_id: key for key in found.keys}
        log.info("%d public keys of the cluster", len(self._keys))


class Verifier:
    """`operator` is the subject that alone may control: system:serviceaccount:NAMESPACE:NAME."""

    def __init__(self, keys: Path, job_uid: str, operator: str) -> None:
        self._keys, self._operator = Keys(keys), operator
        self._audience, self._operators = audience(job_uid), operator_audience(job_uid)

    def pod(self, token: str) -> PodIdentity:
        """The pod of this job whose token it is. BadToken, NoKeys."""
        claims = self._claims(token, self._audience)
        bound = claims.get("kubernetes.io")
        pod = bound.get("pod") if isinstance(bound, dict) else None
        if not isinstance(pod, dict) or not pod.get("uid"):
            raise BadToken("the token is bound to no pod")
        return PodIdentity(str(pod["uid"]), str(pod.get("name", "")))

    def operator(self, token: str) -> None:
        """Returns if it is the operator's token for this job. BadToken, NoKeys."""
        claims = self._claims(token, self._operators)
        if not self._operator or claims.get("sub") != self._operator:
            raise BadToken(f"the token is of {claims.get('sub')}, not of the operator")

    def _claims(self, token: str, wanted: str) -> dict[str, Any]:
        if not token:
            raise BadToken("no token")
        try:
            name = jwt.get_unverified_header(token).get("kid")
            key = self._keys.find(name)
            if key is None:
                raise BadToken(f"the token is signed with the key {name}, unknown in this cluster")
            return jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=wanted,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "aud"]},
            )
        except jwt.ExpiredSignatureError:
            raise BadToken("the token has expired") from None
        except jwt.InvalidAudienceError:
            raise BadToken(f"the token is for {_audience_of(token)}, not for {wanted}") from None
        except jwt.PyJWTError as error:
            raise BadToken(f"the token can't be trusted: {error}") from None


def _audience_of(token: str) -> str:
    told = jwt.decode(token, options={"verify_signature": False}).get("aud", "nobody")
    return ", ".join(map(str, told)) if isinstance(told, list) else str(told)
