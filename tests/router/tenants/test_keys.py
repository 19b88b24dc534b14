import asyncio
import datetime
import json
import logging

import pytest

from pagelet.process.atomic import write_atomically
from pagelet.protocol.api_keys import bearer_key, key_digest, new_key
from pagelet.protocol.openai.errors import ApiError
from pagelet.protocol.router import TenantLimits
from pagelet.router.tenants.key_file import KeyFileError, digest_entry, read_key_files
from pagelet.router.tenants.keys import TenantDirectory
from pagelet.router.tenants.tenant import ANONYMOUS

DEFAULTS = TenantLimits(requests_per_minute=60, concurrency=8)


def entry(key, **fields):
    return {"hash": digest_entry(key_digest(key))} | fields


def write(path, *tenants):
    """In one step, and as another file: as long as the one before, it may have the same time."""
    write_atomically(path, json.dumps({"tenants": list(tenants)}).encode())
    return path


def tenant(name, *keys, **fields):
    entries = [key if isinstance(key, dict) else entry(key) for key in keys]
    return {"name": name, "keys": entries} | fields


def status_of(directory, authorization):
    try:
        return directory.identify(authorization).name
    except ApiError as error:
        return error.status


def test_without_a_file_no_key_is_asked_for():
    directory = TenantDirectory(None, DEFAULTS)
    assert not directory.required
    assert directory.identify(None).name == ANONYMOUS.name
    assert directory.identify("Bearer anything").limits == DEFAULTS


def test_each_key_of_a_tenant_is_the_tenant(tmp_path):
    file = write(tmp_path / "keys.json", tenant("acme", "k1", "k2"), tenant("umbrella", "k3"))
    directory = TenantDirectory(file, DEFAULTS)
    asked = ["Bearer k1", "bearer  k2 ", "Bearer k3", "Bearer k4", "Bearer", "Basic k1", "", None]
    found = [status_of(directory, authorization) for authorization in asked]
    assert found == ["acme", "acme", "umbrella", 401, 401, 401, 401, 401]


def test_a_key_may_come_as_anthropics_clients_send_it(tmp_path):
    file = write(tmp_path / "keys.json", tenant("acme", "k1"), tenant("umbrella", "k2"))
    directory = TenantDirectory(file, DEFAULTS)
    assert directory.identify(None, "k1").name == "acme"
    assert directory.identify("Bearer k2", "k1").name == "umbrella"
    with pytest.raises(ApiError):
        directory.identify("Bearer wrong", "k1")


def test_a_refusal_has_openais_shape(tmp_path):
    directory = TenantDirectory(write(tmp_path / "keys.json", tenant("acme", "k")), DEFAULTS)
    for authorization in (None, "Bearer wrong-key"):
        with pytest.raises(ApiError) as error:
            directory.identify(authorization)
        assert error.value.status == 401
        assert error.value.detail.type == "invalid_request_error"
        assert error.value.detail.code == "invalid_api_key"
        assert error.value.headers == {"WWW-Authenticate": "Bearer"}
        assert "wrong-key" not in str(error.value)


def test_limits_are_the_defaults_where_a_tenant_says_nothing(tmp_path):
    limits = {"requests_per_minute": None, "tokens_per_minute": 1000, "weight": 2}
    file = write(
        tmp_path / "keys.json", tenant("acme", "k", limits=limits, models=["m"], admin=True)
    )
    acme = TenantDirectory(file, DEFAULTS).identify("Bearer k")
    assert acme.limits == TenantLimits(
        requests_per_minute=None, tokens_per_minute=1000, concurrency=8, weight=2
    )
    assert acme.models == {"m"}
    assert acme.admin


def test_a_key_expires(tmp_path):
    now = datetime.datetime.now(datetime.UTC)
    past, future = (now + datetime.timedelta(hours=hours) for hours in (-1, 1))
    file = write(
        tmp_path / "keys.json",
        tenant("a", entry("old", expires=past.isoformat())),
        tenant("b", entry("new", expires=future.isoformat())),
    )
    directory = TenantDirectory(file, DEFAULTS)
    with pytest.raises(ApiError, match="expired"):
        directory.identify("Bearer old")
    assert directory.identify("Bearer new").name == "b"


def test_keys_are_rotated_and_revoked_while_the_router_runs(tmp_path):
    file = write(tmp_path / "keys.json", tenant("acme", "old"))
    directory = TenantDirectory(file, DEFAULTS)
    write(file, tenant("acme", "old", "new"))
    directory.refresh()
    assert [status_of(directory, f"Bearer {key}") for key in ("old", "new")] == ["acme", "acme"]
    write(file, tenant("acme", "new"))
    directory.refresh()
    assert [status_of(directory, f"Bearer {key}") for key in ("old", "new")] == [401, "acme"]


@pytest.mark.parametrize(
    "damage", ["{", "tenants: 5", "[]", '{"tenants": [{"name": "a b"}]}', None]
)
def test_a_broken_file_leaves_the_last_in_force(tmp_path, caplog, damage):
    file = write(tmp_path / "keys.json", tenant("acme", "key"))
    directory = TenantDirectory(file, DEFAULTS)
    if damage is None:
        file.unlink()
    else:
        file.write_text(damage)
    for _ in range(3):
        directory.refresh()
    assert directory.identify("Bearer key").name == "acme"
    assert directory.broken
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1
    write(file, tenant("umbrella", "key"))
    directory.refresh()
    assert directory.identify("Bearer key").name == "umbrella"
    assert not directory.broken


def test_a_file_without_keys_lets_no_one_in(tmp_path, caplog):
    directory = TenantDirectory(write(tmp_path / "keys.json"), DEFAULTS)
    assert directory.required
    assert status_of(directory, "Bearer k") == 401
    assert "lets no one in" in caplog.text


async def test_the_file_is_looked_at_again_and_again(tmp_path):
    file = write(tmp_path / "keys.json", tenant("acme", "old"))
    directory = TenantDirectory(file, DEFAULTS)
    task = asyncio.create_task(directory.keep_fresh(interval=0.01))
    write(file, tenant("acme", "brand-new"))
    async with asyncio.timeout(60):
        while status_of(directory, "Bearer brand-new") == 401:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()


async def test_a_fault_that_nobody_expected_is_not_the_last_look(tmp_path, monkeypatch):
    file = write(tmp_path / "keys.json", tenant("acme", "old"))
    directory = TenantDirectory(file, DEFAULTS)

    def fail(*_, **__):
        raise RuntimeError("odd")

    with monkeypatch.context() as patch:
        patch.setattr("pagelet.router.tenants.keys.read_key_files", fail)
        task = asyncio.create_task(directory.keep_fresh(interval=0.01))
        write(file, tenant("acme", "newer"))
        async with asyncio.timeout(60):
            while not directory.broken:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert directory.identify("Bearer old").name == "acme"
    write(file, tenant("acme", "newest"))
    async with asyncio.timeout(60):
        while status_of(directory, "Bearer newest") == 401:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert status_of(directory, "Bearer old") == 401
    assert not directory.broken
    task.cancel()


def test_a_folder_has_a_file_for_each_tenant(tmp_path):
    (tmp_path / "acme").write_text(f"keys: [{{hash: '{entry('k1')['hash']}'}}]\n")
    (tmp_path / "umbrella.yaml").write_text(
        f"keys:\n  - hash: {entry('k2')['hash']}\n    expires: 2999-01-01T00:00:00Z\nadmin: true\n"
    )
    (tmp_path / "..data").mkdir()
    directory = TenantDirectory(tmp_path, DEFAULTS)
    assert directory.identify("Bearer k1").name == "acme"
    assert directory.identify("Bearer k2").admin
    (tmp_path / "acme").unlink()
    directory.refresh()
    assert status_of(directory, "Bearer k1") == 401


HASH = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tenants: [{name: a, keys: [{hash: plain-key}]}]", r"\$.tenants\[0\].keys\[0\].hash"),
        ("tenants: [{name: a, limits: {requests: 5}}]", "requests"),
        ("tenants: [{name: a, limits: {concurrency: -5}}]", "concurrency"),
        ("tenants: [{name: a}, {name: a}]", "'a' is there twice"),
        (
            f"tenants: [{{name: a, keys: [{{hash: '{HASH}'}}]}}, "
            f"{{name: b, keys: [{{hash: '{HASH}'}}]}}]",
            "belongs to 'a' and to 'b'",
        ),
        (f"tenants: [{{name: a, keys: [{{hash: '{HASH}', expires: 2999-01-01}}]}}]", "expires"),
        (f"tenants: [{{name: a, keys: [{{hash: '{HASH}', key: x}}]}}]", "key"),
        ("tenants: [", r"keys.yaml:2: is no YAML: did not find expected node content$"),
        ("tenants:\n  - name: a\n   keys: []\n", r"keys.yaml:3: is no YAML: did not find expected"),
        ("---\na: 1\n---\nb: 2", "3: is no YAML: expected a single document in the stream, but f"),
        ("tenants: \x07", "is no YAML: control characters are not allowed, at character 10"),
        ("tenants: !!bool maybe", "keys.yaml:1: is no YAML: 'maybe' is no bool; quotes"),
        ("tenants: !!timestamp x", "keys.yaml:1: is no YAML: 'x' is no timestamp; quotes"),
    ],
)
def test_an_error_names_the_file_and_the_place(tmp_path, text, words):
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(KeyFileError, match=words) as error:
        read_key_files([file], folder=False)
    assert "\n" not in str(error.value)
    assert (
        str(file) in str(error.value) or "tenant" in words or "belongs" in words or "twice" in words
    )
    with pytest.raises(KeyFileError):
        TenantDirectory(file, DEFAULTS)


def test_keys_are_random_and_bearer_headers_are_read_as_clients_write_them():
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) >= 40 for key in keys)
    assert bearer_key("BEARER abc") == "abc"
    assert bearer_key("Bearer a b") == "a b"
    assert [bearer_key(header) for header in (None, "", "Bearer", "Bearer  ", "abc")] == [None] * 5
