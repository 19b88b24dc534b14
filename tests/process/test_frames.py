"""Frames: what goes in comes out, however the stream is cut; a cut stream is told from an end."""

import socket

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.process import frames

DECODER = msgspec.msgpack.Decoder()
VALUES = st.lists(
    st.recursive(
        st.none() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)


@given(VALUES, st.lists(st.integers(1, 7)))
def test_any_cut_of_the_stream_gives_the_same_values(values, cuts):
    stream = b"".join(bytes(frames.encode_frame(value)) for value in values)
    reader, received, start = frames.FrameReader(DECODER), [], 0
    for size in [*cuts, len(stream) + 1]:
        received += reader.feed(stream[start : start + size])
        start += size
    assert received == values
    assert not reader.pending


def test_a_socket_carries_frames_until_a_clean_end():
    left, right = socket.socketpair()
    with right:
        with left:
            frames.send_frame(left, {"step": 1})
            frames.send_frame(left, [1, 2, 3])
        assert frames.recv_frame(right, DECODER) == {"step": 1}
        assert frames.recv_frame(right, DECODER) == [1, 2, 3]
        with pytest.raises(EOFError):
            frames.recv_frame(right, DECODER)


@pytest.mark.parametrize("kept", [2, 6])
def test_an_end_inside_a_frame_is_not_a_clean_end(kept):
    left, right = socket.socketpair()
    with right:
        with left:
            left.sendall(frames.encode_frame("some text")[:kept])
        with pytest.raises(ConnectionError):
            frames.recv_frame(right, DECODER)
    reader = frames.FrameReader(DECODER)
    assert reader.feed(bytes(frames.encode_frame("some text")[:kept])) == []
    assert reader.pending


def test_an_oversized_frame_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 16)
    with pytest.raises(frames.FrameTooLarge, match="limit of 16 bytes"):
        frames.encode_frame(b"x" * 20)
    with pytest.raises(frames.FrameTooLarge, match="4294967295 bytes"):
        frames.FrameReader(DECODER).feed(b"\xff\xff\xff\xff")
