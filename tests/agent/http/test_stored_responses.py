"""Responses that are kept: by the official client, and each for its owner alone."""

import asyncio
import itertools
import json

import httpx
import openai
import pytest

from pagelet.agent.http.responses.store import MOST_SECONDS, ResponseStore

from .thinking_llm import ANSWER

TEXT = "Hello, wörld!"
TOOL = {"type": "function", "name": "look_up", "parameters": {"type": "object"}}


@pytest.fixture
def client(keeper):
    with keeper.openai(max_retries=0) as client:
        yield client


def respond(client, **options):
    return client.responses.create(**({"model": "tiny", "input": "hi", "store": True} | options))


def prompt_of(server):
    return server.llm.tokenizer.decode(server.llm.seen[-1][1])


@pytest.mark.parametrize("stream", [False, True])
def test_a_kept_response_is_found_again(client, stream):
    answer = respond(client, stream=stream)
    if stream:
        answer = list(answer)[-1].response
    assert answer.store is True
    assert client.responses.retrieve(answer.id) == answer
    items = client.responses.input_items.list(answer.id).data
    assert [item.content[0].text for item in items] == ["hi"]
    client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.retrieve(answer.id)
    assert caught.value.code == "response_not_found"


def test_only_what_was_asked_to_be_kept_is(client, serve):
    for store in (False, openai.omit):
        answer = respond(client, store=store)
        assert answer.store is False
        with pytest.raises(openai.NotFoundError, match="was not stored"):
            client.responses.retrieve(answer.id)
    with serve().openai(max_retries=0) as elsewhere:  # a server that keeps none
        answer = respond(elsewhere)
        assert answer.store is False
        for ask in (elsewhere.responses.retrieve, elsewhere.responses.delete):
            with pytest.raises(openai.NotFoundError, match="--response-store"):
                ask(answer.id)
        for extra in ({"background": True}, {"previous_response_id": answer.id}):
            with pytest.raises(openai.BadRequestError, match="--response-store") as caught:
                respond(elsewhere, **extra)
            assert caught.value.param == next(iter(extra))


def test_a_conversation_goes_on(keeper, client):
    first = respond(client, input="one", instructions="Be brief.")
    second = respond(client, input="two", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert prompt_of(keeper) == f"<user>one<assistant>{TEXT}<user>two<assistant>"
    third = list(respond(client, input="three", previous_response_id=second.id, stream=True))
    assert prompt_of(keeper).startswith(f"<user>one<assistant>{TEXT}<user>two<assistant>{TEXT}")
    client.responses.delete(first.id)
    client.responses.delete(second.id)
    # What came before lies with the last one.
    listed = client.responses.input_items.list(third[-1].response.id, order="asc", limit=2)
    assert [item.content[0].text for item in listed] == ["one", TEXT, "two", TEXT, "three"]
    assert len({item.id for item in listed}) == 5
    # A fork, and one that is not kept.
    respond(client, input="four", previous_response_id=third[-1].response.id, store=False)
    assert prompt_of(keeper).endswith(f"<user>three<assistant>{TEXT}<user>four<assistant>")
    with pytest.raises(openai.BadRequestError) as caught:
        respond(client, previous_response_id=second.id)
    assert caught.value.code == "previous_response_not_found"
    assert caught.value.param == "previous_response_id"


def test_a_conversation_has_an_end(serve):
    keeper = serve(response_store=1 << 24)
    body = {"model": "tiny", "input": [{"role": "user", "content": "x"}] * 8192, "store": True}
    long = keeper.post("/v1/responses", json=body, timeout=60).json()
    body |= {"input": "more", "previous_response_id": long["id"]}
    error = keeper.post("/v1/responses", json=body, timeout=60).json()["error"]
    assert error["param"] == "previous_response_id"
    assert "too many items" in error["message"]


def test_calls_and_thinking_go_on(thinking_keeper):
    with thinking_keeper.openai(max_retries=0) as client:
        first = respond(client, tools=[TOOL])
        call = first.output[-1]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "found"}
        respond(client, input=[result], previous_response_id=first.id, tools=[TOOL])
    messages = thinking_keeper.llm.rendered[-1][0]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["reasoning_content"] == "Let me see."
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"]


def test_a_call_that_was_cut_off_does_not_go_on(thinking_keeper):
    with thinking_keeper.openai(max_retries=0) as client:
        first = respond(client, tools=[TOOL], max_output_tokens=len(ANSWER) - 20)
        assert (first.output[-1].type, first.output[-1].status) == ("function_call", "incomplete")
        respond(client, input="two", previous_response_id=first.id, tools=[TOOL])
    messages = thinking_keeper.llm.rendered[-1][0]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[1]["reasoning_content"] == "Let me see."
    assert not messages[1].get("tool_calls")


def test_no_other_owner_sees_it(serve):
    keeper = serve(response_store=1 << 20, api_keys=["one", "two"])
    with keeper.openai(api_key="one") as one, keeper.openai(api_key="two") as two:
        answer = respond(one)
        for ask in (two.responses.retrieve, two.responses.delete, two.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                ask(answer.id)
        with pytest.raises(openai.BadRequestError, match="not found"):
            respond(two, previous_response_id=answer.id)
        headers = {"Authorization": "Bearer one", "X-Pagelet-Tenant": "other"}
        found = httpx.get(f"{keeper.url}/v1/responses/{answer.id}", headers=headers, timeout=60)
        assert found.status_code == 404
        assert one.responses.retrieve(answer.id) == answer


def test_in_the_background(keeper, client):
    keeper.llm.behaviour.hold = keeper.run(asyncio.Event)
    begun = respond(client, background=True, store=openai.omit)
    assert (begun.status, begun.background, begun.output) == ("in_progress", True, [])
    assert client.responses.retrieve(begun.id).status == "in_progress"
    keeper.run(keeper.llm.behaviour.hold.set)
    keeper.wait_until(lambda: keeper.state.admission.in_flight == 0)
    done = client.responses.retrieve(begun.id)
    assert (done.status, done.output_text) == ("completed", TEXT)
    assert done.usage.output_tokens == len(TEXT)
    assert client.responses.cancel(begun.id) == done  # too late
    keeper.wait_until(lambda: keeper.state.open_requests == 0)


def test_what_is_in_progress_cannot_be_gone_on_from(keeper, client):
    keeper.llm.behaviour.hold = keeper.run(asyncio.Event)
    begun = respond(client, background=True)
    before = len(keeper.llm.seen)
    asks = (respond, lambda client, **fields: client.responses.input_tokens.count(**fields))
    for ask in asks:
        with pytest.raises(openai.BadRequestError, match="in progress: ask for it") as caught:
            ask(client, model="tiny", input="two", previous_response_id=begun.id)
        assert caught.value.code == "previous_response_in_progress"
        assert caught.value.param == "previous_response_id"
    assert len(keeper.llm.seen) == before
    cancelled = client.responses.cancel(begun.id)
    assert cancelled.status == "cancelled"
    keeper.run(keeper.llm.behaviour.hold.set)
    respond(client, input="two", previous_response_id=begun.id)
    so_far = f"<assistant>{cancelled.output_text}" if cancelled.output else ""
    assert prompt_of(keeper) == f"<user>hi{so_far}<user>two<assistant>"


@pytest.mark.parametrize("why", ["incomplete", "failed"])
def test_an_answer_that_broke_off_is_gone_on_from_as_far_as_it_came(keeper, client, why):
    if why == "incomplete":
        answer = respond(client, max_output_tokens=3)
    else:
        keeper.llm.behaviour.die_after = 3
        begun = respond(client, background=True)
        keeper.wait_until(lambda: keeper.state.admission.in_flight == 0)
        answer = client.responses.retrieve(begun.id)
        keeper.llm.behaviour.die_after = None
    assert answer.status == why
    respond(client, input="two", previous_response_id=answer.id)
    assert answer.output_text
    assert prompt_of(keeper) == f"<user>hi<assistant>{answer.output_text}<user>two<assistant>"


@pytest.mark.parametrize("ended", ["cancel", "delete"])
def test_what_runs_in_the_background_can_be_ended(keeper, client, ended):
    keeper.llm.behaviour.hold = keeper.run(asyncio.Event)
    begun = respond(client, background=True)
    if ended == "cancel":
        assert client.responses.cancel(begun.id).status == "cancelled"
        assert client.responses.retrieve(begun.id).status == "cancelled"
    else:
        client.responses.delete(begun.id)
    keeper.wait_until(lambda: keeper.state.admission.in_flight == 0)
    keeper.wait_until(lambda: keeper.state.open_requests == 0)
    assert len(keeper.llm.aborted) == 1


def test_failures_in_the_background_are_told(keeper, client):
    keeper.llm.behaviour.die_after = 2
    begun = respond(client, background=True)
    keeper.wait_until(lambda: keeper.state.admission.in_flight == 0)
    failed = client.responses.retrieve(begun.id)
    assert (failed.status, failed.error.code) == ("failed", "server_error")


def test_what_cannot_be_is_refused(client):
    kept = respond(client)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(kept.id)
    for extra in ({"store": False}, {"stream": True}):
        with pytest.raises(openai.BadRequestError) as caught:
            respond(client, background=True, **extra)
        assert caught.value.param == "background"
    for extra in ({"after": "item_none"}, {"limit": 0}, {"order": "upwards"}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.input_items.list(kept.id, **extra)
        assert caught.value.param == next(iter(extra))


def test_a_drain_waits_for_the_background_and_answers_for_what_is_kept(keeper, client):
    keeper.llm.behaviour.hold = keeper.run(asyncio.Event)
    begun = respond(client, background=True)
    keeper.run(keeper.state.begin_drain)
    assert client.responses.retrieve(begun.id).status == "in_progress"
    assert keeper.state.open_requests == 1
    with pytest.raises(openai.InternalServerError):
        respond(client)
    keeper.run(keeper.llm.behaviour.hold.set)
    keeper.finish(keeper.state.wait_idle)
    with pytest.raises(TimeoutError):
        keeper.finish(lambda: asyncio.wait_for(keeper.state.wait_fetched(), 0.1))
    assert client.responses.retrieve(begun.id).status == "completed"
    keeper.finish(keeper.state.wait_fetched)


class Kept:
    """As much of a response as a store knows of."""

    output = ()

    def __init__(self, name, size=100):
        self.id = name
        self._size = size

    def model_dump_json(self):
        return json.dumps({"output": ["x" * self._size]})


def test_room_is_taken_from_whom_has_most():
    store = ResponseStore(20_000, lambda: 0.0)
    small, big = ("", "small"), ("", "big")
    store.keep(small, Kept("first"), [])
    for number in range(40):
        store.keep(big, Kept(str(number)), [])
        store.keep(big, Kept(str(number)), [])  # again, in its place
    assert store.find(small, "first") is not None
    kept = [number for number in range(40) if store.find(big, str(number)) is not None]
    assert 10 < len(kept) < 20_000 // 1024
    assert kept == list(range(40 - len(kept), 40))
    store.keep(big, Kept("too large", 30_000), [])
    assert store.find(big, "too large") is None
    assert store.find(small, "first") is not None


@pytest.mark.parametrize("end", ["told", "deleted", "for room", "late", "never begun"])
async def test_what_ended_in_the_background_is_waited_for_until_it_is_asked_for(end):
    now = 100.0
    store = ResponseStore(20_000, lambda: now)
    owner = ("", "")
    store.keep(owner, Kept("at once"), [])
    assert store.wanted_seconds <= 0
    stored = store.keep(owner, Kept("one"), [], background=True)
    if end != "never begun":
        store.tell(stored)  # it has not ended yet
        store.finish(owner, Kept("one"))
        waits = asyncio.create_task(store.fetched())
        await asyncio.sleep(0)
        assert store.wanted_seconds == 60
        assert not waits.done()
        if end == "told":
            assert store.tell(stored) == stored.body
        elif end == "deleted":
            store.delete(owner, "one")
        elif end == "for room":
            for number in range(40):
                store.keep(owner, Kept(str(number)), [])
        else:
            now += 61
            store.keep(owner, Kept("two"), [])
            store.delete(owner, "two")  # wakes it
        await waits
    assert store.wanted_seconds <= 0
    await store.fetched()


def test_nothing_is_kept_for_ever():
    times = itertools.chain(
        [0.0, 0.0, MOST_SECONDS, MOST_SECONDS], itertools.repeat(MOST_SECONDS + 1)
    )
    store = ResponseStore(20_000, lambda: next(times))
    owner = ("", "")
    store.keep(owner, Kept("one"), [])
    assert store.find(owner, "one") is not None
    store.find(owner, "one")
    assert store.find(owner, "one") is None
