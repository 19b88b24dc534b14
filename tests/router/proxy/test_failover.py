"""What happens to a request whose replica fails before the answer has begun."""

import asyncio
import json

import pytest

from pagelet.protocol.router import ModelRoute, Pool
from pagelet.router.replicas import prober
from support.scripted_replica import ScriptedReplica, cut, error, silent, stream, switch, whole

GOOD = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}


def replicas(*answers):
    made = []
    for answer in answers:
        replica = ScriptedReplica()
        replica.answer = answer
        made.append(replica)
    return made


def asked(routed):
    return [len(replica.asked) for replica in routed.replicas]


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(cut, id="connection lost"),
        pytest.param(error(503, "draining"), id="503"),
        pytest.param(error(502, "bad_gateway"), id="502"),
        pytest.param(error(429, "queue_full", ["Retry-After: 1"]), id="429"),
        pytest.param(error(500, "internal"), id="500"),
        pytest.param(stream(end="cut"), id="cut after the head"),
        pytest.param(switch, id="another protocol"),
        pytest.param(whole({}, 307, ["Location: http://127.0.0.1:1/"]), id="redirect"),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_another_replica_answers(routed, failure, streams) -> None:
    good = stream(b"data: x\n\n", b"data: [DONE]\n\n") if streams else whole(GOOD)
    async with routed(*replicas(failure, good)) as fleet:
        for _ in range(2):
            response = await fleet.post({"stream": streams})
            assert response.status_code == 200
            assert response.headers["x-pagelet-replica"] == fleet.replicas[1].url
        assert asked(fleet)[1] == 2


@pytest.mark.parametrize(
    "claims",
    [
        {"block_size": -16},
        {"block_size": 0},
        {"num_kv_blocks": -1},
        {"max_num_seqs": -100},
        {"data_parallel_size": 10**9},
        {"prefill_tokens_per_second": -1.0},
        {"kv_events": {"endpoints": ["ipc:///a"], "replay_endpoints": ["ipc:///b", "ipc:///c"]}},
        {"kv_events": {"endpoints": ["ipc:///a"] * 10_000}},
    ],
    ids=lambda claims: next(iter(claims)),
)
async def test_a_replica_that_cannot_be_as_it_says_gets_no_requests_until_it_can(
    routed, claims
) -> None:
    liar, honest = replicas(whole(GOOD), whole(GOOD))
    liar.claims = claims
    async with routed(liar, honest, wait=False) as fleet:
        for _ in range(6):
            assert (await fleet.post()).status_code == 200
        assert asked(fleet) == [0, 6]
        liar.claims = {}
        await fleet.wait_for(lambda: fleet.num_available == 2)


async def test_a_replica_that_is_down_is_not_asked_and_comes_back_by_a_probe(routed) -> None:
    async with routed() as fleet:
        port = fleet.replicas[0].port
        await fleet.replicas[0].stop()
        for _ in range(4):
            assert (await fleet.post()).status_code == 200
        assert asked(fleet) == [0, 4]
        await fleet.wait_for(lambda: fleet.num_available == 1)
        await fleet.replicas[0].start()
        assert fleet.replicas[0].port == port
        await fleet.wait_for(lambda: fleet.num_available == 2)
        for _ in range(4):
            assert (await fleet.post()).status_code == 200
        assert asked(fleet)[0] == 2


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_a_request_that_is_wrong_is_not_tried_again(routed, status) -> None:
    wrong = error(status, "wrong", kind="invalid_request_error")
    async with routed(*replicas(wrong, wrong)) as fleet:
        response = await fleet.post()
        assert response.status_code == status
        assert response.json()["error"]["code"] == "wrong"
        assert sum(asked(fleet)) == 1


@pytest.mark.parametrize("failure", [cut, error(500, "internal"), stream(end="cut")])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_request_that_kills_its_replicas_reaches_two_of_them_at_most(
    routed, failure, streams
) -> None:
    async with routed(*replicas(*[failure] * 4)) as fleet:
        response = await fleet.post({"stream": streams})
        assert response.status_code in (500, 502)
        assert response.json()["error"]["type"] == "server_error"
        assert sum(asked(fleet)) == 2


async def test_a_dead_engine_counts_as_a_death_although_its_server_answers(routed) -> None:
    dead = error(503, "engine_unavailable", ["Retry-After: 5"])
    async with routed(*replicas(*[dead] * 4)) as fleet:
        response = await fleet.post()
        assert response.status_code == 503
        assert response.headers["retry-after"] == "5"
        assert sum(asked(fleet)) == 2


async def test_engines_that_are_starting_are_waited_for_and_blame_no_request(routed) -> None:
    absent = error(503, "engine_starting", ["Retry-After: 5"])
    all_asked = asyncio.Event()

    async def starting(asked_now):
        if sum(asked(fleet)) == 3:
            all_asked.set()
        await absent(asked_now)

    fleet_of = replicas(starting, starting, starting)
    async with routed(*fleet_of, queue_timeout=30.0) as fleet:
        waiting = asyncio.create_task(fleet.post())
        await all_asked.wait()
        assert asked(fleet) == [1, 1, 1]
        assert not waiting.done()
        fleet_of[1].answer = whole(GOOD)
        assert (await waiting).status_code == 200
    async with routed(*replicas(absent), queue_timeout=0.5) as fleet:
        response = await fleet.post()
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_starting"


async def test_when_all_are_full_the_client_hears_it(routed) -> None:
    full = error(429, "queue_full", ["Retry-After: 3"])
    async with routed(*replicas(full, full, full)) as fleet:
        response = await fleet.post()
        assert response.status_code == 429
        assert response.headers["retry-after"] == "3"
        assert asked(fleet) == [1, 1, 1]


async def test_retries_are_a_share_of_the_requests(routed) -> None:
    refusing = error(503, "busy", ["Retry-After: 0"])
    async with routed(*replicas(refusing, refusing), retry_budget=0.5, queue_timeout=60.0) as fleet:
        responses = await asyncio.gather(*(fleet.post() for _ in range(20)))
        assert {response.status_code for response in responses} == {503}
        # Ten are always allowed, and half of twenty.
        assert 20 < sum(asked(fleet)) <= 40


async def test_a_replica_gets_no_requests_while_it_says_so(routed) -> None:
    async with routed(*replicas(error(503, "busy", ["Retry-After: 10"]), whole(GOOD))) as fleet:
        for _ in range(6):
            assert (await fleet.post()).status_code == 200
        assert asked(fleet) == [1, 6]


def bare(data):
    """An answer as bytes."""

    async def answer(asked):
        asked.writer.write(data)
        await asked.writer.drain()

    return answer


@pytest.mark.parametrize("pagelet", [False, True])
@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(stream(), id="a stream of nothing"),
        pytest.param(bare(b"HTTP/1.1 600 x\r\nContent-Length: 0\r\n\r\n"), id="no status"),
        pytest.param(bare(b"HTTP/1.1 200 x\r\nsecret words"), id="no HTTP"),
    ],
)
async def test_what_is_no_answer_is_asked_of_the_next(routed, pagelet, odd) -> None:
    good = stream(b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n")
    made = [ScriptedReplica(pagelet=pagelet) for _ in range(2)]
    made[0].answer, made[1].answer = odd, good
    async with routed(*made) as fleet:
        answers = [await fleet.post({"stream": True}) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert all(answer.content.endswith(b"data: [DONE]\n\n") for answer in answers)
        made[1].answer = odd
        failed = await fleet.post({"stream": True})
        assert failed.status_code == 502
        assert "secret" not in failed.text


async def test_failures_in_a_row_open_the_breaker(routed) -> None:
    options = {"breaker_failures": 3}
    async with routed(*replicas(error(500, "internal"), whole(GOOD)), **options) as fleet:
        for _ in range(20):
            assert (await fleet.post()).status_code == 200
        assert 3 <= asked(fleet)[0] <= 6  # a few more if a second goes by meanwhile


async def test_a_silent_replica_is_given_up(routed) -> None:
    async with routed(*replicas(silent, whole(GOOD)), first_byte_timeout=1.0) as fleet:
        for _ in range(2):
            assert (await fleet.post({"stream": True})).status_code == 200
        assert asked(fleet)[0] >= 1
        await asyncio.wait_for(fleet.replicas[0].asked[0].closed.wait(), 60)


async def test_a_draining_replica_gets_no_new_requests(routed) -> None:
    async with routed() as fleet:
        fleet.replicas[0].draining = True
        await fleet.wait_for(lambda: fleet.num_available == 1)
        for _ in range(4):
            assert (await fleet.post()).status_code == 200
        assert asked(fleet) == [0, 4]


async def test_requests_wait_for_the_first_replica(routed) -> None:
    replica = ScriptedReplica()
    async with routed(replica) as fleet:
        await replica.stop()
        await fleet.wait_for(lambda: fleet.num_available == 0)
        ready = await fleet.client.get("/ready")
        assert ready.status_code == 503
        waiting = asyncio.create_task(fleet.post())
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await replica.start()
        assert (await waiting).status_code == 200
        assert (await fleet.client.get("/ready")).status_code == 200


async def test_without_any_replica_the_wait_has_an_end(routed) -> None:
    models = [ModelRoute(name="m", pools=[Pool(replicas=["http://127.0.0.1:9"])])]
    options = {"wait": False, "queue_timeout": 0.3}
    async with routed(config={"models": models}, **options) as fleet:
        response = await fleet.post()
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1


async def test_a_client_that_leaves_ends_the_work_of_its_replica(routed) -> None:
    for answer in (silent, stream(b"data: x\n\n", end="silent")):
        async with routed(*replicas(answer), idle_timeout=60.0) as fleet:
            asking = asyncio.create_task(fleet.post({"stream": True}))
            await fleet.wait_for(lambda: asked(fleet) == [1])
            asking.cancel()
            await asyncio.wait_for(fleet.replicas[0].asked[0].closed.wait(), 60)
            await fleet.wait_for(lambda: fleet.state.open_requests == 0)
            (pool,) = fleet.state.pools.values()
            assert pool.room.in_flight == 0


@pytest.mark.parametrize("streams", [False, True])
async def test_a_client_that_has_said_all_gets_its_answer(routed, streams) -> None:
    """It closes its sending side with its request, as `nc -N` does."""
    answer = stream(b"data: x\n\n", b"data: [DONE]\n\n", pause=0.1) if streams else whole(GOOD)

    async def late(request):
        await asyncio.sleep(0.2)
        await answer(request)

    async with routed(*replicas(late)) as fleet:
        url = fleet.client.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        body = json.dumps({"model": "m", "prompt": "p", "stream": streams}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        writer.write_eof()
        data = await asyncio.wait_for(reader.read(), 60)
        assert data.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
        assert data.endswith(b"0\r\n\r\n" if streams else json.dumps(GOOD).encode())
        assert not streams or b"data: [DONE]\n\n" in data
        writer.close()


async def test_a_hung_replica_is_told_from_a_slow_one_and_comes_back(routed, monkeypatch) -> None:
    monkeypatch.setattr(prober, "_TIMEOUT", 1.0)
    good = stream(b"data: x\n\n", b"data: [DONE]\n\n")
    script = replicas(silent, good)
    async with routed(*script, first_byte_timeout=60.0, idle_timeout=60.0) as fleet:
        asking = [asyncio.create_task(fleet.post({"stream": True})) for _ in range(2)]
        await fleet.wait_for(lambda: asked(fleet) == [1, 1])
        probes = script[0].probes
        await fleet.wait_for(lambda: script[0].probes > probes + 5)
        assert sum(task.done() for task in asking) == 1, "the other is slow, and answers probes"
        script[0].mute = True
        responses = await asyncio.gather(*asking)
        assert {response.status_code for response in responses} == {200}
        assert asked(fleet) == [1, 2]
        (pool,) = fleet.state.pools.values()
        assert pool.replicas[script[0].url].health == "hung"
        script[0].mute = False
        await fleet.wait_for(lambda: fleet.num_available == 2)


async def test_a_request_for_an_adapter_goes_to_replicas_that_have_it_or_waits_for_one(
    routed,
) -> None:
    """As in an update that brings it: the router knows of it before all replicas do."""
    first, second = replicas(whole(GOOD), whole(GOOD))
    second.claims = {"served_model_names": ["m", "sql"], "adapters": {"sql": "digest"}}
    route = {"name": "m", "adapters": ["sql", "later"]}
    async with routed(first, second, route=route) as fleet:
        for _ in range(4):
            answer = await fleet.post({"model": "sql"})
            assert answer.headers["x-pagelet-replica"] == second.url
        assert all(ask.body["model"] == "sql" for ask in second.asked)
        waiting = asyncio.create_task(fleet.post({"model": "later"}))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        first.claims = {"served_model_names": ["m", "later"], "adapters": {"later": "digest"}}
        answer = await waiting
        assert (answer.status_code, answer.headers["x-pagelet-replica"]) == (200, first.url)
        listed = (await fleet.client.get("/v1/models")).json()["data"]
        assert {each["id"]: each["parent"] for each in listed} == {
            "m": None,
            "sql": "m",
            "later": "m",
        }
