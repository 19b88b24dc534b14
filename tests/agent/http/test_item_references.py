"""Items of stored responses, referred to by their ids."""

import json

import openai
import pytest

from pagelet.agent.http.responses.store import ResponseStore
from pagelet.protocol.openai.response_object import OutputMessage

from .test_stored_responses import TEXT, TOOL, prompt_of, respond


@pytest.fixture
def client(keeper):
    with keeper.openai(max_retries=0) as client:
        yield client


def reference(item_id):
    return {"type": "item_reference", "id": item_id}


def test_items_are_in_the_places_of_their_references(keeper, client):
    first = respond(client, input="one")
    [asked] = client.responses.input_items.list(first.id).data
    answered = first.output[0]
    for whole in (reference(answered.id), {"id": answered.id}):
        items = [reference(asked.id), whole, {"role": "user", "content": "two"}]
        second = respond(client, input=items)
        assert prompt_of(keeper) == f"<user>one<assistant>{TEXT}<user>two<assistant>"
        # They are told of, and kept, as what they are.
        told = client.responses.input_items.list(second.id, order="asc").data
        assert [item.id for item in told[:2]] == [asked.id, answered.id]
        assert [item.content[0].text for item in told] == ["one", TEXT, "two"]


def test_calls_and_thinking_can_be_referred_to(thinking_keeper):
    with thinking_keeper.openai(max_retries=0) as client:
        first = respond(client, input="Why?", tools=[TOOL])
        result = {
            "type": "function_call_output",
            "call_id": first.output[-1].call_id,
            "output": "found",
        }
        items = [{"role": "user", "content": "Why?"}, *(reference(i.id) for i in first.output)]
        respond(client, input=[*items, result], tools=[TOOL])
        by_reference = thinking_keeper.llm.rendered[-1]
        respond(client, input=[result], previous_response_id=first.id, tools=[TOOL])
        assert by_reference == thinking_keeper.llm.rendered[-1]


def test_what_is_not_kept_cannot_be_referred_to(client, serve):
    kept, other = respond(client), respond(client, store=False)
    gone = respond(client)
    client.responses.delete(gone.id)
    for item_id in ("msg_1", other.output[0].id, gone.output[0].id):
        with pytest.raises(openai.NotFoundError, match="Send the item itself") as caught:
            respond(client, input=[reference(item_id)])
        assert (caught.value.param, caught.value.code) == ("input", "item_not_found")
        assert item_id in str(caught.value)
    with serve().openai(max_retries=0) as elsewhere:
        with pytest.raises(openai.BadRequestError, match="--response-store") as caught:
            respond(elsewhere, input=[reference(kept.output[0].id)])
        assert caught.value.param == "input"


def test_references_are_few_and_each_is_made_once(client):
    [item] = respond(client).output
    for items in ([reference(item.id)] * 2, [reference(f"msg_{at}") for at in range(257)]):
        with pytest.raises(openai.BadRequestError) as caught:
            respond(client, input=items)
        assert caught.value.param == "input"
    for wrong in ({"type": "item_reference"}, {"type": "item_reference", "id": 5}, {"id": ""}):
        with pytest.raises(openai.BadRequestError) as caught:
            respond(client, input=[wrong])
        assert caught.value.param.startswith("input[0]")


def test_no_other_owner_finds_them(serve):
    server = serve(api_keys=["a", "b"], response_store=1 << 20)
    with server.openai(api_key="a", max_retries=0) as one:
        [item] = respond(one).output
        assert respond(one, input=[reference(item.id)]).output
    with server.openai(api_key="b", max_retries=0) as other:
        with pytest.raises(openai.NotFoundError):
            respond(other, input=[reference(item.id)])
        found = server.get(
            f"/v1/responses/items?ids={item.id}", headers={"Authorization": "Bearer b"}
        )
        assert found.json() == {}


class Kept:
    """As much of a response as a store knows of."""

    def __init__(self, name):
        self.id = name
        self.output = [OutputMessage(id=f"out_{name}", status="completed", content=[])]

    def model_dump_json(self):
        return json.dumps({"output": [item.model_dump() for item in self.output]})


def test_items_stay_as_long_as_any_response_has_them():
    store = ResponseStore(1 << 20)
    owner = ("", "")

    def keep(name, *item_ids, text=""):
        items = [{"id": item_id, "text": text} for item_id in item_ids]
        store.keep(owner, Kept(name), items)

    def found():
        every = ["in_1", "out_1", "in_2", "out_2", "in_3", "out_3"]
        return set(store.find_items(owner, every))

    keep("1", "in_1", text="first")
    keep("2", "in_1", "out_1", "in_2", "in_2", text="second")
    assert found() == {"in_1", "out_1", "in_2", "out_2"}
    assert store.find_items(("other", ""), ["in_1"]) == {}
    assert store.find_items(owner, ["in_1"])["in_1"]["text"] == "first"
    store.delete(owner, "1")
    assert found() == {"in_1", "out_1", "in_2", "out_2"}
    assert store.find_items(owner, ["in_1"])["in_1"]["text"] == "second"
    keep("3", "in_1", "in_3")
    store.delete(owner, "2")
    assert found() == {"in_1", "in_3", "out_3"}
    store.delete(owner, "3")
    assert found() == set()


def test_an_item_outlives_the_response_that_it_came_with(keeper, client):
    first = respond(client, input="one")
    [asked] = client.responses.input_items.list(first.id).data
    second = respond(client, input="two", previous_response_id=first.id)
    client.responses.delete(first.id)
    told = client.responses.input_items.list(second.id, order="asc").data
    assert asked.id in [item.id for item in told]
    for item in told:
        respond(client, input=[reference(item.id), {"role": "user", "content": "three"}])
    respond(client, input=[reference(asked.id)], store=False)
    assert prompt_of(keeper) == "<user>one<assistant>"
