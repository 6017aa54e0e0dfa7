"""A cluster's signing key and a job's certificate, as the API server and the operator would make them."""

from __future__ import annotations

import datetime
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from roll_operator.trust import certificates
from roll_operator.trust.identity import audience, operator_audience

JOB_UID = "job-uid"
OPERATOR = "system:serviceaccount:roll-system:roll-operator"


@dataclass
class Issuer:
    """Signs tokens like a Kubernetes API server does."""

    kid: str = "first"
    key: rsa.RSAPrivateKey = field(
        default_factory=lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048)
    )

    def public(self) -> dict[str, Any]:
        described: dict[str, Any] = jwt.algorithms.RSAAlgorithm.to_jwk(
            self.key.public_key(), as_dict=True
        )
        return described | {"kid": self.kid, "use": "sig", "alg": "RS256"}

    def sign(self, seconds: float = 3600.0, **claims: Any) -> str:
        now = time.time()
        body = {"iss": "https://kubernetes.default.svc", "iat": now - 1, "nbf": now - 1}
        return jwt.encode(
            body | {"exp": now + seconds} | claims,
            self.key,
            algorithm="RS256",
            headers={"kid": self.kid},
        )

    def pod(self, uid: str, name: str = "", job: str = JOB_UID, seconds: float = 3600.0) -> str:
        bound = {"namespace": "lab", "pod": {"name": name or uid, "uid": uid}}
        return self.sign(
            seconds,
            aud=[audience(job)],
            sub="system:serviceaccount:lab:sums",
            **{"kubernetes.io": bound},
        )

    def operator(self, subject: str = OPERATOR, job: str = JOB_UID, seconds: float = 3600.0) -> str:
        return self.sign(seconds, aud=[operator_audience(job)], sub=subject)


@dataclass(frozen=True)
class Pair:
    certificate: bytes
    key: bytes

    @classmethod
    def of_an_authority(cls, name: str, now: float | None = None) -> Pair:
        """One that signs itself, for ten years, as a company's would."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        began = datetime.datetime.fromtimestamp(now or time.time(), datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(began - datetime.timedelta(minutes=5))
            .not_valid_after(began + datetime.timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
            .sign(key, hashes.SHA256())
        )
        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        encoded = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
        return cls(certificate.public_bytes(pem), encoded)


def write_keys(path: Path, *issuers: Issuer) -> None:
    """In one step, as a ConfigMap's volume changes."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(json.dumps({"keys": [issuer.public() for issuer in issuers]}))
    os.replace(fresh, path)


@dataclass
class Pki:
    """Folders as they are mounted into pods: `trust` and `tls`."""

    folder: Path
    issuer: Issuer = field(default_factory=Issuer)

    def __post_init__(self) -> None:
        for path in (self.trust, self.tls):
            path.mkdir(parents=True)
        pair = certificates.make(["localhost"], time.time())
        (self.tls / "tls.crt").write_bytes(pair.certificate)
        (self.tls / "tls.key").write_bytes(pair.key)
        (self.trust / "ca.crt").write_bytes(pair.certificate)
        write_keys(self.trust / "jwks.json", self.issuer)

    @property
    def trust(self) -> Path:
        return self.folder / "trust"

    @property
    def tls(self) -> Path:
        return self.folder / "tls"

    @property
    def roots(self) -> bytes:
        return (self.trust / "ca.crt").read_bytes()

    def token(self, name: str, text: str) -> Path:
        path = self.folder / f"token-{name}"
        path.write_text(text)
        return path
