"""What a cache holds stays within its bound, and what was used last stays longest."""

from hypothesis import given
from hypothesis import strategies as st

from pagelet.router.tokens.cache import WeightedCache


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40))))
def test_the_weight_is_that_of_the_entries_and_within_the_bound(puts) -> None:
    cache: WeightedCache[int, int] = WeightedCache(50)
    for key, weight in puts:
        cache.put(key, weight, weight)
        held = [value for key in range(10) if (value := cache.get(key)) is not None]
        assert sum(held) <= 50
        assert cache.get(key) == weight


def test_what_is_used_stays() -> None:
    cache: WeightedCache[str, int] = WeightedCache(2)
    cache.put("a", 1, 1)
    cache.put("b", 2, 1)
    assert cache.get("a") == 1
    cache.put("c", 3, 1)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)


def test_what_is_too_heavy_is_not_kept() -> None:
    cache: WeightedCache[str, int] = WeightedCache(10)
    cache.put("a", 1, 11)
    assert cache.get("a") is None
    assert len(cache) == 0
