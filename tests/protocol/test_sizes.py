"""Sizes as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.cli.sizes import parse_bytes
from pagelet.protocol.sizes import format_at_least, format_at_most, format_bytes


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1 << 20, "1.0 MiB"), (3 << 39, "1.5 TiB")]
)
def test_sizes_are_written_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(1, 1 << 50))
def test_what_is_missing_is_never_told_as_less(size: int) -> None:
    number, unit = format_at_least(size).replace(",", "").split()
    told = int(number) << {"KiB": 10, "MiB": 20}[unit]
    assert size <= told < size + max(1 << 10, 2 * size)


@given(st.integers(1 << 10, 1 << 50))
def test_what_has_room_is_never_told_as_more(size: int) -> None:
    assert size * 0.49 < parse_bytes(format_at_most(size)) <= size
