"""A certificate authority of the cluster's own, and kubeconfigs that carry their certificates."""

import base64
import dataclasses
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_CURVE: Final = "ec_paramgen_curve:P-256"
_DAYS: Final = "30"
_CA_EXTENSIONS: Final = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign")
_USES: Final = "extendedKeyUsage=serverAuth,clientAuth"


@dataclasses.dataclass(frozen=True)
class Identity:
    """A certificate and its private key, in PEM files."""

    certificate: Path
    key: Path


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Authority:
    """Signs certificates for the parts of one cluster; its files lie in `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._own = self._make("ca", "pagelet-e2e", _CA_EXTENSIONS, signer=None)
        self.certificate = self._own.certificate

    def issue(self, name: str, subject: str, hosts: Sequence[str] = ()) -> Identity:
        """A certificate for a user (`subject` is `/O=GROUP/CN=USER`) or a server at `hosts`."""
        extensions = [_USES]
        if hosts:
            names = [f"{'IP' if host[0].isdigit() else 'DNS'}:{host}" for host in hosts]
            extensions.append("subjectAltName=" + ",".join(names))
        return self._make(name, subject, extensions, signer=self._own)

    def signing_key(self, name: str) -> Path:
        """A private key without a certificate, such as that of service account tokens."""
        key = self._folder / f"{name}.key"
        # In the traditional form, the one that Kubernetes reads a public key from.
        _openssl("ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", str(key))
        return key

    def _make(
        self, name: str, subject: str, extensions: Sequence[str], signer: Identity | None
    ) -> Identity:
        made = Identity(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        arguments = ["req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", _CURVE]
        arguments += ["-days", _DAYS, "-keyout", str(made.key), "-out", str(made.certificate)]
        arguments += ["-subj", subject if subject.startswith("/") else f"/CN={subject}"]
        for extension in extensions:
            arguments += ["-addext", extension]
        if signer is not None:
            arguments += ["-CA", str(signer.certificate), "-CAkey", str(signer.key)]
        _openssl(*arguments)
        return made


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def write_kubeconfig(path: Path, server: str, authority: Authority, user: Identity) -> Path:
    """A kubeconfig (JSON, which is YAML) that stands alone; returns `path`."""
    configuration = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "pagelet-e2e",
        "contexts": [
            {
                "name": "pagelet-e2e",
                "context": {"cluster": "pagelet-e2e", "user": "user", "namespace": "default"},
            }
        ],
        "clusters": [
            {
                "name": "pagelet-e2e",
                "cluster": {
                    "server": server,
                    "certificate-authority-data": _encoded(authority.certificate),
                },
            }
        ],
        "users": [
            {
                "name": "user",
                "user": {
                    "client-certificate-data": _encoded(user.certificate),
                    "client-key-data": _encoded(user.key),
                },
            }
        ],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(configuration, indent=1))
    return path
