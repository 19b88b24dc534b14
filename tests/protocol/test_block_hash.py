"""Two blocks have the same hash only if nothing that matters differs between them."""

from hypothesis import given
from hypothesis import strategies as st

from pagelet.protocol.block_hash import ExtraKey, hash_blocks

TOKENS = st.lists(st.integers(0, 2), max_size=24)
SALTS = st.sampled_from([None, "a", "b"])
ADAPTERS = st.sampled_from([None, "a", "b"])
Sequence = tuple[list[int], str | None, str | None, int]
SEQUENCES = st.tuples(TOKENS, SALTS, ADAPTERS, st.integers(0, 30))
BLOCK = 4


def hashes(sequence: Sequence) -> list[bytes]:
    tokens, salt, adapter, shared = sequence
    extras: list[ExtraKey] = []
    if adapter is not None:
        extras.append(("adapter", adapter))
    if salt is not None:
        extras.append(("salt", salt))
    return hash_blocks(tokens, BLOCK, extras, shared)


def content(sequence: Sequence, index: int) -> object:
    """Everything that block `index` depends on."""
    tokens, salt, adapter, shared = sequence
    salted = None if salt is None or index < shared // BLOCK else (salt, shared // BLOCK)
    return tokens[: (index + 1) * BLOCK], adapter, salted


@given(SEQUENCES, SEQUENCES)
def test_equal_hashes_are_of_equal_blocks(one: Sequence, other: Sequence) -> None:
    for index, block in enumerate(hashes(one)):
        for another, block_of_other in enumerate(hashes(other)):
            same = index == another and content(one, index) == content(other, another)
            assert (block == block_of_other) == same


@given(TOKENS, st.integers(0, 30), st.sampled_from(["a", "b"]))
def test_a_salt_divides_what_is_not_shared(tokens: list[int], shared: int, salt: str) -> None:
    plain = hashes((tokens, None, None, 0))
    salted = hashes((tokens, salt, None, shared))
    common = [block for block, other in zip(plain, salted, strict=True) if block == other]
    assert common == plain[: shared // BLOCK]


def test_hashes_do_not_change_between_versions() -> None:
    """Routers and replicas of neighbouring versions work together during an update."""
    one, two = hash_blocks(range(8), BLOCK, [("salt", "a")], shared_tokens=BLOCK)
    assert one.hex().startswith("622269c1c186b73f")
    assert two.hex().startswith("01846f33d8bdafbc")
