"""Other routers' policies, as the simulator has them."""

from pagelet.bench.routing.peers import PEERS, TokenCost, Tree
from pagelet.protocol.block_hash import hash_blocks
from pagelet.protocol.kv_events import BlockRemoved, BlockStored
from pagelet.router.routing.ring import prompt_head
from pagelet.router.routing.types import RouteRequest


def make_request(start: int, tokens: int = 320) -> RouteRequest:
    hashes = hash_blocks([start] * tokens, 16)
    return RouteRequest("r", hashes, tokens, 16, prompt_head(hashes, b""))


def test_all_follow_a_prefix_and_forget_the_load_of_what_ended() -> None:
    for name, make in PEERS.items():
        peer, request = make(4), make_request(1)
        first, hit, _, sent = peer.choose(request, 0.0)
        assert hit == 0
        assert peer.load[first] == 1
        sent.on_first_byte(0.1)
        sent.on_end(0.2, ok=True)
        assert peer.load == peer.pending == [0] * 4
        assert not any(peer.active)
        again, hit, _, _ = peer.choose(request, 0.3)
        assert again == first, name
        assert hit >= 304, name


def test_token_cost_goes_by_events_and_leaves_a_busy_holder() -> None:
    peer, request = TokenCost(2), make_request(1)
    stored = BlockStored(
        block_hashes=list(request.block_hashes),
        parent_block_hash=None,
        token_ids=[],
        block_size=16,
    )
    peer.on_events(1, [stored], 0.0)
    assert peer.choose(request, 0.0)[0] == 1
    peer.pending[1] += 10_000
    assert peer.choose(request, 0.0)[0] == 0
    peer.on_events(1, [BlockRemoved(block_hashes=list(request.block_hashes))], 0.0)
    peer.pending[1] = 0
    assert peer.choose(request, 100.0)[1] < 304


def test_trees_differ_in_when_they_leave_a_holder() -> None:
    """The one waits until the fleet is out of balance by 64 requests, the other until the holder is
    out of the mean's usual swing."""
    switch, spill = Tree(4, spill=False), Tree(4, spill=True)
    request = make_request(1)
    for peer, least, most in ((switch, 60, 66), (spill, 4, 8)):
        holder = peer.choose(request, 0.0)[0]
        stayed = 1
        while peer.choose(request, 0.0)[0] == holder:
            stayed += 1
            assert stayed <= most
        assert stayed >= least
