"""Shares of a replica's time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.router.replicas.shared_time import SharedTime


def test_time_is_shared_by_those_who_work_at_once() -> None:
    time = SharedTime()
    first = time.begin(10.0, 1)
    second = time.begin(12.0, 3)  # alone for 2 s, then one of four for 4 s
    assert time.end(16.0, 1, first) == pytest.approx(2 + 4 / 4)
    assert time.end(17.0, 3, second) == pytest.approx(3 * 4 / 4 + 1)
    third = time.begin(100.0, 1)
    assert time.end(101.0, 1, third) == pytest.approx(1.0)


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 50), st.integers(1, 8)), min_size=1, max_size=20
    )
)
def test_shares_add_up_to_the_time_in_which_it_was_busy(
    requests: list[tuple[float, float, int]],
) -> None:
    time = SharedTime()
    events = sorted(
        event
        for number, (start, length, _) in enumerate(requests)
        for event in ((start, 0, number), (start + length, 1, number))
    )
    began: dict[int, float] = {}
    shares, busy, before = 0.0, 0.0, 0.0
    for now, kind, number in events:
        busy += now - before if began else 0.0
        before = now
        answers = requests[number][2]
        if kind == 0:
            began[number] = time.begin(now, answers)
        else:
            share = time.end(now, answers, began.pop(number))
            assert share >= 0
            shares += share
    assert shares == pytest.approx(busy, abs=1e-6)
