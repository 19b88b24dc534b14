"""Tenants share the KV blocks of a declared prefix, and nothing else."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pagelet.engine.kv.manager import LEAST_COPIED
from pagelet.protocol.block_hash import ExtraKey, hash_blocks
from pagelet.protocol.kv_events import BlockStored, KVEvent

from .test_scheduler import BLOCK, iter_outputs, make_core, request

TOKENS = st.lists(st.integers(0, 50), min_size=1, max_size=30)
SALTS = st.sampled_from([None, "a", "b"])


def common_length(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@given(
    head=st.lists(st.integers(0, 50), max_size=60),
    tails=st.lists(TOKENS, min_size=2, max_size=2),
    salts=st.lists(SALTS, min_size=2, max_size=2),
    shared=st.integers(0, 90),
)
@settings(max_examples=150)
def test_hits_between_tenants(
    head: list[int], tails: list[list[int]], salts: list[str | None], shared: int
) -> None:
    core = make_core(num_blocks=200, events=True)
    prompts = [head + tail for tail in tails]
    hits = []
    for index, (prompt, salt) in enumerate(zip(prompts, salts, strict=True)):
        core.add(request(index, prompt, 1, cache_salt=salt, shared_prefix_tokens=shared))
        (output,) = iter_outputs(core)
        hits.append(output.num_cached_tokens)
    same = common_length(*prompts)
    if salts[0] != salts[1]:
        same = min(same, shared // BLOCK * BLOCK)
    same = min(same, len(prompts[1]) - 1)
    whole, begun = same // BLOCK, same % BLOCK
    # Of a block that is cached the first tokens are, too.
    if begun < LEAST_COPIED or len(prompts[0]) < (whole + 1) * BLOCK:
        begun = 0
    assert hits == [0, whole * BLOCK + begun]
    check_events(core.take_kv_events(), prompts, salts, shared)


def check_events(
    events: list[KVEvent], prompts: list[list[int]], salts: list[str | None], shared: int
) -> None:
    """A router that hashes prompts itself gets the hashes of the events, and one that follows the
    events alone learns from them which blocks are salted."""
    expected: dict[bytes, list[str] | None] = {}
    for prompt, salt in zip(prompts, salts, strict=True):
        extras: list[ExtraKey] = [] if salt is None else [("salt", salt)]
        for index, block in enumerate(hash_blocks(prompt, BLOCK, extras, shared)):
            first_salted = salt is not None and index == shared // BLOCK
            expected[block] = [salt] if first_salted and salt is not None else None
    told: dict[bytes, list[str] | None] = {}
    for event in events:
        assert isinstance(event, BlockStored)
        keys = event.extra_keys or [None] * len(event.block_hashes)
        told.update(zip(event.block_hashes, keys, strict=True))
    assert told == expected
