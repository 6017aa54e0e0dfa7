"""TLS with a bearer token: how processes of a job prove themselves where they are not on one machine.

Invariant: a pod's token is read from its file for every call and every stream, because the kubelet replaces it
long before it expires; the certificates that are trusted, and the one that is served with, are read for every
connection. So cert-manager may renew it under a running process.
"""

from __future__ import annotations

from pathlib import Path

import grpc

AUTHORIZATION = "authorization"
SCHEME = "Bearer "


class _Bearer(grpc.AuthMetadataPlugin):
    """A token that can't be read makes the call UNAVAILABLE: it is tried again."""

    def __init__(self, token: Path) -> None:
        self._token = token

    def __call__(
        self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback
    ) -> None:
        try:
            callback(bearer(self._token.read_text().strip()), None)
        except OSError as error:
            callback((), error)


def bearer(token: str) -> tuple[tuple[str, str]]:
    """The metadata of a call by the owner of the token."""
    return ((AUTHORIZATION, SCHEME + token),)


def client(roots: bytes, token: Path | None = None) -> grpc.ChannelCredentials:
    """Trusts the certificates in `roots` only, and shows the token when there is one."""
    trusting = grpc.ssl_channel_credentials(root_certificates=roots)
    if token is None:
        return trusting
    return grpc.composite_channel_credentials(
        trusting, grpc.metadata_call_credentials(_Bearer(token), name="token")
    )


def server(folder: Path) -> grpc.ServerCredentials:
    """Of a folder with `tls.crt` and `tls.key`, as a Secret of type kubernetes.io/tls is mounted.

    What can't be read later is no reason to stop: the pair of before is served on. Only another pair is handed over:
    gRPC frees what it replaces under connections that are just being made (its issue 36693), so that two at a time
    would end the process sooner or later.
    """
    served = _pair(folder)

    def again() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        try:
            found = _pair(folder)
        except OSError:
            return None
        if found == served:
            return None
        served = found
        return grpc.ssl_server_certificate_configuration([found])

    initial = grpc.ssl_server_certificate_configuration([served])
    return grpc.dynamic_ssl_server_credentials(initial, again)  # type: ignore[arg-type]  # None: as before


def _pair(folder: Path) -> tuple[bytes, bytes]:
    """Key and certificate of one age: the kubelet replaces both at once, by a link to another folder."""
    home = (folder / "tls.crt").resolve().parent
    return (home / "tls.key").read_bytes(), (home / "tls.crt").read_bytes()
