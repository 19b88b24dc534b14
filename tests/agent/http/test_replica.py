"""What a router is told of a replica is so."""

import logging

import httpx
import msgspec
import pytest
import zmq

from pagelet.protocol.block_hash import hash_blocks
from pagelet.protocol.config import KVEventsOptions, ParallelOptions, SchedulerOptions
from pagelet.protocol.kv_events import BlockStored, decode_batch
from pagelet.protocol.replica import ReplicaDescription
from pagelet.text.bundle import decode_bundle
from support.processes import wait_for

from .real_engine import replica, simulated

ANYWHERE = "tcp://127.0.0.1:0"


@pytest.fixture(scope="module")
def two_ranks():
    options = simulated(
        cache={"num_blocks": 2000, "block_size": 8},
        scheduler={"max_num_seqs": 7, "policy": "priority"},
        parallel=ParallelOptions(data_parallel_size=2),
        kv_events=KVEventsOptions(endpoint=ANYWHERE, replay_endpoint=ANYWHERE),
    )
    with replica(options) as server:
        yield server


def describe(server):
    answer = server.get("/v1/replica").raise_for_status()
    return msgspec.json.decode(answer.content, type=ReplicaDescription)


def complete(server, prompt, **options):
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 4} | options
    return server.post("/v1/completions", json=body).raise_for_status().json()


def test_description(two_ranks):
    description = describe(two_ranks)
    assert description.served_model_names == ["tiny"]
    assert (description.block_size, description.num_kv_blocks) == (8, 2 * 1999)
    assert (description.max_num_seqs, description.data_parallel_size) == (14, 2)
    assert description.takes_priority
    assert description.enable_prefix_caching
    assert not description.draining
    assert description == describe(two_ranks)


def test_speed_is_measured():
    with replica(simulated(step_seconds=0.002)) as server:
        first = describe(server)
        assert (first.prefill_tokens_per_second, first.decode_step_seconds) == (None, None)
        complete(server, list(range(1000, 1400)), max_tokens=8)
        second = describe(server)
        # A step takes 2 ms or more, full of a prompt or of one decode.
        full = SchedulerOptions().max_num_batched_tokens
        assert 0 < second.prefill_tokens_per_second <= full / 0.002
        assert second.decode_step_seconds >= 0.002


def test_each_rank_publishes_where_it_is_said(two_ranks):
    source = describe(two_ranks).kv_events
    assert len(set(source.endpoints)) == len(set(source.replay_endpoints)) == 2
    known = set()
    prompts = [list(range(start, start + 20)) for start in range(1000, 1400, 20)]
    for prompt in prompts:
        complete(two_ranks, prompt)
    with zmq.Context() as context:
        for endpoint in source.replay_endpoints:
            with context.socket(zmq.DEALER) as dealer:
                dealer.connect(endpoint)
                dealer.send((0).to_bytes(8, "big"))
                mine = set()
                while dealer.poll(20_000) and (parts := dealer.recv_multipart())[1]:
                    for event in decode_batch(parts[1]).events:
                        if isinstance(event, BlockStored):
                            mine.update(event.block_hashes)
                assert mine, "each rank had some of the requests"
                known |= mine
    for prompt in prompts:
        assert set(hash_blocks(prompt, 8)) <= known


def test_no_events_are_published_unless_asked_for():
    with replica(simulated(cache={"num_blocks": 1000})) as server:
        assert describe(server).kv_events is None


def test_the_tokenizer_makes_the_prompts_that_the_replica_would(two_ranks):
    answer = two_ranks.get("/v1/tokenizer")
    digest = describe(two_ranks).tokenizer
    assert answer.headers["etag"] == f'"{digest}"'
    prompts = decode_bundle(answer.content).load()
    messages = [{"role": "user", "content": "How many tokens are „Füße“? 😀"}]
    for body, own in (
        ({"messages": messages}, prompts.encode_chat(messages)),
        ({"prompt": messages[0]["content"]}, prompts.encode(messages[0]["content"])),
    ):
        assert two_ranks.post("/tokenize", json=body).json()["tokens"] == own


def test_a_tokenizer_that_is_known_is_not_sent_again(two_ranks):
    etag = two_ranks.get("/v1/tokenizer").headers["etag"]
    again = two_ranks.get("/v1/tokenizer", headers={"If-None-Match": etag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)


def test_another_engine_has_another_incarnation(two_ranks):
    with replica(simulated(cache={"num_blocks": 1000})) as another:
        assert describe(another).incarnation != describe(two_ranks).incarnation
        assert describe(another).tokenizer == describe(two_ranks).tokenizer


def test_a_drain_shows_and_a_key_is_needed(caplog):
    caplog.set_level(logging.INFO, "pagelet.access")
    with replica(simulated(cache={"num_blocks": 1000}), api_keys=["secret"]) as server:
        key = {"Authorization": "Bearer secret"}
        assert server.get("/v1/replica").status_code == 401
        assert server.get("/v1/replica", headers=key).json()["draining"] is False
        server.run(server.state.begin_drain)
        assert server.get("/v1/replica", headers=key).json()["draining"] is True
        assert server.get("/v1/tokenizer", headers=key).status_code == 200
        assert server.get("/v1/models", headers=key).status_code == 503
    # What routers ask every second is not logged while it goes well.
    logged = [(r.path, r.status) for r in caplog.records if r.name == "pagelet.access"]
    assert logged == [("/v1/replica", 401), ("/v1/models", 503)]


def test_a_server_without_an_engine_describes_nothing(server, caplog):
    caplog.set_level(logging.INFO, "pagelet.access")
    assert httpx.get(server.url + "/v1/replica", timeout=60).status_code == 503
    httpx.get(server.url + "/v1/models", timeout=60)

    def logged():
        return [record.path for record in caplog.records if record.name == "pagelet.access"]

    wait_for(logged)
    assert logged() == ["/v1/models"], "a router that asks while it starts fills no log"


def test_the_block_size_is_where_vllm_router_asks(two_ranks):
    assert two_ranks.get("/get_server_info").json()["block_size"] == 8


def test_rendered_requests_are_what_the_engine_would_get(two_ranks):
    messages = [{"role": "user", "content": "Hello"}]
    chat = {"model": "tiny", "messages": messages, "temperature": 0.5, "max_tokens": 7}
    rendered = two_ranks.post("/v1/chat/completions/render", json=chat).json()
    tokens = two_ranks.post("/tokenize", json={"messages": messages}).json()["tokens"]
    assert rendered["token_ids"] == tokens
    assert rendered["sampling_params"]["temperature"] == 0.5
    assert rendered["sampling_params"]["max_tokens"] == 7
    texts = {"model": "tiny", "prompt": ["Hello", "two prompts"]}
    rendered = two_ranks.post("/v1/completions/render", json=texts).json()
    assert [each["token_ids"] for each in rendered] == [
        two_ranks.post("/tokenize", json={"prompt": text}).json()["tokens"]
        for text in texts["prompt"]
    ]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_what_cannot_be_answered_is_not_rendered(two_ranks, path):
    body = {"model": "tiny", "temperature": 9, "prompt": "a"}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    refused = two_ranks.post(path, json=body)
    rendered = two_ranks.post(path + "/render", json=body)
    assert refused.status_code == rendered.status_code == 400
    assert rendered.json() == refused.json()


@pytest.mark.parametrize("n", [1, 2])
def test_prompts_that_a_router_tokenised(two_ranks, n):
    """They take the place of what the template and the tokenizer would make."""
    messages = [{"role": "user", "content": "Hello"}]
    tokens = two_ranks.post("/tokenize", json={"messages": messages}).json()["tokens"]
    options = {"model": "tiny", "temperature": 0, "max_tokens": 5, "n": n}
    chat = {"messages": messages} | options
    plain = two_ranks.post("/v1/chat/completions", json=chat).json()
    chat |= {"messages": [{"role": "user", "content": "?"}]}
    chat |= {"pagelet": {"prompt_token_ids": [tokens]}}
    given = two_ranks.post("/v1/chat/completions", json=chat).json()
    assert given["choices"] == plain["choices"]
    assert given["usage"]["prompt_tokens"] == len(tokens)

    texts = {"prompt": ["ab", "cde"], "echo": True, "logprobs": 1} | options
    plain = two_ranks.post("/v1/completions", json=texts).json()
    ids = [two_ranks.post("/tokenize", json={"prompt": t}).json()["tokens"] for t in ("ab", "cde")]
    texts |= {"pagelet": {"prompt_token_ids": ids}}
    given = two_ranks.post("/v1/completions", json=texts).json()
    assert given["choices"] == plain["choices"]


@pytest.mark.parametrize(
    ("hints", "message"),
    [
        ({"prompt_token_ids": [[1], [2]]}, "has 2 prompts, but the request has 1"),
        ({"prompt_token_ids": [[]]}, "the prompt is empty"),
        ({"prompt_token_ids": [[10**6]]}, "token id 1000000 is not in the vocabulary"),
        ({"cache_salt": ""}, "cache_salt must have 1 to 256 characters"),
        ({"shared_prefix_tokens": -1}, "greater than or equal to 0"),
        ({"other": 1}, "Unrecognized request argument"),
    ],
)
def test_hints_that_make_no_sense_are_refused(two_ranks, hints, message):
    body = {"model": "tiny", "prompt": "a", "pagelet": hints}
    answer = two_ranks.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_a_routers_seed_is_for_requests_without_one(two_ranks):
    def text(**options):
        return complete(two_ranks, "a", temperature=1, **options)["choices"][0]["text"]

    assert text(pagelet={"seed": 1}) == text(seed=1)
    assert text(pagelet={"seed": 1}, seed=2) == text(seed=2) != text(seed=1)


def test_tenants_share_what_is_declared_and_nothing_else():
    with replica(simulated(cache={"num_blocks": 1000, "block_size": 16})) as server:

        def cached(prompt, salt, shared=0):
            hints = {"cache_salt": salt, "shared_prefix_tokens": shared}
            usage = complete(server, prompt, pagelet=hints)["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"]

        prompt = list(range(1000, 1100))
        assert [cached(prompt, salt) for salt in ("a", "b", "a")] == [0, 0, 96]
        system = list(range(2000, 2050))
        assert cached(system + prompt, "a", shared=50) == 0
        assert cached(system + prompt, "b", shared=50) == 48
        assert cached(system + prompt, "a", shared=50) == 144
        # A client's own salt has no say where the router gives one.
        body = {"pagelet": {"cache_salt": "b", "shared_prefix_tokens": 50}, "cache_salt": "c"}
        usage = complete(server, system + prompt, **body)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 144
