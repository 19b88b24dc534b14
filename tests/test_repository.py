"""Rules that hold for the repository as a whole."""

import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MOST_LINES = 600
REGISTRY_HOSTS = re.compile(
    r"py"
    r"pi\.org|pythonhosted\.org|registry\.npmjs\.org|crates\.io|deb\.debian\.org"
    r"|repo1?\.maven\.org|proxy\.golang\.org|download\.pytorch\.org"
)
MACHINE_PATHS = re.compile(r"(?<![\w.~$}])/(?:home|root|work|Users)/[\w.-]+")
WITH_INIT = {"engine"}
"""Rooms with a public surface, which is loaded lazily. In any other an `__init__.py` could hide a
top-level module of the same name from a Python that is started in the root."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def tracked_files() -> list[Path]:
    """Files of the working tree that git knows or would add; links are not followed."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = (ROOT / name for name in listing.split("\0") if name)
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def rooms() -> list[str]:
    """Names of the rooms that the import rules know."""
    packages = PROJECT["tool"]["importlinter"]["root_packages"]
    return [package.removeprefix("pagelet.") for package in packages]


def violations(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in tracked_files():
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue  # a binary test file
        for number, line in enumerate(lines, 1):
            if match := pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    return found


def test_no_host_of_a_package_registry_is_named() -> None:
    assert violations(REGISTRY_HOSTS) == []


def test_no_path_of_some_persons_machine_is_named() -> None:
    assert violations(MACHINE_PATHS) == []


def test_the_patterns_find_what_they_are_for() -> None:
    assert REGISTRY_HOSTS.search("https://py" + "pi.org/simple")
    assert MACHINE_PATHS.search("open('/" + "home/someone/model.gguf')")
    assert MACHINE_PATHS.search("cd /" + "work/x")
    assert not MACHINE_PATHS.search("see docs/home/page.md and $HOME/home/x")


def test_no_source_file_is_too_long_to_read() -> None:
    lengths = {
        path.relative_to(ROOT): path.read_text().count("\n")
        for path in tracked_files()
        if path.suffix in {".py", ".cpp", ".h", ".sh"}
    }
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


@pytest.mark.parametrize("room", rooms())
def test_a_room_is_a_namespace_reached_through_its_link(room: str) -> None:
    link = ROOT / "src" / "pagelet" / room
    assert link.is_symlink()
    assert link.resolve() == ROOT / room
    assert room not in WITH_INIT or "__getattr__" in (ROOT / room / "__init__.py").read_text()
    assert room in WITH_INIT or not (ROOT / room / "__init__.py").exists()
    assert any((ROOT / room).rglob("*.py")), "an empty room"


def test_every_room_has_import_rules() -> None:
    linked = {path.name for path in (ROOT / "src" / "pagelet").iterdir()}
    assert linked == set(rooms())
    assert not (ROOT / "src" / "pagelet" / "__init__.py").exists()


def test_no_room_hides_the_standard_library_from_a_python_started_in_the_root() -> None:
    code = "import collections, operator; print(operator.__file__)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert not Path(result.stdout.strip()).is_relative_to(ROOT)


@pytest.mark.parametrize("room", sorted({"protocol", "local", "cli"} & set(rooms())))
def test_a_light_room_imports_without_the_engines_packages(room: str) -> None:
    modules = [
        "pagelet." + path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for path in sorted((ROOT / room).rglob("*.py"))
    ]
    code = (
        "import importlib, sys\n"
        "for name in ('torch', 'numpy', 'transformers', 'fastapi', 'zmq', 'tokenizers'):\n"
        "    sys.modules[name] = None\n"
        f"for module in {modules!r}:\n"
        "    importlib.import_module(module)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert result.returncode == 0, result.stderr.decode()


def test_every_pinned_package_has_a_hash_and_every_dependency_is_pinned() -> None:
    pinned = set()
    for path in (ROOT / "requirements").glob("*.txt"):
        entries = path.read_text().replace("\\\n", " ").splitlines()
        assert entries
        for entry in entries:
            assert "--hash=sha256:" in entry, f"{path.name}: {entry[:80]}"
            pinned.add(entry.split("==")[0])
    project = PROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = {
        re.split(r"[\[<>=~! ]", requirement, maxsplit=1)[0].replace("_", "-").lower()
        for requirement in itertools.chain(*groups)
    }
    assert wanted - {"pagelet"} <= pinned, "run: make requirements"
