"""The official client in every documented call: to a server, and to a router in front of one."""

import asyncio

import openai
import pytest

from .conftest import DIRECT_AND_IMPATIENTLY_ROUTED

pytestmark = DIRECT_AND_IMPATIENTLY_ROUTED
MESSAGES = [{"role": "user", "content": "Hi"}]
TEXT = "Hello, wörld!"


@pytest.fixture
def client(server):
    with server.openai(max_retries=0) as client:
        yield client


def chat(client, **options):
    return client.chat.completions.create(model="tiny", messages=MESSAGES, **options)


def complete(client, prompt, **options):
    return client.completions.create(model="tiny", prompt=prompt, **options)


def test_chat(server, client):
    answer = chat(client, max_completion_tokens=50, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is None
    prompt = server.llm.tokenizer.encode("<user>Hi<assistant>", False)
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len(TEXT)
    assert answer.usage.total_tokens == len(prompt) + len(TEXT)
    assert answer.usage.prompt_tokens_details.cached_tokens == 16
    _, ids, sampling, _ = server.llm.seen[0]
    assert ids == prompt
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (50, 0, None)


def test_chat_is_bounded_by_the_context_alone_unless_asked(server, client):
    chat(client)
    chat(client, max_tokens=3)
    assert [sampling.max_tokens for _, _, sampling, _ in server.llm.seen] == [None, 3]


def test_chat_length(client):
    answer = chat(client, max_tokens=5)
    assert answer.choices[0].message.content == TEXT[:5]
    assert answer.choices[0].finish_reason == "length"


def test_chat_n_and_logprobs(client):
    answer = chat(client, n=2, max_tokens=9, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.completion_tokens == 18
    for choice in answer.choices:
        assert "".join(entry.token for entry in choice.logprobs.content) == TEXT[:9]
        assert choice.logprobs.content[8].bytes == [0xC3, 0xB6]
        assert [top.token for top in choice.logprobs.content[0].top_logprobs] == ["a", "b"]
        assert choice.logprobs.content[0].top_logprobs[1].logprob == -2


def test_chat_stream(client):
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    *deltas, last, usage = chunks
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == TEXT
    assert {c.choices[0].finish_reason for c in deltas} == {None}
    assert last.choices[0].finish_reason == "stop"
    assert [c.usage for c in [*deltas, last]] == [None] * (len(chunks) - 1)
    assert usage.choices == []
    assert usage.usage.completion_tokens == len(TEXT)


def test_no_usage_unless_asked(client):
    chunks = list(chat(client, stream=True))
    assert all(chunk.choices for chunk in chunks)
    assert all("usage" not in chunk.model_fields_set for chunk in chunks)


def test_continuous_usage(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(chat(client, n=2, stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert counts[0] == 0  # nothing of the answer is in the chunk of the role
    assert counts[-1] == 2 * len(TEXT)
    assert all(chunk.usage.prompt_tokens == chunks[-1].usage.prompt_tokens for chunk in chunks)


def test_chat_stream_with_n_and_logprobs(client):
    texts, tokens, ends = ["", ""], [[], []], [None, None]
    for chunk in chat(client, n=2, stream=True, logprobs=True, top_logprobs=1):
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        if choice.logprobs:
            tokens[choice.index] += [entry.token for entry in choice.logprobs.content]
        ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert texts == [TEXT, TEXT]
    assert tokens == [list(TEXT), list(TEXT)]
    assert ends == ["stop", "stop"]


async def test_async_client(server):
    async with server.async_openai() as client:

        async def one():
            stream = await client.chat.completions.create(
                model="tiny", messages=MESSAGES, stream=True
            )
            return "".join([c.choices[0].delta.content or "" async for c in stream])

        assert await asyncio.gather(*(one() for _ in range(8))) == [TEXT] * 8
        answer = await client.completions.create(model="org/alias", prompt="x")
        assert answer.choices[0].text == TEXT
        assert answer.model == "tiny"
    server.wait_until(lambda: server.state.admission.in_flight == 0)


def test_answers_carry_the_first_name_whichever_was_asked_for(client):
    asked = {"model": "org/alias", "messages": MESSAGES}
    assert client.chat.completions.create(**asked).model == "tiny"
    assert {chunk.model for chunk in client.chat.completions.create(stream=True, **asked)} == {
        "tiny"
    }
    asked = {"model": "org/alias", "input": "Go."}
    assert client.responses.create(**asked).model == "tiny"
    assert list(client.responses.create(stream=True, **asked))[-1].response.model == "tiny"


def test_completion_default_is_16_tokens(server, client):
    server.llm.behaviour.text = "x" * 30
    answer = complete(client, "go")
    assert answer.object == "text_completion"
    assert answer.choices[0].text == "x" * 16
    assert answer.choices[0].finish_reason == "length"


def test_completion_of_batches(server, client):
    for prompts in (["ab", "c"], [[107, 108], [109]]):
        answer = complete(client, prompts, n=2, max_tokens=2)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        assert answer.usage.completion_tokens == 8
    assert answer.usage.prompt_tokens == 3
    assert [ids for _, ids, *_ in server.llm.seen[-2:]] == [[107, 108], [109]]


def test_completion_batch_stream(client):
    texts = [""] * 4
    for chunk in complete(client, ["ab", "c"], n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [TEXT] * 4


def test_completion_logprobs(client):
    answer = complete(client, "p", max_tokens=10, logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens == list(TEXT[:10])
    assert logprobs.token_logprobs == [-0.5] * 10
    assert logprobs.text_offset == list(range(10))
    assert logprobs.top_logprobs[0] == {"a": -1.0, "H": -0.5}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("prompt", ["né", [120, 243]])
def test_echo_with_logprobs(client, stream, max_tokens, prompt):
    options = {"echo": True, "logprobs": 1, "max_tokens": max_tokens}
    answer = complete(client, prompt, stream=stream, **options)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    lists = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for choice in choices:
        for name, values in lists.items():
            values += getattr(choice.logprobs, name) if choice.logprobs else []
    bos = ["<s>"] if isinstance(prompt, str) else []
    written = list(TEXT[:max_tokens])
    assert "".join(choice.text for choice in choices) == "né" + TEXT[:max_tokens]
    assert lists["tokens"] == [*bos, "n", "é", *written]
    assert lists["token_logprobs"] == [None] + [-0.5] * (len(lists["tokens"]) - 1)
    assert lists["top_logprobs"][0] is None
    assert lists["top_logprobs"][-1].keys() == {"a", lists["tokens"][-1]}
    assert lists["text_offset"] == [0] * len(bos) + list(range(2 + len(written)))
    assert choices[-1].finish_reason == "length"
    if not stream:
        assert answer.usage.completion_tokens == max_tokens


def test_prompt_logprobs_and_token_ids(client):
    extra = {"prompt_logprobs": 1, "return_token_ids": True}
    answer = complete(client, "hi", max_tokens=2, extra_body=extra).choices[0]
    assert answer.token_ids == [82, 111]
    assert answer.prompt_token_ids == [1, 114, 115]
    assert answer.prompt_logprobs[0] is None
    assert answer.prompt_logprobs[1]["114"] == {
        "logprob": -0.5,
        "rank": 1,
        "decoded_token": "h",
    }
    chatted = chat(client, max_tokens=1, extra_body=extra)
    assert len(chatted.prompt_logprobs) == len(chatted.prompt_token_ids)
    assert chatted.choices[0].token_ids == [82]


def test_extensions_reach_the_engine(server, client):
    extra = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "stop_token_ids": [7],
        "ignore_eos": True,
        "min_tokens": 2,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
        "cache_salt": "s",
        "add_special_tokens": False,
    }
    complete(client, "hi", stop=["a"], logit_bias={"12": -1}, seed=3, extra_body=extra)
    _, ids, sampling, salt = server.llm.seen[0]
    assert ids == [114, 115]
    assert salt == "s"
    for name in extra.keys() - {"cache_salt", "add_special_tokens"}:
        assert getattr(sampling, name) == extra[name]
    assert sampling.stop == ["a"]
    assert sampling.logit_bias == {12: -1}
    assert sampling.seed == 3


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny", "org/alias"]
    assert client.models.retrieve("org/alias").id == "org/alias"
    with pytest.raises(openai.NotFoundError, match="'tiny', 'org/alias'") as caught:
        client.models.retrieve("gpt")
    assert caught.value.code == "model_not_found"


def test_errors_are_the_clients_own(server, client):
    with pytest.raises(openai.NotFoundError, match="'tiny', 'org/alias'") as missing:
        client.chat.completions.create(model="gpt", messages=MESSAGES)
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, audio={"voice": "v", "format": "mp3"})
    assert refused.value.param == "audio"
    assert refused.value.code == "unsupported_parameter"
    with pytest.raises(openai.BadRequestError) as zero:
        chat(client, max_completion_tokens=0)
    assert zero.value.param == "max_completion_tokens"
    with pytest.raises(openai.BadRequestError, match="refuses this conversation"):
        chat(client, extra_body={"chat_template_kwargs": {"fail": True}})
    server.llm.is_ready = False
    with pytest.raises(openai.InternalServerError) as down:
        chat(client)
    assert down.value.status_code == 503
    assert down.value.code == "engine_starting"
    assert down.value.response.headers["retry-after"] == "5"
    server.wait_until(lambda: server.state.admission.in_flight == 0)


def test_neutral_values_are_accepted(client):
    answer = chat(
        client,
        tools=[],
        tool_choice="none",
        parallel_tool_calls=True,
        response_format={"type": "text"},
        store=False,
        user="u",
        metadata={"a": "b"},
        service_tier="auto",
        modalities=["text"],
        logit_bias={},
    )
    assert answer.choices[0].message.content == TEXT


def test_an_answer_can_go_back_into_the_history(client):
    message = chat(client).choices[0].message
    history = [*MESSAGES, message.model_dump(), {"role": "user", "content": "More"}]
    again = client.chat.completions.create(model="tiny", messages=history)
    assert again.choices[0].message.content == TEXT
