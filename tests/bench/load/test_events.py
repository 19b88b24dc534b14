"""Events are the same however the network cuts the bytes."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pagelet.bench.load.events import EventParser

LINE_ENDS = st.sampled_from([b"\n", b"\r\n"])
TEXTS = st.text(alphabet=st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))


@given(
    texts=st.lists(TEXTS, max_size=10),
    line_end=LINE_ENDS,
    comments=st.booleans(),
    points=st.lists(st.integers(0, 2000), max_size=20),
)
def test_any_cut_gives_every_event_once(
    texts: list[str], line_end: bytes, comments: bool, points: list[int]
) -> None:
    stream = b""
    for text in texts:
        if comments:
            stream += b": ping" + 2 * line_end
        stream += b"data: " + text.encode() + 2 * line_end
    bounds = [0, *sorted(point % (len(stream) + 1) for point in points), len(stream)]
    parser = EventParser()
    found = [
        payload
        for start, end in itertools.pairwise(bounds)
        for payload in parser.feed(stream[start:end])
    ]
    assert found == [text.encode() for text in texts]
    assert parser.pending == b""


def test_an_event_is_there_with_its_last_byte() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\r\n\r") == []
    assert parser.feed(b"\ndata") == [b"a"]
    assert parser.pending == b"data"


def test_fields_other_than_data_are_left_out_and_lines_are_joined() -> None:
    event = b"event: token\nid: 3\ndata:one\ndata: two\nretry: 5\n\n"
    assert EventParser().feed(event + b"id: 4\n\n") == [b"one\ntwo"]
