"""Responses that replicas keep, through a router in front of several of them."""

import asyncio
import contextlib
import json
import time
import uuid
from urllib.parse import parse_qs

import httpx
import openai
import pytest
from agent.http.conftest import answer_routers, serving
from agent.http.fake_llm import FakeLLM

from pagelet.process.atomic import write_atomically
from pagelet.protocol.api_keys import key_digest
from pagelet.router import kept_responses
from pagelet.router.replicas import prober
from pagelet.router.tenants.key_file import digest_entry
from support.processes import wait_for
from support.router_thread import router_thread
from support.scripted_replica import ScriptedReplica, send

TEXT = "Hello, wörld!"


@contextlib.contextmanager
def replica(**settings):
    async def make_llm(metrics):
        llm = FakeLLM(metrics)
        answer_routers(llm)
        return llm

    with serving(make_llm, **settings) as server:
        yield server


@pytest.fixture
def replicas():
    with replica(response_store=1 << 20) as one, replica(response_store=1 << 20) as other:
        yield one, other


@pytest.fixture
def client(replicas):
    with (
        router_thread(*(each.url for each in replicas)) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="-", max_retries=0) as client,
    ):
        yield client


class Listed:
    """A router whose replicas are told to it by a file."""

    def __init__(self, replicas, folder):
        self.names = {f"r{number}": each for number, each in enumerate(replicas)}
        self.file = folder / "replicas.json"
        self.write(dict.fromkeys(self.names, True))

    def write(self, takes_requests):
        """Of each replica that is to be listed, whether it takes requests."""
        listed = [
            {"id": name, "url": self.names[name].url, "takes_requests": takes}
            for name, takes in takes_requests.items()
        ]
        write_atomically(self.file, json.dumps(listed).encode())

    def name(self, replica):
        return next(name for name, each in self.names.items() if each is replica)

    @contextlib.contextmanager
    def client(self):
        urls = [each.url for each in self.names.values()]
        with (
            router_thread(*urls, replicas_file=str(self.file)) as port,
            openai.OpenAI(
                base_url=f"http://127.0.0.1:{port}/v1", api_key="-", max_retries=0
            ) as client,
        ):
            yield client


def respond(client, **options):
    return client.responses.create(**({"model": "tiny", "input": "hi", "store": True} | options))


def keeper_of(replicas, response):
    [keeper] = [each for each in replicas if each.state.responses.mark in response.id]
    return keeper


def num_ready(client):
    """Replicas that take requests, as the router has it."""
    lines = httpx.get(str(client.base_url.join("/metrics")), timeout=60).text.splitlines()
    [line] = [
        each
        for each in lines
        if each.startswith("pagelet_router_replicas{") and 'state="ready"' in each
    ]
    return float(line.split()[-1])


def test_any_replica_goes_on_from_what_one_keeps(replicas, client):
    answers, keepers = [], set()
    while len(answers) < 8 or len(keepers) < 2:  # by its text, each goes to either
        answers.append(respond(client, input=f"one {len(answers)}"))
        keepers.add(keeper_of(replicas, answers[-1]))
        assert len(answers) < 64
    for number, answer in enumerate(answers):
        assert client.responses.retrieve(answer.id) == answer
        head = httpx.head(f"{client.base_url}responses/{answer.id}", timeout=60)
        assert (head.status_code, head.content) == (200, b"")
        [item] = client.responses.input_items.list(answer.id).data
        assert item.content[0].text == f"one {number}"
        stream = number % 2 == 0
        after = respond(client, input="two", previous_response_id=answer.id, stream=stream)
        if stream:
            after = list(after)[-1].response
        asked = keeper_of(replicas, after).llm
        prompt = asked.tokenizer.decode(asked.seen[-1][1])
        assert prompt == f"<user>one {number}<assistant>{TEXT}<user>two<assistant>"
        client.responses.delete(answer.id)
        with pytest.raises(openai.NotFoundError, match="kept no longer"):
            client.responses.retrieve(answer.id)
        with pytest.raises(openai.BadRequestError) as caught:
            respond(client, previous_response_id=answer.id)
        assert caught.value.code == "previous_response_not_found"
        items = client.responses.input_items.list(after.id, order="asc")
        assert [item.content[0].text for item in items] == [f"one {number}", TEXT, "two"]


def test_any_replica_counts_what_goes_on_from_a_kept_response(replicas, client):
    answer = respond(client, input="one")
    said = f"<user>one<assistant>{TEXT}<user>two<assistant>"
    [asked] = client.responses.input_items.list(answer.id).data
    items = [{"type": "item_reference", "id": each} for each in (asked.id, answer.output[0].id)]
    for fields in (
        {"input": "two", "previous_response_id": answer.id},
        {"input": [*items, {"role": "user", "content": "two"}]},
    ):
        before = [len(each.llm.seen) for each in replicas]
        counted = client.responses.input_tokens.count(model="tiny", **fields)
        assert (counted.object, counted.input_tokens) == ("response.input_tokens", len(said))
        assert [len(each.llm.seen) for each in replicas] == before


def test_any_replica_is_told_what_a_reference_stands_for(replicas, client):
    ids, keepers = [], set()
    while len(keepers) < 2:
        answer = respond(client, input=f"one {len(ids)}")
        keepers.add(keeper_of(replicas, answer))
        [asked] = client.responses.input_items.list(answer.id).data
        ids += [asked.id, answer.output[0].id]
        assert len(ids) < 128
    items = [{"type": "item_reference", "id": item_id} for item_id in ids]
    said = "".join(f"<user>one {at}<assistant>{TEXT}" for at in range(0, len(ids), 2))
    for stream in (False, True):
        after = respond(client, input=[*items, {"role": "user", "content": "two"}], stream=stream)
        if stream:
            after = list(after)[-1].response
        asked = keeper_of(replicas, after).llm
        prompt = asked.tokenizer.decode(asked.seen[-1][1])
        assert prompt == f"{said}<user>two<assistant>"
    with pytest.raises(openai.NotFoundError, match="'msg_1'"):
        respond(client, input=[*items, {"id": "msg_1"}])


def test_ids_may_be_any_text(replicas, client):
    """Which clients choose for the items that they give."""
    ids = [
        "a,b",
        "c d",
        "e&ids=f#g",
        "%2C",
        "+",
        "\x00",
        *(f"{at:03}" + "😀" * 253 for at in range(60)),
    ]
    items = [{"role": "user", "content": f"({at})", "id": each} for at, each in enumerate(ids)]
    keeper = keeper_of(replicas, respond(client, input=items))
    references = [{"type": "item_reference", "id": each} for each in ids]
    [other] = {*replicas} - {keeper}
    for number in range(64):  # until the other one is asked, which has to be told of them
        first = {"role": "user", "content": f"{number}"}
        respond(client, input=[first, *references], store=False)
        if other.llm.seen:
            break
    prompt = other.llm.tokenizer.decode(other.llm.seen[-1][1])
    said = "".join(f"<user>({at})" for at in range(len(ids)))
    assert prompt == f"<user>{number}{said}<assistant>"
    with pytest.raises(openai.BadRequestError, match="at most 256 characters"):
        respond(client, input=[{"type": "item_reference", "id": "x" * 100_000}])


def test_what_is_in_progress_cannot_be_gone_on_from(replicas, client):
    for each in replicas:
        each.llm.behaviour.hold = each.run(asyncio.Event)
    begun = respond(client, background=True)
    with pytest.raises(openai.BadRequestError, match="is in progress") as caught:
        respond(client, input="two", previous_response_id=begun.id)
    assert caught.value.code == "previous_response_in_progress"
    assert caught.value.param == "previous_response_id"
    for each in replicas:
        each.run(each.llm.behaviour.hold.set)
    keeper = keeper_of(replicas, begun)
    keeper.wait_until(lambda: keeper.state.admission.in_flight == 0)
    after = respond(client, input="two", previous_response_id=begun.id)
    asked = keeper_of(replicas, after).llm
    prompt = asked.tokenizer.decode(asked.seen[-1][1])
    assert prompt == f"<user>hi<assistant>{TEXT}<user>two<assistant>"


def test_in_the_background(replicas, client):
    begun = respond(client, background=True)
    keeper = keeper_of(replicas, begun)
    keeper.wait_until(lambda: keeper.state.admission.in_flight == 0)
    done = client.responses.cancel(begun.id)
    assert (done.status, done.output_text) == ("completed", TEXT)


def test_a_replica_that_takes_no_requests_tells_what_it_keeps_until_it_is_gone(replicas, tmp_path):
    listed = Listed(replicas, tmp_path)
    with listed.client() as client:
        running = respond(client, background=True)
        keeper = keeper_of(replicas, running)
        answers = []
        while len(answers) < 2:  # by its text, each goes to either
            answer = respond(client, input=f"one {uuid.uuid4()}")
            if keeper_of(replicas, answer) is keeper:
                answers.append(answer)
        kept, deleted = answers
        text = client.responses.input_items.list(kept.id).data[0].content[0].text
        [other] = [each for each in replicas if each is not keeper]
        keeper.wait_until(lambda: keeper.state.admission.in_flight == 0)
        listed.write({listed.name(keeper): False, listed.name(other): True})
        # The router reads the file four times a second; it must find what is kept all the time.
        for _ in range(20):
            assert client.responses.retrieve(kept.id) == kept
            time.sleep(0.05)
        wait_for(lambda: num_ready(client) == 1)
        asked = len(keeper.llm.seen)
        [item] = client.responses.input_items.list(kept.id).data
        assert item.content[0].text == text
        assert client.responses.cancel(running.id).status == "completed"
        client.responses.delete(deleted.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(deleted.id)
        for _ in range(6):
            after = respond(client, input="two", previous_response_id=kept.id)
            assert keeper_of(replicas, after) is other
            prompt = other.llm.tokenizer.decode(other.llm.seen[-1][1])
            assert prompt == f"<user>{text}<assistant>{TEXT}<user>two<assistant>"
        assert len(keeper.llm.seen) == asked
        # A router that starts only now finds it, too.
        with router_thread(other.url, replicas_file=str(listed.file)) as port:
            url = f"http://127.0.0.1:{port}/v1/responses/{kept.id}"
            wait_for(lambda: httpx.get(url, timeout=60).status_code == 200)
        # It takes requests again, as when its engine has started anew.
        listed.write({listed.name(keeper): True, listed.name(other): False})
        for _ in range(20):
            assert client.responses.retrieve(kept.id) == kept
            time.sleep(0.05)
        wait_for(lambda: keeper_of(replicas, respond(client)) is keeper)
        listed.write({listed.name(other): True})

        def gone():
            try:
                client.responses.retrieve(kept.id)
            except openai.NotFoundError as error:
                return "is gone or has started anew" in str(error)
            return False

        wait_for(gone)
        assert client.responses.retrieve(after.id) == after


class CutsOff(ScriptedReplica):
    """Answers probes, and nothing that is asked of it."""

    async def _describe(self, path, writer):
        if path.startswith("/v1/responses/"):
            writer.transport.abort()
        else:
            await super()._describe(path, writer)


class Refuses(ScriptedReplica):
    """Answers whatever is asked of its store with an error."""

    async def _describe(self, path, writer):
        if path.startswith("/v1/responses/"):
            await send(writer, 401, {"error": {"message": "no key"}})
        else:
            await super()._describe(path, writer)


class Keeps(ScriptedReplica):
    """Has whatever response and item it is asked for."""

    async def _describe(self, path, writer):
        if path.startswith("/v1/responses/"):
            items = parse_qs(path.partition("?")[2]).get("ids", [])
            item = {"type": "message", "role": "user", "content": "hi"}
            await send(writer, 200, {each: item | {"id": each} for each in items})
        else:
            await super()._describe(path, writer)


class Silent(ScriptedReplica):
    """Says nothing about what it keeps, and, once it is hung, nothing at all."""

    hung = False
    questions = 0

    async def _describe(self, path, writer):
        if path.startswith("/v1/responses/"):
            self.questions += 1
        elif not self.hung:
            await super()._describe(path, writer)
            return
        await asyncio.Event().wait()


REFERS = {"model": "m", "input": [{"type": "item_reference", "id": "msg_1"}]}


@pytest.fixture
def silent(monkeypatch):
    """A replica that nobody who waits for it outlasts."""
    monkeypatch.setattr(kept_responses, "_SECONDS", 600.0)
    monkeypatch.setattr(prober, "_TIMEOUT", 0.5)
    return Silent()


@pytest.mark.parametrize("mark", ["k", "other"])
async def test_what_one_replica_has_waits_for_no_silent_one(routed, silent, mark):
    keeper = Keeps()
    silent.claims, keeper.claims = {"response_store": "s"}, {"response_store": "k"}
    async with routed(silent, keeper) as router:
        # By round robin one of the two goes to each.
        for _ in range(2):
            answer = await router.client.post("/v1/responses", json=REFERS)
            assert answer.status_code == 200, answer.text
        found = await router.client.get(f"/v1/responses/resp_{mark}_1")
        assert (found.status_code, found.headers["x-pagelet-replica"]) == (200, keeper.url)
    assert silent.questions == (2 if mark == "k" else 3)


async def test_a_replica_that_is_known_to_be_hung_is_not_asked(routed, silent):
    knows_nothing = ScriptedReplica()
    silent.claims, knows_nothing.claims = {"response_store": "s"}, {"response_store": "k"}
    async with routed(silent, knows_nothing) as router:
        silent.hung = True
        (pool,) = router.state.pools.values()
        await router.wait_for(lambda: pool.replicas[silent.url].health == "hung")
        missing = await router.client.post("/v1/responses", json=REFERS)
        named = await router.client.get("/v1/responses/resp_s_1")
        for answer in (missing, named):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert "it is hung" in answer.json()["error"]["message"]
        nowhere = await router.client.get("/v1/responses/resp_nowhere")
        assert nowhere.status_code == 404
    assert silent.questions == 0


async def test_while_a_replica_may_come_back_the_error_says_so(routed):
    keeper = CutsOff()
    keeper.claims = {"response_store": "k"}
    path = "/v1/responses/resp_k_1"
    async with routed(keeper, ScriptedReplica()) as router:
        lost = await router.client.get(path)
        assert (lost.status_code, lost.headers["retry-after"]) == (503, "1")
        await keeper.stop()
        gone = await router.client.get(path)
        assert gone.status_code == 404
        assert "is gone or has started anew" in gone.json()["error"]["message"]


async def test_an_item_that_a_replica_does_not_tell_is_not_called_unknown(routed):
    for told, status in ((CutsOff, 503), (Refuses, 503), (ScriptedReplica, 200)):
        keeper = told()
        keeper.claims = {"response_store": "k"}
        async with routed(keeper) as router:
            answer = await router.client.post("/v1/responses", json=REFERS)
            assert answer.status_code == status, answer.text


def test_of_a_replica_that_is_gone_the_error_says_so(replicas, client):
    for response_id in ("resp_000000000000_x", "resp_x", "x", "x y\r\nHost: z"):
        with pytest.raises(openai.NotFoundError, match="is gone or has started anew"):
            client.responses.retrieve(response_id)
        with pytest.raises(openai.BadRequestError, match="is gone or has started anew"):
            respond(client, previous_response_id=response_id)
    one, other = replicas
    assert len(one.llm.seen) + len(other.llm.seen) == 0


def test_where_none_is_kept(client):
    with (
        replica() as server,
        router_thread(server.url) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="-") as client,
    ):
        answer = respond(client)
        assert answer.store is False
        with pytest.raises(openai.NotFoundError, match="--response-store"):
            client.responses.retrieve(answer.id)


def test_a_tenant_finds_its_own_by_any_of_its_keys(replicas, tmp_path):
    names = {"a": ("one", "two"), "b": ("three",)}
    tenants = [
        {"name": name, "keys": [{"hash": digest_entry(key_digest(key))} for key in keys]}
        for name, keys in names.items()
    ]
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"tenants": tenants}))
    with router_thread(*(each.url for each in replicas), api_keys_file=str(file)) as port:
        base = f"http://127.0.0.1:{port}/v1"
        clients = {
            key: openai.OpenAI(base_url=base, api_key=key, max_retries=0)
            for keys in names.values()
            for key in keys
        }
        answer = respond(clients["one"])
        assert clients["two"].responses.retrieve(answer.id) == answer
        for ask in (clients["three"].responses.retrieve, clients["three"].responses.delete):
            with pytest.raises(openai.NotFoundError):
                ask(answer.id)
        with pytest.raises(openai.BadRequestError):
            respond(clients["three"], previous_response_id=answer.id)
        # Nor by saying that it is another tenant.
        told = []
        for each in replicas:
            told += each.state.responses._responses
        [(_, tenant)] = told
        headers = {"Authorization": "Bearer three", "X-Pagelet-Tenant": tenant}
        url = f"{base}/responses/{answer.id}"
        assert httpx.get(url, headers=headers, timeout=60).status_code == 404
        assert httpx.get(url, timeout=60).status_code == 401
        for each in clients.values():
            each.close()


def test_a_stream_that_goes_on_elsewhere_is_found_under_its_first_id(replicas, client):
    for each in replicas:
        each.llm.behaviour.lockstep = True
    first = None
    with respond(client, stream=True) as events:
        seen = []
        for event in events:
            seen.append(event)
            if event.type == "response.created":
                first = event.response
                keeper_of(replicas, first).run(keeper_of(replicas, first).llm.die)
    last = seen[-1]
    assert last.type == "response.completed"
    assert last.response.id == first.id
    assert last.response.output_text == TEXT
    assert client.responses.retrieve(first.id) == last.response
