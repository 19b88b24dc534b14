"""Which bodies are taken at all."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.protocol.openai import http_body
from pagelet.protocol.openai.errors import ApiError
from pagelet.protocol.openai.http_body import check_elements

JSON = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('a\\"{[,\n\u00e9')),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.sampled_from('ab\\"{')), inner),
    max_leaves=30,
)


def count(value):
    """Strings, objects and lists in a value."""
    if isinstance(value, str):
        return 1, 0
    if not isinstance(value, dict | list):
        return 0, 0
    inner = [count(each) for each in (value if isinstance(value, list) else value.values())]
    names = len(value) if isinstance(value, dict) else 0
    return names + sum(each[0] for each in inner), 1 + sum(each[1] for each in inner)


def refused(value):
    with contextlib.suppress(ApiError):
        check_elements(json.dumps(value, ensure_ascii=False).encode())
        return False
    return True


@given(JSON, st.integers(0, 10), st.integers(0, 10))
def test_only_what_is_outside_of_strings_counts(value, most_strings, most_containers):
    strings, containers = count(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_body, "_MOST_STRINGS", most_strings)
        patch.setattr(http_body, "_MOST_CONTAINERS", most_containers)
        assert refused(value) == (strings > most_strings or containers > most_containers)


def test_long_texts_of_data_pass():
    assert not refused({"messages": [{"role": "user", "content": '{"a": [1, 2]},\n' * 300_000}]})


@pytest.mark.parametrize("each", [{}, [], [[]], "a", {"a": "b"}])
def test_many_small_values_do_not(each):
    assert not refused({"messages": [each] * 5_000})
    assert refused({"messages": [each] * 200_000})
