"""Every test of the CPU library runs in each instruction set that the machine has."""

from collections.abc import Iterator

import pytest

from pagelet.kernels.cpu.library import library, status

TIERS = status().tiers


@pytest.fixture(params=TIERS or ["none"])
def tier(request: pytest.FixtureRequest) -> Iterator[str]:
    if not TIERS:
        pytest.skip(f"the CPU library is unavailable: {status().reason}")
    before = library().tier
    library().use_tier(request.param)
    yield request.param
    library().use_tier(before)
