"""The file of tenants: YAML or JSON, one file for all or a folder with a file for each.

    tenants:
      - name: acme
        keys:
          - hash: sha256:2cf2...   # of the key; the key itself is nowhere
            note: laptop
            expires: 2027-01-01T00:00:00Z
        limits: {requests_per_minute: 600, tokens_per_minute: 100000, concurrency: 32}
        models: [smollm2]
        admin: false

In a folder, such as a mounted Secret, a file holds what is under one `- name`, and its own name,
without `.yaml` or `.json`, is the tenant's.
"""

import datetime
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from pagelet.protocol.router import TenantLimits
from pagelet.protocol.yaml_fault import wrong_tag, yaml_fault

TENANT_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$"
_SUFFIXES = (".yaml", ".yml", ".json")
_HASH_PREFIX = "sha256:"


class KeyFileError(ValueError):
    """The file cannot be used; the message names it, the place and what would be right."""


class KeyEntry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key, as its digest."""

    hash: Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
    note: str = ""
    """For people: whose key it is, where it is used."""
    created: Annotated[datetime.datetime, msgspec.Meta(tz=True)] | None = None
    expires: Annotated[datetime.datetime, msgspec.Meta(tz=True)] | None = None

    @property
    def digest(self) -> bytes:
        """SHA-256 of the key."""
        return bytes.fromhex(self.hash.removeprefix(_HASH_PREFIX))

    @property
    def id(self) -> str:
        """A short name of the key that tells nothing of it."""
        return self.hash.removeprefix(_HASH_PREFIX)[:12]


class TenantEntry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One tenant. `limits` has the fields of `TenantLimits`; those left out are the router's
    defaults, and null is no limit."""

    name: Annotated[str, msgspec.Meta(pattern=TENANT_NAME)]
    keys: list[KeyEntry] = []
    limits: dict[str, Any] = {}
    models: list[str] | None = None
    admin: bool = False

    def effective_limits(self, defaults: TenantLimits) -> TenantLimits:
        """Raises `msgspec.ValidationError`."""
        return msgspec.convert(msgspec.to_builtins(defaults) | self.limits, TenantLimits)


class KeyFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    tenants: list[TenantEntry]


def digest_entry(digest: bytes) -> str:
    """How a file writes the digest of a key."""
    return _HASH_PREFIX + digest.hex()


def tenant_of_file(path: Path) -> str:
    """The tenant that a file in a folder is about."""
    return path.stem if path.suffix in _SUFFIXES else path.name


def read_key_files(paths: Iterable[Path], *, folder: bool) -> list[TenantEntry]:
    """The tenants of one file, or of all files of a folder. Raises `KeyFileError`."""
    tenants: dict[str, TenantEntry] = {}
    owners: dict[str, str] = {}
    for path in paths:
        try:
            for entry in _read(path, folder):
                _add(entry, tenants, owners)
        except OSError as error:
            raise KeyFileError(f"{path}: {error.strerror}") from error
        except yaml.YAMLError as error:
            raise KeyFileError(yaml_fault(str(path), error)) from error
        except (ValueError, RecursionError) as error:
            raise KeyFileError(f"{path}: {error}") from error
    return list(tenants.values())


def _read(path: Path, folder: bool) -> list[TenantEntry]:
    document = _parse(path)
    if folder and isinstance(document, dict):
        document = {"tenants": [{"name": tenant_of_file(path)} | document]}
    return msgspec.convert(document, KeyFile).tenants


def _add(entry: TenantEntry, tenants: dict[str, TenantEntry], owners: dict[str, str]) -> None:
    """Adds a tenant to those before it. Raises `ValueError`."""
    entry.effective_limits(TenantLimits())
    if entry.name in tenants:
        raise ValueError(f"tenant {entry.name!r} is there twice: put its keys in one place")
    tenants[entry.name] = entry
    for key in entry.keys:
        owner = owners.setdefault(key.hash, entry.name)
        if owner != entry.name:
            raise ValueError(
                f"key {key.id} belongs to {owner!r} and to {entry.name!r}: give each its own"
            )


class _Loader(yaml.CSafeLoader):
    """Leaves times to msgspec, which wants them with their time zone as JSON writes them."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError):
            raise wrong_tag(node) from None


_Loader.yaml_implicit_resolvers = {
    character: [item for item in resolvers if item[0] != "tag:yaml.org,2002:timestamp"]
    for character, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def _parse(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json" or text.lstrip().startswith("{"):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            if path.suffix == ".json":
                raise
    return yaml.load(text, _Loader)
