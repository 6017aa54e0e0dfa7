"""Certificates, the key of the service accounts, and a kubeconfig for every identity.

Each component has an identity of its own, so that the audit log says who did what and RBAC means
something. All are made anew with every cluster and signed by its own authority.
"""

import json
from base64 import b64encode
from pathlib import Path

from roll_cluster.processes import run

DAYS = "365"


class Keys:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder / "ca.crt"
        self.sa_key = folder / "sa.key"
        self.sa_public = folder / "sa.pub"

    def make(self) -> None:
        """The authority and the signing key, unless they are there."""
        if self.sa_public.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        run(
            *("openssl", "req", "-x509", "-nodes", "-days", DAYS, "-subj", "/CN=roll-cluster"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-keyout", self.folder / "ca.key", "-out", self.ca),
        )
        run("openssl", "genrsa", "-out", self.sa_key, "2048")
        run("openssl", "rsa", "-in", self.sa_key, "-pubout", "-out", self.sa_public)

    def certificate(
        self, name: str, user: str, group: str = "", names: tuple[str, ...] = ()
    ) -> tuple[Path, Path]:
        """Certificate and key of one identity; `names` (DNS:… or IP:…) for one that serves as well."""
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        if certificate.exists():
            return certificate, key
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        subject = f"/O={group}/CN={user}" if group else f"/CN={user}"
        run(
            *("openssl", "req", "-nodes", "-subj", subject, "-keyout", key, "-out", request),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
        )
        usage = "extendedKeyUsage=clientAuth,serverAuth\n"
        extensions.write_text(usage + (f"subjectAltName={','.join(names)}\n" if names else ""))
        run(
            *("openssl", "x509", "-req", "-days", DAYS, "-in", request, "-out", certificate),
            *("-CA", self.ca, "-CAkey", self.folder / "ca.key", "-extfile", extensions),
        )
        request.unlink()
        extensions.unlink()
        return certificate, key

    def kubeconfig(self, path: Path, server: str, user: str, group: str = "") -> Path:
        """A kubeconfig that carries all it needs. (JSON is YAML.)"""
        if path.exists():
            return path
        certificate, key = self.certificate(path.name.removesuffix(".kubeconfig"), user, group)
        cluster = {"server": server, "certificate-authority-data": _base64(self.ca)}
        identity = {
            "client-certificate-data": _base64(certificate),
            "client-key-data": _base64(key),
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "roll", "cluster": cluster}],
            "users": [{"name": user, "user": identity}],
            "contexts": [{"name": "roll", "context": {"cluster": "roll", "user": user}}],
            "current-context": "roll",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=1))
        return path


def _base64(path: Path) -> str:
    return b64encode(path.read_bytes()).decode()
