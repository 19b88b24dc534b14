import json
import stat

import pytest
import yaml
from typer.testing import CliRunner

from pagelet.cli.keys import app
from pagelet.protocol.openai.errors import ApiError
from pagelet.protocol.router import TenantLimits
from pagelet.router.tenants.key_edit import KeyStore
from pagelet.router.tenants.key_file import KeyFileError
from pagelet.router.tenants.keys import TenantDirectory

runner = CliRunner()


def run(*arguments, fails=False):
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert (result.exit_code != 0) == fails, result.output
    return result.output.strip()


@pytest.mark.parametrize("days", ["1e12", "inf", "-1", "nan"])
def test_a_key_expires_within_a_time_that_there_is(tmp_path, days):
    file = tmp_path / "keys.yaml"
    assert "--days" in run("new", "acme", "--file", file, "--days", days, fails=True)
    assert not file.exists()


@pytest.mark.parametrize("folder", [False, True])
def test_changes_that_others_make_meanwhile_are_kept(tmp_path, folder):
    path = tmp_path / "keys"
    if folder:
        path.mkdir()
    stores = [KeyStore(path) for _ in range(3)]
    keys = [store.add("acme", note="", expires=None, admin=False) for store in stores]
    stores[0].revoke(KeyStore(path).tenants[0].keys[1].id)
    directory = TenantDirectory(path, TenantLimits())
    for key in (keys[0], keys[2]):
        assert directory.identify(f"Bearer {key}").name == "acme"
    with pytest.raises(ApiError):
        directory.identify(f"Bearer {keys[1]}")


@pytest.mark.parametrize("name", ["keys.yaml", "keys.json", "keys"])
def test_a_key_is_printed_once_and_works_until_it_is_revoked(tmp_path, name):
    file = tmp_path / "new" / name
    first = run("new", "acme", "--file", file, "--note", "laptop")
    second = run("new", "acme", "--file", file, "--admin", "--days", 30)
    other = run("new", "umbrella", "--file", file)
    assert len({first, second, other}) == 3
    text = file.read_text()
    assert all(key not in text for key in (first, second, other))
    (json.loads if name == "keys.json" else yaml.safe_load)(text)

    directory = TenantDirectory(file, TenantLimits())
    assert directory.identify(f"Bearer {first}").name == "acme"
    assert directory.identify(f"Bearer {second}").admin
    assert not directory.identify(f"Bearer {other}").admin

    listed = run("list", "--file", file).splitlines()
    (line,) = [line for line in listed if "laptop" in line]
    key_id = next(word for word in line.split() if len(word) == 12 and word in text)
    assert run("revoke", key_id[:6], "--file", file) == "revoked a key of acme"
    directory.refresh()
    with pytest.raises(Exception, match="Incorrect API key"):
        directory.identify(f"Bearer {first}")
    assert directory.identify(f"Bearer {second}").name == "acme"


@pytest.mark.parametrize("arguments", [["list"], ["revoke", "0f3a"]])
def test_a_file_that_is_not_there_has_no_keys_to_list(tmp_path, arguments):
    assert "does not exist" in run(*arguments, "--file", tmp_path / "keys.yml", fails=True)


def test_a_folder_gets_a_file_for_each_tenant(tmp_path):
    (tmp_path / "acme.json").write_text('{"limits": {"concurrency": 3}}')
    first = run("new", "acme", "--file", tmp_path)
    second = run("new", "umbrella", "--file", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["acme.json", "umbrella"]
    directory = TenantDirectory(tmp_path, TenantLimits())
    assert directory.identify(f"Bearer {first}").limits.concurrency == 3
    assert directory.identify(f"Bearer {second}").name == "umbrella"


def test_a_change_keeps_the_files_mode_its_link_and_the_rest_of_it(tmp_path):
    real, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    real.write_text("tenants: [{name: acme, models: [m], limits: {requests_per_minute: null}}]")
    real.chmod(0o640)
    link.symlink_to(real)
    KeyStore(link).add("umbrella", note="", expires=None, admin=False)
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    acme, umbrella = KeyStore(real).tenants
    assert (acme.models, acme.limits) == (["m"], {"requests_per_minute": None})
    assert len(umbrella.keys) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.yaml", "real.yaml"]


def test_a_new_file_is_for_its_owner_only(tmp_path):
    run("new", "acme", "--file", tmp_path / "keys.yaml")
    assert stat.S_IMODE((tmp_path / "keys.yaml").stat().st_mode) == 0o600


def test_what_cannot_be_done_says_why(tmp_path):
    file = tmp_path / "keys.yaml"
    assert "cannot name a tenant" in run("new", "../acme", "--file", file, fails=True)
    assert not file.exists()
    run("new", "acme", "--file", file)
    assert "0 keys have an id" in run("revoke", "zz", "--file", file, fails=True)
    assert "0 keys have an id" in run("revoke", "", "--file", file, fails=True)
    file.write_text("tenants: 5")
    assert "Expected" in run("new", "acme", "--file", file, fails=True)
    with pytest.raises(KeyFileError):
        KeyStore(file)
    nameless = tmp_path / ("x" * 300)
    assert run("new", "acme", "--file", nameless, fails=True) == (
        f"Error: {nameless}: File name too long"
    )
