"""Conversations that are longer than the model's context."""

import asyncio
import math

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.agent.http.fitting import fitting_prompt
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.chat import Message

from .real_engine import replica, simulated


def message(role, size, number=0):
    return Message(role=role, content=f"{number:x}".ljust(size, "."))


def fitted(messages, room, most=math.inf):
    """The messages that are left, and how often a template was rendered. What is longer than `most`
    is not tokenized."""
    rendered = {}

    async def render(kept):
        if size_of(kept) > most:
            raise InvalidRequest("far too long", "prompt", "context_length_exceeded")
        prompt = [number for each in kept for number in range(len(each.content[0].text))]
        rendered[id(prompt)] = kept
        prompts.append(prompt)
        return prompt

    prompts = []
    prompt = asyncio.run(fitting_prompt(messages, room, render))
    return rendered[id(prompt)], len(prompts)


def size_of(messages):
    return sum(len(each.content[0].text) for each in messages)


def one_piece_less(rest):
    """The plain rule, a piece at a time; None if there is nothing more to leave out."""
    turns = [at for at, each in enumerate(rest) if each.role == "user" and at]
    steps = [at for at, each in enumerate(rest) if each.role == "assistant" and at]
    if turns:
        return rest[turns[0] :]
    return rest[: steps[0]] + rest[steps[1] :] if len(steps) > 1 else None


@given(
    st.lists(st.sampled_from(["system", "developer"]), max_size=2),
    st.lists(st.sampled_from(["user", "assistant", "tool"]), min_size=1, max_size=14),
    st.integers(0, 170),
)
def test_as_little_is_left_out_as_must_be(instructions, roles, room):
    messages = [message(role, 10, at) for at, role in enumerate(instructions + roles)]
    begin = len(instructions)
    expected = messages
    while size_of(expected) > room:
        rest = one_piece_less(expected[begin:])
        if rest is None:
            break
        expected = messages[:begin] + rest
    assert fitted(messages, room)[0] == expected


def test_what_is_too_long_to_be_tokenized_is_left_out_too():
    messages = [message(role, 10) for _ in range(50) for role in ("user", "assistant")]
    for most in (1000, 999, 200, 101, 100, 50, 20):
        assert fitted(messages, 100, most)[0] == messages[-2 * (min(most, 100) // 20) :]
    with pytest.raises(InvalidRequest, match="far too long"):
        fitted(messages, 100, 19)


def test_turns_go_before_steps_of_the_last():
    roles = ["user", "assistant", "user", "assistant", "tool", "assistant", "tool", "assistant"]
    messages = [message(role, 10, at) for at, role in enumerate(["system", *roles])]
    for room, left in (
        (90, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (89, [0, 3, 4, 5, 6, 7, 8]),
        (69, [0, 3, 6, 7, 8]),
        (49, [0, 3, 8]),
        (1, [0, 3, 8]),
    ):
        assert fitted(messages, room)[0] == [messages[at] for at in left]


def test_long_conversations_are_rendered_few_times():
    messages = [message(role, 10) for _ in range(1000) for role in ("user", "assistant")]
    kept, times = fitted(messages, 5000)
    assert size_of(kept) == 5000
    assert times <= 12


@pytest.fixture(scope="module")
def client():
    with (
        replica(simulated(), response_store=1 << 22) as server,
        server.openai(max_retries=0) as client,
    ):
        yield client


def test_responses_forget_what_is_oldest(client):
    turns = [
        {"role": role, "content": f"{number} " + "word " * 900}
        for number in range(6)
        for role in ("user", "assistant")
    ]
    asked = {"model": "tiny", "instructions": "Be brief.", "max_output_tokens": 100}
    items = [*turns, {"role": "user", "content": "And now?"}]
    with pytest.raises(openai.BadRequestError, match="context length") as caught:
        client.responses.create(input=items, truncation="disabled", **asked)
    assert caught.value.param == "input"
    answer = client.responses.create(input=items, truncation="auto", store=True, **asked)
    assert answer.truncation == "auto"
    auto, whole = (
        client.responses.input_tokens.count(
            model="tiny", instructions="Be brief.", input=items, truncation=truncation
        ).input_tokens
        for truncation in ("auto", "disabled")
    )
    assert 8192 - 2 * 950 < auto < 8192 < whole
    assert 8192 - 100 - 2 * 950 < answer.usage.input_tokens <= 8192 - 100
    *_, last = client.responses.create(input=items, truncation="auto", stream=True, **asked)
    assert last.response.usage.input_tokens == answer.usage.input_tokens
    # Much more than the context is no other case.
    longer = client.responses.create(input=[*turns * 40, items[-1]], truncation="auto", **asked)
    assert longer.usage.input_tokens == answer.usage.input_tokens
    # It is left out of the prompt alone, and goes on with what is kept.
    listed = list(client.responses.input_items.list(answer.id, limit=100))
    assert len(listed) == len(items)
    more = client.responses.create(
        input="More.", truncation="auto", previous_response_id=answer.id, **asked
    )
    assert more.usage.input_tokens <= 8192 - 100


def test_one_question_that_is_too_long_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="context length"):
        client.responses.create(model="tiny", input="word " * 9000, truncation="auto")
