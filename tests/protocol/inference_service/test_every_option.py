"""Whatever can be set of an engine or a server is a field of a spec, or known to be none."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from pagelet.agent.settings import ServeSettings
from pagelet.protocol.config import EngineOptions, ModelOptions
from pagelet.protocol.inference_service.commands import agent_arguments, router_config
from pagelet.protocol.inference_service.engine import SpeculationSpec
from pagelet.protocol.inference_service.load import read_service
from pagelet.protocol.router import Pool
from pagelet.protocol.speculation import SpeculationOptions
from support.broken_services import service as body
from support.served import serve

URI = "hf://org/name"
GPU = {"resourceName": "nvidia.com/gpu", "count": 1}
ADAPTERS = {"uri": URI, "adapters": [{"name": "sql", "uri": "hf://org/sql", "revision": "v1"}]}
SIMULATED = {"runner": "simulated"}
PUBLISHES = {"kv_events_endpoint": "tcp://*:5557", "kv_events_replay_endpoint": "tcp://*:5558"}

SET: dict[str, tuple[dict[str, Any], Any]] = {
    "model.source": ({"model": {"uri": URI, "revision": "v1"}}, f"{URI}@v1"),
    "model.tokenizer": ({"model": {"uri": URI, "tokenizer": "hf://org/other"}}, "hf://org/other"),
    "model.served_model_names": ({"model": {"uri": URI, "servedNames": ["a", "b"]}}, ["a", "b"]),
    "model.dtype": ({"engine": {"dtype": "float16"}}, "float16"),
    "model.quantization": ({"engine": {"quantization": "int8"}}, "int8"),
    "model.max_model_len": ({"engine": {"maxModelLen": 9}}, 9),
    "model.load_format": ({"engine": {"loadFormat": "dummy"}}, "dummy"),
    "model.task": ({"engine": {"task": "embed"}}, "embed"),
    "model.pooling": ({"engine": {"pooling": "cls"}}, "cls"),
    "model.score_tokens": ({"engine": {"scoreTokens": ["no", "yes"]}}, ["no", "yes"]),
    "cache.block_size": ({"engine": {"kvCache": {"blockSize": 32}}}, 32),
    "cache.kv_cache_dtype": ({"engine": {"kvCache": {"dtype": "int8"}}}, "int8"),
    "cache.kv_cache_memory_bytes": ({"engine": {"kvCache": {"memory": "1Gi"}}}, 1 << 30),
    "cache.memory_utilization": ({"engine": {"kvCache": {"memoryFraction": 0.5}}}, 0.5),
    "cache.num_blocks": ({"engine": {"kvCache": {"numBlocks": 5}}}, 5),
    "cache.enable_prefix_caching": ({"engine": {"kvCache": {"prefixCaching": False}}}, False),
    "scheduler.max_num_seqs": ({"engine": {"maxNumSeqs": 7}}, 7),
    "scheduler.max_num_batched_tokens": ({"engine": {"maxNumBatchedTokens": 99}}, 99),
    "scheduler.max_step_seconds": ({"engine": {"maxStepSeconds": 0.25}}, 0.25),
    "scheduler.policy": ({"engine": {"schedulingPolicy": "priority"}}, "priority"),
    "scheduler.async_scheduling": ({"engine": {"asyncScheduling": False}}, False),
    "parallel.tensor_parallel_size": ({"engine": {"tensorParallelSize": 2}}, 2),
    "parallel.pipeline_parallel_size": ({"engine": {"pipelineParallelSize": 2}}, 2),
    "parallel.data_parallel_size": ({"engine": {"dataParallelSize": 2}}, 2),
    "parallel.enable_expert_parallel": ({"engine": {"expertParallel": True}}, True),
    "cuda.enforce_eager": ({"accelerator": GPU, "engine": {"enforceEager": True}}, True),
    "cuda.cudagraph_capture_sizes": (
        {"accelerator": GPU, "engine": {"cudagraphCaptureSizes": [1, 4]}},
        [1, 4],
    ),
    "lora.enabled": ({"model": ADAPTERS}, True),
    "lora.modules": ({"model": ADAPTERS}, {"sql": "hf://org/sql@v1"}),
    "lora.max_loras": ({"model": ADAPTERS, "engine": {"lora": {"maxLoras": 3}}}, 3),
    "lora.max_cpu_loras": ({"model": ADAPTERS, "engine": {"lora": {"maxCpuLoras": 30}}}, 30),
    "lora.max_rank": ({"model": ADAPTERS, "engine": {"lora": {"maxRank": 64}}}, 64),
    "speculation": (
        {"engine": {"speculation": {"method": "ngram"}}},
        SpeculationOptions(method="ngram"),
    ),
    "runner": ({"engine": SIMULATED}, "simulated"),
    "simulated.step_seconds": ({"engine": SIMULATED | {"simulated": {"stepSeconds": 1}}}, 1),
    "simulated.token_seconds": ({"engine": SIMULATED | {"simulated": {"tokenSeconds": 1}}}, 1),
    "simulated.context_token_seconds": (
        {"engine": SIMULATED | {"simulated": {"contextTokenSeconds": 1}}},
        1,
    ),
    "simulated.weights_seconds": ({"engine": SIMULATED | {"simulated": {"weightsSeconds": 1}}}, 1),
    "device": ({"accelerator": GPU}, "cuda"),
    "max_queue": ({"engine": {"maxQueue": 5}}, 5),
    "max_body_bytes": ({"engine": {"maxBody": "3Mi"}}, 3 << 20),
    "response_store": ({"engine": {"responseStore": "256Mi"}}, 256 << 20),
    "drain_timeout": ({"rollout": {"drainSeconds": 30}}, 30),
    "step_timeout": ({"engine": {"stepTimeoutSeconds": 11.5}}, 11.5),
    "tool_call_parser": ({"engine": {"toolCallParser": "hermes"}}, "hermes"),
    "log_level": ({"engine": {"logLevel": "debug"}}, "debug"),
}
"""What a field sets: a spec, and the value that it sets."""

MADE = (
    "it is made by who starts the replica, from other fields (nodes, resources, chatTemplate) or "
    "for itself, and tests of plans and of pools look at it"
)
KEYS = "clients come through the router, which has the keys, the tenants and their limits"
NOT_SET = {
    "model.chat_template": MADE,
    "parallel.nnodes": MADE,
    "parallel.node_rank": MADE,
    "parallel.master_addr": MADE,
    "parallel.master_port": "a pod has its ports for itself",
    "cpu.share": MADE,
    "cpu.threads": MADE,
    "cpu.memory_bytes": MADE,
    "kv_events.endpoint": MADE,
    "kv_events.replay_endpoint": MADE,
    "kv_events.topic": "routers here need none",
    "structured.compile_seconds": "no option of `pagelet serve`: it protects a replica's clients",
    "structured.compile_memory_bytes": "likewise",
    "lora.allow_updates": "replicas come and go, and each would have other adapters",
    "host": MADE,
    "port": MADE,
    "api_keys": KEYS,
    "api_key_file": KEYS,
    "rate_limit": KEYS,
    "cors_origins": "browsers call what is in front of the router: an Ingress or Gateway answers",
    "metric_aliases": "they cost nothing, and dashboards that need them are in use",
    "otlp_traces_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT in podTemplate does it, for routers too",
    "log_format": MADE,
}
"""Why others have no field of their own."""


def leaves(value: msgspec.Struct, path: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(value):
        inner = getattr(value, field.name)
        name = f"{path}{field.name}"
        if isinstance(inner, msgspec.Struct):
            yield from leaves(inner, f"{name}.")
        else:
            yield name


def test_every_setting_is_a_field_or_known_to_be_none() -> None:
    options = EngineOptions(model=ModelOptions(source=""))
    found = [*leaves(options), *leaves(ServeSettings())]
    assert len(found) == len(set(found))
    assert not SET.keys() & NOT_SET.keys()
    assert SET.keys() | NOT_SET.keys() == set(found), "a field, or the reason why there is none?"


@pytest.mark.parametrize("leaf", SET)
def test_a_field_sets_it(leaf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, wanted = SET[leaf]
    service = read_service(body(name="service", **spec))
    arguments = agent_arguments(service, service.revisions[0], host="::", port=1)
    options, settings = serve(monkeypatch, arguments)
    value: Any = settings if hasattr(settings, leaf) else options
    for name in leaf.split("."):
        value = getattr(value, name)
    assert value == wanted
    defaults: Any = (
        ServeSettings() if hasattr(settings, leaf) else EngineOptions(model=ModelOptions(source=""))
    )
    for name in leaf.split("."):
        defaults = getattr(defaults, name)
    assert value != defaults, "the test could not tell"


def test_every_setting_of_speculation_is_a_field() -> None:
    assert {field.name for field in msgspec.structs.fields(SpeculationSpec)} == {
        field.name for field in msgspec.structs.fields(SpeculationOptions)
    }


def test_the_router_takes_the_bodies_that_replicas_take() -> None:
    bigger = {"weight": 1, "engine": {"maxBody": "64Mi"}}
    service = read_service(body(name="service", engine={"maxBody": "32Mi"}, canary=bigger))
    config = router_config([service], lambda *_: Pool(replicas_file="file"))
    assert config.proxy.max_body_bytes == 64 << 20
