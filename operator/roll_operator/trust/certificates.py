"""A job's key and certificate: made in memory, trusted by name and by nothing else.

Invariant: the bundle that clients trust holds a new certificate before anything serves with it, and an old one
for as long as it is valid. So a rotation never finds a client that trusts neither. The bundle is all that the
operator reads again later: it may create the Secret with the key, but never read it.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=365)
ROTATED_AFTER = 2 / 3  # of its life: the rest is for pods that still serve with the old one
EARLIER = datetime.timedelta(minutes=5)  # clocks of nodes differ


@dataclass(frozen=True, slots=True)
class KeyPair:
    """What a Secret of type kubernetes.io/tls holds, and the serial that names it."""

    serial: str
    certificate: bytes  # PEM
    key: bytes  # PEM


def names(job: str, namespace: str) -> list[str]:
    """Every pod of the job, under its name in the job's headless Service."""
    return [f"*.{job}.{namespace}.svc"]


def make(names: Sequence[str], now: float) -> KeyPair:
    """A new key with a certificate for these DNS names."""
    key = ec.generate_private_key(ec.SECP256R1())
    number = x509.random_serial_number()
    # The serial is in the subject: of two certificates in one bundle, each is found by its name.
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"roll {_short(number)}")])
    began = datetime.datetime.fromtimestamp(now, datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(number)
        .not_valid_before(began - EARLIER)
        .not_valid_after(began + LIFETIME)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(
        _short(number),
        _pem(certificate),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def newest_serial(bundle: bytes) -> str:
    """Serial of the certificate that serves, or is about to; "" for an empty bundle."""
    newest = _newest(bundle)
    return _short(newest.serial_number) if newest else ""


def made_at(bundle: bytes) -> float:
    """When the newest certificate was made (unix seconds); 0 for an empty bundle."""
    newest = _newest(bundle)
    return (newest.not_valid_before_utc + EARLIER).timestamp() if newest else 0.0


def rotates_at(bundle: bytes) -> float:
    """When a new certificate is due (unix seconds); at once for an empty bundle."""
    newest = _newest(bundle)
    if newest is None:
        return 0.0
    began, ends = newest.not_valid_before_utc, newest.not_valid_after_utc
    return (began + (ends - began) * ROTATED_AFTER).timestamp()


def own(bundle: bytes, names: Sequence[str]) -> bytes:
    """Those of the bundle that `make` made for these names: the rest are authorities, who may have issued others."""
    return b"".join(_pem(c) for c in _read(bundle) if _names(c) == [*names])


def extended(bundle: bytes, certificate: bytes, now: float) -> bytes:
    """The bundle with new certificates in front, and without those that are no longer valid."""
    at = datetime.datetime.fromtimestamp(now, datetime.UTC)
    kept = [c for c in _read(bundle) if c.not_valid_after_utc > at]
    return b"".join(dict.fromkeys(_pem(c) for c in (*_read(certificate), *kept)))


def _newest(bundle: bytes) -> x509.Certificate | None:
    return max(_read(bundle), key=lambda c: c.not_valid_before_utc, default=None)


def _read(bundle: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(bundle) if bundle.strip() else []


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _names(certificate: x509.Certificate) -> list[str]:
    """Whom it is for; nobody in particular: an authority's."""
    known = certificate.extensions
    try:
        if known.get_extension_for_class(x509.BasicConstraints).value.ca:
            return []
        told = known.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return told.get_values_for_type(x509.DNSName)


def _short(serial: int) -> str:
    """Half of the serial's 40 digits: it becomes a part of an object's name."""
    return f"{serial:040x}"[:16]
