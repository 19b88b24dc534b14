"""What clients may send, and what of it replicas get to see."""

import asyncio
import contextlib
import json

import httpx
import pytest

from pagelet.protocol.router import RouterConfig, RoutingOptions
from pagelet.router.replica_key import ReplicaKey
from pagelet.router.state import RouterState
from pagelet.router.tenants.counters import CounterTable
from support.scripted_replica import ScriptedReplica, error, stream, whole

REFUSED = [
    pytest.param(b'{"model": "m", "prompt": "p", "pagelet": {}}', 400, "pagelet", id="reserved"),
    pytest.param(b'{"model": "m", "pagel\\u0065t": null}', 400, "pagelet", id="disguised"),
    pytest.param(b'{"model": "m", ', 400, None, id="broken"),
    pytest.param(b"[1]", 400, None, id="no object"),
    pytest.param(b"", 400, None, id="empty"),
    pytest.param(b'{"prompt": "p"}', 400, "model", id="no model"),
    pytest.param(b'{"model": 3}', 400, "model", id="no name"),
    pytest.param(b'{"model": "gpt"}', 404, "model", id="unknown model"),
    pytest.param(b'{"model": "m", "prompt": "' + b"x" * 3000 + b'"}', 413, None, id="huge"),
    pytest.param(b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}", 400, None, id="nested without end"),
    pytest.param(b'{"model": "m", "prompt": "p", "\xff": 1}', 400, None, id="no UTF-8 in a name"),
    pytest.param(b'{"model": "m", "prompt": "p", "user": "\xff"}', 400, None, id="no UTF-8"),
]


@pytest.mark.parametrize(("data", "status", "param"), REFUSED)
async def test_what_is_refused_never_reaches_a_replica(routed, data, status, param) -> None:
    async with routed(max_body_bytes=2900 if status == 413 else 1 << 20) as fleet:
        response = await fleet.client.post("/v1/completions", content=data)
        assert response.status_code == status, response.text
        detail = response.json()["error"]
        assert detail["type"] == "invalid_request_error"
        assert detail["param"] == param
        assert response.headers["x-request-id"]
        assert not any(replica.asked for replica in fleet.replicas)


async def test_what_json_does_not_have_is_named(routed) -> None:
    async with routed() as fleet:
        response = await fleet.client.post("/v1/completions", content=b'{"model": "m", "n": NaN}')
        assert "could not parse the JSON" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/pooling"])
async def test_a_priority_goes_on_only_to_replicas_that_take_it(routed, path) -> None:
    takes, refuses, foreign = (ScriptedReplica(pagelet=pagelet) for pagelet in (True, True, False))
    takes.claims = {"takes_priority": True}
    async with routed(takes, refuses, foreign) as fleet:
        for _ in range(3):
            response = await fleet.post({"priority": -3, "prompt": "wörld"}, path)
            assert response.status_code == 200, response.text
        for replica, seen in ((takes, -3), (refuses, None), (foreign, -3)):
            [asked] = replica.asked
            assert asked.body.get("priority") == seen
            assert (asked.body["prompt"], asked.body["model"]) == ("wörld", "m")


@pytest.mark.parametrize("priority", ["high", 2**63, 1.5])
async def test_what_is_no_priority_is_a_replicas_to_refuse(routed, priority) -> None:
    async with routed(ScriptedReplica()) as fleet:
        await fleet.post({"priority": priority})
        [replica] = fleet.replicas
        assert replica.asked[0].body["priority"] == priority


@pytest.mark.parametrize("streams", [False, True])
async def test_numbers_beyond_all_bounds_are_a_replicas_to_refuse(routed, streams) -> None:
    replica = ScriptedReplica()
    replica.answer = error(400, "too_many_answers", kind="invalid_request_error")
    huge = {"max_tokens": 10**400, "priority": 10**400, "stream": streams}
    many = {"prompt": ["p"] * 40_000, "n": 10**9, "stream": streams}
    async with routed(replica) as fleet:
        for body in (huge, many):
            response = await fleet.post(body)
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "too_many_answers"


async def test_an_unknown_model_is_told_the_known_ones(routed) -> None:
    async with routed() as fleet:
        response = await fleet.post({"model": "gpt"})
        assert "'m'" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/nothing", 404),
        ("GET", "/", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("POST", "/health", 405),
    ],
)
async def test_other_paths_and_methods(routed, method, path, status) -> None:
    async with routed() as fleet:
        response = await fleet.client.request(method, path, json={"model": "m"})
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("tail", ["%2e%2e/load_lora_adapter", "x/.%2E/%2e./replica", "%2E"])
async def test_a_path_that_leads_elsewhere_reaches_no_replica(routed, tail) -> None:
    replica = ScriptedReplica()
    replica.claims = {"response_store": "mark"}
    async with routed(replica) as fleet:
        response = await fleet.client.post(f"/v1/responses/{tail}")
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "unknown_url"
        assert not replica.asked


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"one\ntwo\n", b"# one\nkey", b"\xff", b"\xc3\xa4", b"a\0b", b"a b"]
)
def test_a_file_without_one_key_for_replicas_is_refused(tmp_path, data) -> None:
    file = tmp_path / "key"
    file.write_bytes(data)
    config = RouterConfig(models=[], replica_api_key_file=str(file))
    counters = CounterTable()
    with contextlib.closing(counters), pytest.raises(ValueError, match="put one key there"):
        RouterState(config, counters)


async def test_a_new_key_for_replicas_is_taken_over(routed, tmp_path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("old\n")
    replica = ScriptedReplica()

    async def key_of_next_request():
        assert (await fleet.post()).status_code == 200
        return replica.asked[-1].headers["authorization"]

    async with routed(replica, config={"replica_api_key_file": str(key_file)}) as fleet:
        assert await key_of_next_request() == "Bearer old"
        key_file.write_text("new\n")
        async with asyncio.timeout(60):
            while await key_of_next_request() != "Bearer new":  # noqa: ASYNC110  # a file
                await asyncio.sleep(0.05)


def test_the_last_key_for_replicas_stays_in_force(tmp_path, caplog) -> None:
    file = tmp_path / "key"
    file.write_text("first")
    key = ReplicaKey(file)
    held = key.headers
    for broken in ("", "two words", None):
        file.unlink()
        if broken is not None:
            file.write_text(broken)
        caplog.clear()
        key.refresh()
        assert held == [(b"authorization", b"Bearer first")]
        assert "the last stays in force" in caplog.text
    file.write_text("second")
    key.refresh()
    assert held == [(b"authorization", b"Bearer second")]


async def test_headers_are_the_routers_to_pass_on(routed, tmp_path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("replica-key\n")
    options = {"config": {"replica_api_key_file": str(key_file)}}
    answer = whole({"choices": []}, headers=["X-Own: yes", "Server: s", "X-Request-Id: theirs"])
    replica = ScriptedReplica()
    replica.answer = answer
    sent = {
        "Authorization": "Bearer client-key",
        "X-Request-Id": "one",
        "X-Other": "passed",
        "X-Hop": "not passed",
        "Connection": "x-hop",
        "Cookie": "a=b",
        "traceparent": "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01",
    }
    async with routed(replica, **options) as fleet:
        response = await fleet.post(headers=sent)
        (asked,) = replica.asked
        seen = {name.lower(): value for name, value in asked.headers.items()}
        assert seen["authorization"] == "Bearer replica-key"
        assert seen["x-request-id"] == "one"
        assert seen["x-other"] == "passed"
        assert seen["cookie"] == "a=b"
        assert seen["traceparent"].startswith("00-0123456789abcdef0123456789abcdef-")
        assert "x-hop" not in seen
        assert seen["host"] == replica.url.removeprefix("http://")
        assert response.headers["x-own"] == "yes"
        assert response.headers["x-request-id"] == "one"
        assert response.headers["x-pagelet-replica"] == replica.url
        assert response.headers["content-type"] == "application/json"
        assert "server" not in response.headers


async def test_a_bodys_own_id_is_that_of_the_request(routed) -> None:
    async with routed() as fleet:
        response = await fleet.post({"request_id": "from the body!"})
        assert response.headers["x-request-id"] == "fromthebody"
        (asked,) = (asked for replica in fleet.replicas for asked in replica.asked)
        assert asked.headers["x-request-id"] == "fromthebody"


async def test_a_replica_of_another_kind_gets_the_body_as_it_is(routed) -> None:
    replica = ScriptedReplica(pagelet=False)
    replica.answer = stream(b"data: x\r\n\r\n", b"data: [DONE]\r\n\r\n")
    data = b'{ "prompt":"p",  "model": "m", "stream":true}'
    async with routed(replica) as fleet:
        response = await fleet.client.post("/v1/completions?a=b", content=data)
        (asked,) = replica.asked
        assert asked.data == data
        assert asked.path == "/v1/completions?a=b"
        assert response.content == b"data: x\r\n\r\ndata: [DONE]\r\n\r\n"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/responses", "/tokenize", "/v1/rerank"])
async def test_other_paths_of_the_api_go_through_untouched(routed, path) -> None:
    replica = ScriptedReplica()
    replica.answer = whole({"answer": 1})
    data = b'{"input": ["a", "b"], "model": "m"}'
    async with routed(replica) as fleet:
        response = await fleet.client.post(path, content=data)
        assert response.json() == {"answer": 1}
        assert (replica.asked[0].path, replica.asked[0].data) == (path, data)


async def test_tokenize_needs_no_model(routed) -> None:
    async with routed() as fleet:
        response = await fleet.client.post("/tokenize", json={"prompt": "p"})
        assert response.status_code == 200


async def test_an_alias_is_the_replicas_own_name_to_them(routed) -> None:
    replica = ScriptedReplica()
    async with routed(replica, route={"name": "big", "aliases": ["best"]}) as fleet:
        for name in ("big", "best"):
            assert (await fleet.post({"model": name, "seed": 1})).status_code == 200
    assert len(replica.asked) == 2
    for asked in replica.asked:
        assert asked.body["model"] == "m"
        assert asked.body["seed"] == 1


async def test_models_and_probes(routed) -> None:
    async with routed() as fleet:
        models = (await fleet.client.get("/v1/models")).json()
        assert [model["id"] for model in models["data"]] == ["m"]
        assert (await fleet.client.get("/v1/models/m")).json()["max_model_len"] == 1000
        assert (await fleet.client.get("/v1/models/x")).status_code == 404
        assert (await fleet.client.get("/health")).status_code == 200
        assert "version" in (await fleet.client.get("/version")).json()
        metrics = (await fleet.client.get("/metrics")).text
        assert 'pagelet_router_replicas{model="m",pool="default",state="ready"} 2' in metrics


async def test_a_drain_lets_streams_finish_and_refuses_new_requests(routed) -> None:
    replica = ScriptedReplica()
    replica.answer = stream(b"data: x\n\n", b"data: [DONE]\n\n", pause=0.3)
    async with routed(replica) as fleet:
        running = asyncio.create_task(fleet.post({"stream": True}))
        await fleet.wait_for(lambda: replica.asked)
        draining = asyncio.create_task(fleet.state.drain(10))
        await asyncio.sleep(0.01)
        refused = await fleet.post()
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        assert (await fleet.client.get("/ready")).status_code == 503
        assert (await fleet.client.get("/health")).status_code == 200
        assert (await running).content.endswith(b"data: [DONE]\n\n")
        assert await draining


async def test_a_slow_client_slows_its_replica_and_nothing_piles_up(routed) -> None:
    size, num_parts, written = 1 << 20, 64, 0

    async def pour(asked):
        nonlocal written
        asked.writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        event = b"data: " + b"x" * size + b"\n\n"
        for _ in range(num_parts):
            asked.writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await asked.writer.drain()
            written += size
        asked.writer.write(b"0\r\n\r\n")
        await asked.writer.drain()

    replica = ScriptedReplica(pagelet=False)
    replica.answer = pour
    async with routed(replica, idle_timeout=30.0) as fleet:
        body = {"model": "m", "stream": True}
        async with fleet.client.stream("POST", "/v1/completions", json=body) as response:
            received = 0
            async for part in response.aiter_raw(1 << 16):
                if not received:
                    await asyncio.sleep(0.5)
                    assert written < num_parts * size / 2
                received += len(part)
    assert received == num_parts * (size + 8)


async def test_bad_answers_are_no_answers(routed) -> None:
    async def garbage(asked):
        asked.writer.write(b"\x00\x01 this is no HTTP\r\n\r\n")
        await asked.writer.drain()

    replicas = [ScriptedReplica(), ScriptedReplica()]
    replicas[0].answer = garbage
    async with routed(*replicas) as fleet:
        for _ in range(2):
            assert (await fleet.post()).status_code == 200


async def test_errors_of_other_kinds_of_servers_are_passed_on(routed) -> None:
    numbered = whole({"error": {"message": "m", "type": "t", "param": None, "code": 500}}, 500)
    plain = whole({"detail": "broken"}, 503)
    for answer, status in ((numbered, 500), (plain, 503)):
        replica = ScriptedReplica(pagelet=False)
        replica.answer = answer
        async with routed(replica, queue_timeout=0.5, retry_budget=0.0) as fleet:
            response = await fleet.post()
            assert response.status_code == status
            assert json.dumps(response.json()["error"])


async def test_large_heads_and_bodies_go_through(routed) -> None:
    replica = ScriptedReplica()
    replica.answer = whole({"text": "y" * 3_000_000})
    async with routed(replica) as fleet:
        response = await fleet.post({"prompt": "x" * 3_000_000})
        assert len(response.json()["text"]) == 3_000_000
        assert len(replica.asked[0].body["prompt"]) == 3_000_000


async def test_what_a_replica_refuses_is_passed_on_as_it_is(routed) -> None:
    replica = ScriptedReplica()
    replica.answer = error(400, "too_long", ["X-Own: yes"], kind="invalid_request_error")
    async with routed(replica) as fleet:
        response = await fleet.post()
        assert isinstance(response, httpx.Response)
        assert response.headers["x-own"] == "yes"
        assert response.json()["error"]["code"] == "too_long"


async def test_probes_may_ask_for_the_head_alone(routed) -> None:
    async with routed() as fleet:
        for path in ("/health", "/ready", "/metrics", "/v1/models"):
            whole, head = await fleet.client.get(path), await fleet.client.head(path)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-type"] == whole.headers["content-type"]
        assert (await fleet.client.head("/v1/completions")).status_code == 405


async def test_a_sessions_header_is_found_however_its_name_is_spelled(routed) -> None:
    routing = RoutingOptions(policy="session", session_header="X-Session")
    async with routed(config={"routing": routing}) as fleet:
        for number in range(4):
            await fleet.post(headers={"x-sessioN": "s", "X-Request-Id": f"r-{number}"})
            found = fleet.state.explanations.find(f"r-{number}", "", admin=False)
            assert json.loads(found)["attempts"][0]["reason"] == "hash of the session"
