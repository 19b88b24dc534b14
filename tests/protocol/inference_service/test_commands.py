"""From a service to command lines and router configuration, read back by what takes them."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.agent.settings import ServeSettings
from pagelet.protocol.autoscaling.demand import ScalingTargets
from pagelet.protocol.config import EngineOptions
from pagelet.protocol.inference_service.commands import (
    agent_arguments,
    router_config,
    source_of,
)
from pagelet.protocol.inference_service.load import read_service
from pagelet.protocol.inference_service.service import InferenceService, Revision
from pagelet.protocol.router import Pool, RouterConfig
from support.broken_services import service as body
from support.served import serve


def make(**spec: Any) -> InferenceService:
    return read_service(body(name="service", **spec))


def test_every_engine_field_reaches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    service = make(
        model={"uri": "hf://org/name", "revision": "v1", "tokenizer": "hf://org/other"},
        engine={
            "tensorParallelSize": 2,
            "dataParallelSize": 3,
            "dtype": "float32",
            "quantization": "int8",
            "loadFormat": "dummy",
            "maxModelLen": 4096,
            "task": "embed",
            "pooling": "mean",
            "scoreTokens": ["no", "yes"],
            "toolCallParser": "hermes",
            "kvCache": {
                "memory": "1.5Gi",
                "dtype": "int8",
                "blockSize": 32,
                "prefixCaching": False,
            },
            "maxNumSeqs": 7,
            "maxNumBatchedTokens": 99,
            "maxStepSeconds": 0.25,
            "schedulingPolicy": "priority",
            "asyncScheduling": False,
            "stepTimeoutSeconds": 11.5,
            "maxQueue": 5,
            "responseStore": "64Mi",
            "speculation": {"method": "ngram", "numSpeculativeTokens": 3, "promptLookupMax": 4},
            "runner": "simulated",
            "simulated": {
                "stepSeconds": 1,
                "tokenSeconds": 0.5,
                "contextTokenSeconds": 0.125,
                "weightsSeconds": 0.25,
            },
        },
        rollout={"drainSeconds": 30},
    )
    [revision] = service.revisions
    arguments = agent_arguments(
        service,
        revision,
        host="::",
        port=1234,
        kv_events_endpoint="tcp://*:5557",
        log_format="json",
    )
    options, settings = serve(monkeypatch, arguments)
    expected = {
        "model": {
            "source": "hf://org/name@v1",
            "tokenizer": "hf://org/other",
            "served_model_names": ["service"],
            "dtype": "float32",
            "quantization": "int8",
            "load_format": "dummy",
            "max_model_len": 4096,
            "task": "embed",
            "pooling": "mean",
            "score_tokens": ["no", "yes"],
        },
        "cache": {
            "block_size": 32,
            "kv_cache_dtype": "int8",
            "kv_cache_memory_bytes": 3 << 29,
            "enable_prefix_caching": False,
        },
        "scheduler": {
            "max_num_seqs": 7,
            "max_num_batched_tokens": 99,
            "max_step_seconds": 0.25,
            "policy": "priority",
            "async_scheduling": False,
        },
        "parallel": {"tensor_parallel_size": 2, "data_parallel_size": 3},
        "speculation": {
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_max": 4,
        },
        "runner": "simulated",
        "simulated": {
            "step_seconds": 1,
            "token_seconds": 0.5,
            "context_token_seconds": 0.125,
            "weights_seconds": 0.25,
        },
        "device": "cpu",
    }
    assert options == msgspec.convert(expected, EngineOptions)
    assert (settings.host, settings.port, settings.max_queue) == ("::", 1234, 5)
    assert settings.response_store == 64 << 20
    assert (settings.drain_timeout, settings.step_timeout) == (30, 11.5)
    assert (settings.log_format, settings.tool_call_parser) == ("json", "hermes")


def test_cuda_graphs_are_as_the_engine_says(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = {"resourceName": "nvidia.com/gpu"}
    engine = {"enforceEager": True, "cudagraphCaptureSizes": [1, 4]}
    service = make(accelerator=gpu, engine=engine)
    arguments = agent_arguments(service, service.revisions[0], host="::", port=1)
    cuda = serve(monkeypatch, arguments)[0].cuda
    assert (cuda.enforce_eager, cuda.cudagraph_capture_sizes) == (True, [1, 4])


@pytest.mark.parametrize(
    ("cache", "field", "value"),
    [
        ({"memoryFraction": 0.5}, "memory_utilization", 0.5),
        ({"numBlocks": 100}, "num_blocks", 100),
    ],
)
def test_each_size_of_the_cache_reaches_it(
    monkeypatch: pytest.MonkeyPatch, cache: dict[str, Any], field: str, value: float
) -> None:
    service = make(engine={"kvCache": cache})
    options, _ = serve(
        monkeypatch, agent_arguments(service, service.revisions[0], host="::", port=1)
    )
    assert getattr(options.cache, field) == value


def test_a_service_of_defaults_serves_with_the_defaults_of_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = make()
    arguments = agent_arguments(service, service.revisions[0], host="127.0.0.1", port=8000)
    options, settings = serve(monkeypatch, arguments)
    expected = {
        "model": {"source": "hf://org/name", "served_model_names": ["service"]},
        "device": "cpu",
    }
    assert options == msgspec.convert(expected, EngineOptions)
    assert settings == ServeSettings()


def test_an_accelerator_chooses_the_device_and_events_are_published() -> None:
    service = make(accelerator={"resourceName": "nvidia.com/gpu"})
    arguments = agent_arguments(
        service,
        service.revisions[0],
        host="::",
        port=1,
        source="/models/m",
        kv_events_endpoint="tcp://*:5557",
        kv_events_replay_endpoint="tcp://*:5558",
    )
    assert arguments[:2] == ["serve", "/models/m"]
    text = " ".join(arguments)
    assert "--device cuda" in text
    assert "--kv-events-endpoint tcp://*:5557 --kv-events-replay-endpoint tcp://*:5558" in text


def test_a_claim_has_no_source_outside_of_a_cluster() -> None:
    with pytest.raises(ValueError, match="write file:///PATH"):
        source_of(make(model={"uri": "pvc://claim/m"}).spec.model)


def in_file(service: InferenceService, revision: Revision) -> Pool:
    return Pool(replicas_file=f"{service.name}-{revision.name}")


def test_the_router_gets_models_pools_and_limits() -> None:
    service = make(
        model={"uri": "hf://org/name", "servedNames": ["a", "b"]},
        canary={"weight": 5, "image": "next"},
        router={
            "policy": "chwbl",
            "boundedLoad": 1.5,
            "queueSize": 3,
            "sharedPrefixes": ["You are"],
            "limits": {"tokensPerMinute": 100},
        },
        rollout={"drainSeconds": 20},
    )
    config = router_config([service], in_file, api_keys_file="/keys")
    [route] = config.models
    assert (route.name, route.aliases, route.shared_prefixes) == ("a", ["b"], ["You are"])
    assert [(p.name, p.weight, p.replicas_file) for p in route.pools] == [
        ("stable", 95, "service-stable"),
        ("canary", 5, "service-canary"),
    ]
    assert (config.routing.policy, config.routing.bounded_load) == ("chwbl", 1.5)
    assert (config.proxy.queue_size, config.proxy.drain_timeout) == (3, 20)
    assert config.default_limits.tokens_per_minute == 100
    assert config.api_keys_file == "/keys"


def test_router_defaults_are_those_of_the_router() -> None:
    config = router_config([make()], in_file)
    assert config == RouterConfig(models=config.models)


def test_adapters_are_where_they_are_said_to_be_and_the_router_knows_their_names() -> None:
    adapters = [{"name": "a", "uri": "pvc://claim/a"}, {"name": "b", "uri": "file:///b"}]
    service = make(model={"uri": "hf://org/name", "adapters": adapters})
    arguments = agent_arguments(
        service, service.revisions[0], host="::", port=1, adapters={"a": "/claim/a"}
    )
    assert "--lora-modules a=/claim/a --lora-modules b=file:///b" in " ".join(arguments)
    (route,) = router_config([service], in_file).models
    assert (route.aliases, route.adapters) == ([], ["a", "b"])
    other = make(model={"uri": "hf://org/name", "servedNames": ["b"]})
    other.name = "other"
    with pytest.raises(ValueError, match="both answer to the model name b"):
        router_config([service, other], in_file)


def test_two_services_cannot_answer_to_one_name() -> None:
    one, other = make(), make(model={"uri": "hf://org/x", "servedNames": ["service"]})
    other.name = "other"
    with pytest.raises(ValueError, match="service and other both answer to the model name service"):
        router_config([one, other], in_file)


@given(st.integers(0, 100))
def test_weights_add_up(weight: int) -> None:
    service = make(canary={"weight": weight, "image": "next"})
    assert sum(revision.weight for revision in service.revisions) == 100


def test_routers_know_by_what_a_service_is_scaled() -> None:
    """With what was left out filled in."""
    autoscaling = {
        "minReplicas": 0,
        "maxReplicas": 4,
        "targets": {"ttftSeconds": 3, "tpotSeconds": 0.05},
    }
    engine = {"maxNumSeqs": 8, "dataParallelSize": 2}
    (route,) = router_config([make(autoscaling=autoscaling, engine=engine)], in_file).models
    assert route.service == "service"
    assert route.starts_from_zero
    assert route.scaling == ScalingTargets(
        ttft_seconds=3, tpot_seconds=0.05, concurrency=16, kv_use=0.85
    )
    (route,) = router_config([make(autoscaling={"maxReplicas": 4})], in_file).models
    assert not route.starts_from_zero
    assert route.scaling.backlog_seconds == ScalingTargets().backlog_seconds
