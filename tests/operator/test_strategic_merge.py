"""Merging pod templates as `kubectl patch --type=strategic` does; `test_on_cluster.py` compares the
two."""

import copy
from typing import Any

import pytest

from pagelet.operator.planning.strategic_merge import strategic_merge
from support.strategic_merges import BASE, MERGES


@pytest.mark.parametrize(("patch", "expected"), MERGES)
def test_merges(patch: dict[str, Any], expected: dict[str, Any]) -> None:
    before = copy.deepcopy((BASE, patch))
    assert strategic_merge(BASE, patch) == BASE | expected
    assert (BASE, patch) == before
