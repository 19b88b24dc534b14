"""YAML means the same on one machine as to kubectl."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pagelet.protocol.inference_service.kubectl_yaml import KubectlLoader

PLAIN = (
    *("010", "0o10", "0777", "-010", "0x1F", "0X1f", "-0x1", "0b11", "-0b1", "0b2", "08", "09.5"),
    *("1_000", "1__0", "_1", "0_7", "1_", "0x_1", "1_0.5", "0.1_5", "00", "-0", "+1", "+-1"),
    *("1:30", "190:20:30", "12:30:45.5", "2026-11-30", "2001-12-14t21:59:43.10-05:00", "1-2"),
    *("1e3", "12e03", "1.5e3", "1e-2", "1E+2", "1.", "1.0", ".5", "+.5", "0.1e1", "1e400", "1e22"),
    *("-1e18", ".", "..", ".e1", "0o", "0b", "0x", "0o8", "1e", "1.2.3", "12abc", "0.10"),
    *("y", "Y", "yes", "Yes", "YES", "yEs", "on", "On", "ON", "true", "True", "TRUE", "tRue"),
    *("n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE", "nO"),
    *("~", "null", "Null", "NULL", "nULL", "", "=", "<", "hello", "a b", "9223372036854775807"),
)
TAGGED = (
    "!!str 5",
    "!!str yes",
    "!!int 010",
    "!!float 1",
    "!!bool on",
    "'010'",
    '"yes"',
    "|\n    1",
)
MAPPINGS = "a: &a {x: 1, z: 010}\nb: {<<: *a, x: 2}\nc: [yes, *a]\n"


def by_kubectl(program: Path, text: str) -> Any:
    """As it comes out of kubectl's conversion to JSON; nothing is asked of a cluster."""
    head = "apiVersion: example.dev/v1\nkind: Anything\nmetadata: {name: a}\nspec:\n"
    body = "".join(f"  {line}\n" for line in text.splitlines())
    command = [str(program), "annotate", "--local", "--filename=-", "x=y", "--output=json"]
    result = subprocess.run(command, input=head + body, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)["spec"]


def by_us(text: str) -> Any:
    loader = KubectlLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


@pytest.fixture
def kubectl(control_plane: Path) -> Path:
    return control_plane.parent / "bin" / "kubectl"


def test_values_are_what_kubectl_makes_of_them(kubectl: Path) -> None:
    lines = [f"v{number}: {value}" for number, value in enumerate((*PLAIN, *TAGGED))]
    text = "\n".join([*lines, ""]) + MAPPINGS
    theirs, ours = by_kubectl(kubectl, text), by_us(text)
    assert {name: (value, type(value)) for name, value in ours.items()} == {
        name: (value, type(value)) for name, value in theirs.items()
    }
