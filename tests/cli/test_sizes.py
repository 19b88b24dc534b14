import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.cli.sizes import parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 1 << 20),
        ("512MiB", 512 << 20),
        ("2GiB", 2 << 30),
        ("2 GB", 2 * 10**9),
        ("2Gi", 2 << 30),
        ("1.5g", 3 << 29),
        ("64k", 64 << 10),
        ("10B", 10),
        ("1tib", 1 << 40),
    ],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "0", "1.2.3G", "2 GiB free", "1PiB", "nan"])
def test_what_is_no_size_is_refused_with_what_would_be(text: str) -> None:
    with pytest.raises(ValueError, match="no size: "):
        parse_bytes(text)


@given(st.integers(1, 1 << 50))
def test_every_number_of_bytes_stays_itself(size: int) -> None:
    assert parse_bytes(str(size)) == parse_bytes(f"{size}B") == size
