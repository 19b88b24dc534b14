import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.router.routing.decode_speed import DecodeSpeed

counts = st.lists(st.integers(1, 64), min_size=30, max_size=60)


@given(counts, st.floats(0.001, 0.1), st.floats(0.0001, 0.01))
def test_it_gives_what_it_saw_at_the_number_of_answers_that_it_saw(answers, base, each):
    speed = DecodeSpeed()
    for count in answers:
        speed.observe(count, 100, 100 * (base + each * count))
    line = speed.line
    assert line.base >= -1e-9
    assert line.each > 0
    predicted = [line.base + line.each * count for count in answers]
    low, high = base + each * min(answers), base + each * max(answers)
    assert low - 1e-9 <= sum(predicted) / len(predicted) <= high + 1e-9


def test_different_numbers_of_answers_tell_the_two_parts_of_a_token_apart():
    speed = DecodeSpeed()
    for round_ in range(200):
        count = 1 + round_ * 7 % 64
        speed.observe(count, 50, 50 * (0.02 + 0.001 * count))
    assert speed.line.base == pytest.approx(0.02, rel=0.15)
    assert speed.line.each == pytest.approx(0.001, rel=0.15)
    assert speed.line.answers(0.05) == pytest.approx(30, rel=0.1)


def test_where_all_are_alike_half_is_taken_to_be_each_answers_own():
    speed = DecodeSpeed()
    for _ in range(50):
        speed.observe(10, 20, 20 * 0.04)
    assert speed.line.base + 10 * speed.line.each == pytest.approx(0.04)
    assert speed.line.answers(0.06) == pytest.approx(20)


def test_the_beginnings_of_answers_tell_nothing():
    speed = DecodeSpeed()
    speed.observe(4, 3, 9.0)
    assert speed.line is None


def test_tokens_that_come_all_at_once_cost_next_to_nothing():
    speed = DecodeSpeed()
    speed.observe(2, 100, 0.0)
    assert speed.line.answers(0.05) > 1000
