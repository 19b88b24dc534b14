"""The objects of every example, as committed under `golden/`.

`UPDATE_GOLDEN=1 pytest tests/operator/test_plan_golden.py` writes them again; read the difference.
"""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from pagelet.operator.plan import plan
from pagelet.operator.planning.context import Context
from pagelet.protocol.inference_service.load import load_services

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_plan_of_an_example(example: Path, context: Context) -> None:
    objects = []
    for service in load_services(example.read_text(), example.name):
        placed = msgspec.structs.replace(service, namespace="default")
        objects += plan(placed, context)
    text = yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=100)
    golden = Path(__file__).parent / "golden" / example.name
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert golden.read_text() == text
