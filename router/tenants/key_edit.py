"""Changes to a file of tenants: new keys, and keys that are taken back."""

import contextlib
import datetime
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from pagelet.process.atomic import write_atomically
from pagelet.process.watched import WatchedPath
from pagelet.protocol.api_keys import key_digest, new_key
from pagelet.router.tenants.key_file import (
    TENANT_NAME,
    KeyEntry,
    KeyFile,
    KeyFileError,
    TenantEntry,
    digest_entry,
    read_key_files,
    tenant_of_file,
)


class KeyStore:
    """A file of tenants, or a folder with a file for each, that is written in one step, so that a
    router which reads it meanwhile sees all of a change or nothing.

    Comments in YAML do not survive; `note` of a key is for what people want to remember."""

    def __init__(self, path: Path) -> None:
        """Raises `KeyFileError`. A path that does not exist becomes a file with the first key."""
        self._path = path.resolve()  # a link stays one
        self._folder = False
        self.tenants = self._read()

    def _read(self) -> list[TenantEntry]:
        path = self._path
        try:
            self._folder = path.is_dir()
            files = WatchedPath(path).files() if path.exists() else []
        except OSError as error:
            raise KeyFileError(f"{path}: {error.strerror}") from error
        return read_key_files(files, folder=self._folder)

    def add(self, tenant: str, *, note: str, expires: datetime.datetime | None, admin: bool) -> str:
        """A new key of a tenant, which is added if it is not there. Only its digest is written.
        Raises `KeyFileError`."""
        if not re.match(TENANT_NAME, tenant):
            raise KeyFileError(
                f"{tenant!r} cannot name a tenant: take at most 64 letters, digits, and . _ : -"
            )
        key = new_key()
        entry = KeyEntry(
            hash=digest_entry(key_digest(key)),
            note=note,
            created=datetime.datetime.now(datetime.UTC).replace(microsecond=0),
            expires=expires,
        )
        with self._changing():
            known = next((found for found in self.tenants if found.name == tenant), None)
            if known is None:
                known = TenantEntry(name=tenant)
                self.tenants.append(known)
            known.keys.append(entry)
            known.admin = known.admin or admin
            self._write(known)
        return key

    def revoke(self, key_id: str) -> str:
        """Takes back the key whose id begins so; returns its tenant. Raises `KeyFileError` unless
        there is exactly one."""
        with self._changing():
            found = [
                (tenant, key)
                for tenant in self.tenants
                for key in tenant.keys
                if key_id and key.id.startswith(key_id)
            ]
            if len(found) != 1:
                raise KeyFileError(f"{len(found)} keys have an id that begins with {key_id!r}")
            tenant, key = found[0]
            tenant.keys.remove(key)
            self._write(tenant)
        return tenant.name

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Goes on from what is there now, while nobody else changes it: a key that was printed
        must not be lost. Raises `KeyFileError`."""
        folder = self._path if self._folder else self._path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise KeyFileError(f"{self._path}: {error.strerror}") from error
        try:
            with contextlib.suppress(OSError):  # not every file system can
                fcntl.flock(held, fcntl.LOCK_EX)
            self.tenants = self._read()
            yield
        finally:
            os.close(held)

    def _write(self, changed: TenantEntry) -> None:
        """Raises `KeyFileError`."""
        if not self._folder:
            _replace(self._path, msgspec.to_builtins(KeyFile(tenants=self.tenants)))
            return
        document = msgspec.to_builtins(changed)
        del document["name"]
        named = (path for path in self._path.iterdir() if tenant_of_file(path) == changed.name)
        _replace(next(named, self._path / changed.name), document)


def _replace(path: Path, document: Any) -> None:
    if path.suffix == ".json":
        text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
    else:
        text = yaml.safe_dump(document, sort_keys=False)
    try:
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
        write_atomically(path, text.encode(), mode)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
