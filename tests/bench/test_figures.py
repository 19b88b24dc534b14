"""Figures, percentiles and the table."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pagelet.bench.figures import Figure, machine, percentile, render

FLOATS = st.floats(-1e9, 1e9)


@given(st.lists(FLOATS, min_size=1), st.integers(0, 100))
def test_percentile_is_numpys_nearest_rank(values: list[float], percent: int) -> None:
    expected = np.percentile(np.array(values), percent, method="inverted_cdf")
    assert percentile(values, percent) == expected


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


@pytest.mark.parametrize(
    ("value", "better", "met"), [(10, "higher", True), (9, "higher", False), (9, "lower", True)]
)
def test_a_target_is_a_least_or_a_most(value: float, better: str, met: bool) -> None:
    assert Figure("x", "y", value, "s", 10, better).met is met  # type: ignore[arg-type]


def test_the_table_names_values_targets_and_the_machine() -> None:
    host = machine()
    console = Console(width=80, record=True, file=io.StringIO())
    figures = [
        Figure("engine core", "decode", 61234.5, "tokens/s", 50_000),
        Figure("start", "first token", 12.3, "s", 10, "lower"),
    ]
    console.print(render(figures, host))
    text = " ".join(console.export_text().split())
    assert "61,234 tokens/s ≥ 50,000: met" in text
    assert "12.3 s ≤ 10: missed" in text
    assert host["processor"] in text
    assert f"torch {host['versions']['torch']}" in text
