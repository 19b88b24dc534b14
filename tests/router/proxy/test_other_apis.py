"""Responses and messages through a router: whose cache they use, what they cost, how they fail."""

import json

import pytest

from pagelet.protocol.api_keys import key_digest
from pagelet.router.proxy.usage import TokenCounts, read_usage
from pagelet.router.tenants.key_file import digest_entry
from support.scripted_replica import ScriptedReplica, error, stream

from .conftest import IMPATIENT


@pytest.mark.parametrize(
    "path", ["/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/score", "/rerank"]
)
async def test_a_tenants_cache_is_its_own(routed, tmp_path, path) -> None:
    tenants = [
        {"name": name, "keys": [{"hash": digest_entry(key_digest(name))}]} for name in ("a", "b")
    ]
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"tenants": tenants}))
    async with routed(ScriptedReplica(), config={"api_keys_file": str(file)}) as fleet:
        for stream in (False, True):
            for name in ("a", "b"):
                await fleet.post({"stream": stream}, path, headers={"x-api-key": name})
        hints = [asked.body["pagelet"] for asked in fleet.replicas[0].asked]
        salts = [hint.pop("cache_salt") for hint in hints]
        assert salts[:2] == salts[2:]
        assert salts[0] != salts[1]
        for hint in hints[2:] if path in ("/v1/responses", "/v1/messages") else ():
            assert hint.pop("journal")
            assert hint.pop("seed") >= 0
        assert hints == [{}] * 4, "nothing that only streams have"


async def test_errors_have_the_shape_of_the_api(routed) -> None:
    replica = ScriptedReplica()
    async with routed(replica) as fleet:
        missing = await fleet.post({"model": "gpt"}, "/v1/messages")
        assert missing.status_code == 404
        assert missing.json()["type"] == "error"
        assert missing.json()["error"]["type"] == "not_found_error"
        replica.answer = error(503, "engine_unavailable")
        down = await fleet.post({}, "/v1/messages")
        assert down.status_code == 503
        assert down.json()["error"]["type"] == "overloaded_error"
        assert (await fleet.post({"model": "gpt"}, "/v1/responses")).json()["error"]["param"]


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        (
            {
                "input_tokens": 7,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 32,
                "output_tokens": 5,
            },
            TokenCounts(39, 5, 32),
        ),
        (
            {
                "input_tokens": 39,
                "input_tokens_details": {"cached_tokens": 32, "cache_write_tokens": 0},
                "output_tokens": 5,
                "output_tokens_details": {"reasoning_tokens": 2},
                "total_tokens": 44,
            },
            TokenCounts(39, 5, 32),
        ),
    ],
)
def test_usage_is_read_as_each_api_spells_it(usage, counts) -> None:
    told = {"input": {"usage": {"input_tokens": 9}}, "usage": usage}
    assert read_usage(json.dumps(told).encode()) == counts
    assert read_usage(b'event: x\ndata: {"usage":null}\n\n') == TokenCounts()


async def test_a_streams_usage_counts_however_it_is_cut(routed) -> None:
    completed = {"type": "response.completed", "response": {"usage": {"output_tokens": 5}}}
    data = b"event: response.completed\ndata: " + json.dumps(completed).encode() + b"\n\n"
    replica = ScriptedReplica()
    async with routed(replica) as fleet:
        for cut in range(1, len(data), 20):
            replica.answer = stream(data[:cut], data[cut:], pause=0.02)
            response = await fleet.post({"stream": True}, "/v1/responses")
            assert response.content == data
            told = await fleet.client.get(f"/v1/explain/{response.headers['x-request-id']}")
            assert told.json()["completion_tokens"] == 5


def named(name, number, *comments):
    """An event of a response or message."""
    data = json.dumps({"type": name, "sequence_number": number})
    return "\n".join((f"event: {name}", f"data: {data}", *comments, "", "")).encode()


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("end", ["cut", "silent", "whole", "error"])
async def test_a_stream_goes_on_at_another_replica(routed, path, end) -> None:
    begin = named("begin", 0, ": begin 0 16")
    told = [named("more", 1), named("more", 2, ": tokens 0 5,6")]
    lost = [named("last", 3)]
    error = '{"error":{"message":"died","type":"server_error","param":null,"code":"x"}}'
    failed = named("error", 3, f": failed {error}")
    rest = [named("more", 3, ": tokens 0 7"), named("last", 4), named("end", 5, ": end 0")]
    asked = []

    async def answer(request):
        asked.append(request.body["pagelet"])
        parts = [begin, *told, *([failed] if end == "error" else lost)]
        first = stream(*parts, end="whole" if end == "error" else end)
        await (first if len(asked) == 1 else stream(*rest, end="silent"))(request)

    replicas = ScriptedReplica(), ScriptedReplica()
    for each in replicas:
        each.answer = answer
    async with routed(*replicas, **(IMPATIENT if end == "silent" else {})) as fleet:
        response = await fleet.post({"stream": True}, path)
        assert response.content == b"".join(
            named(*each)
            for each in zip(("begin", "more", "more", "more", "last", "end"), range(6), strict=True)
        )
        assert asked[1]["seed"] == asked[0]["seed"]
        assert asked[1]["resume"] == {
            "created": None,
            "events": 3,
            "answers": [
                {
                    "begun": True,
                    "token_ids": [5, 6],
                    "cached_tokens": 16,
                    "finished": False,
                }
            ],
        }


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_a_stream_that_nobody_can_go_on_with_ends_in_the_words_of_its_api(
    routed, path
) -> None:
    replica = ScriptedReplica(pagelet=False)
    replica.answer = stream(named("begin", 0), named("more", 1), end="cut")
    async with routed(replica) as fleet:
        response = await fleet.post({"stream": True}, path)
        before, last = response.content.split(b"event: error\ndata: ")
        assert before == named("begin", 0) + named("more", 1)
        error = json.loads(last)
        assert error["type"] == "error"
        if path == "/v1/responses":
            assert (error["code"], error["sequence_number"]) == ("stream_broken", 2)
        else:
            assert error["error"]["type"] == "api_error"
