"""A replica's own words about its start."""

import pytest

from pagelet.local.replica import _stage


@pytest.mark.parametrize(
    ("lines", "stage"),
    [
        ([], ""),
        (["T INFO [supervisor] API server: starting", "a traceback: engine core 0: no"], ""),
        (
            [
                "T INFO [supervisor] engine core 0: starting",
                "T INFO [supervisor] engine core 0: compiling the CPU kernels (first start only)",
                "T INFO [supervisor] API server: starting",
            ],
            "compiling the CPU kernels (first start only)",
        ),
        (["T INFO [supervisor] engine core 0: loading weights 45%"], "loading weights"),
    ],
)
def test_the_last_stage_counts(lines: list[str], stage: str) -> None:
    assert _stage(lines) == stage
