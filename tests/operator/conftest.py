"""What the tests of the operator share."""

import sys
from pathlib import Path

import pytest

from pagelet.operator.planning.context import Context

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "e2e"))


@pytest.fixture
def context() -> Context:
    """An installation."""
    return Context(agent_image="agent:1", router_image="router:1")
