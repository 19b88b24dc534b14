"""Options of `pagelet serve`: into configuration, or refused in words."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from pagelet.agent.settings import ServeSettings
from pagelet.cli.serve import app
from pagelet.protocol.config import EngineOptions, KVEventsOptions, ModelOptions

Captured = list[tuple[EngineOptions, ServeSettings]]


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Captured:
    """What would have been served."""
    monkeypatch.delenv("PAGELET_API_KEY", raising=False)
    calls: Captured = []

    def run_server(options: EngineOptions, settings: ServeSettings) -> int:
        calls.append((options, settings))
        return 0

    monkeypatch.setattr("pagelet.agent.supervisor.run.run_server", run_server)
    return calls


def serve(*arguments: str, env: dict[str, str] | None = None) -> Any:
    return CliRunner().invoke(app, ["model", *arguments], env=env)


def test_the_defaults_are_those_of_the_configuration(captured: Captured) -> None:
    assert serve().exit_code == 0
    assert captured == [(EngineOptions(model=ModelOptions(source="model")), ServeSettings())]


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        (
            ["--served-model-name", "a", "--served-model-name", "b"],
            "model.served_model_names",
            ["a", "b"],
        ),
        (["--tokenizer", "hf://a/b"], "model.tokenizer", "hf://a/b"),
        (["--dtype", "float64"], "model.dtype", "float64"),
        (["--load-format", "dummy"], "model.load_format", "dummy"),
        (["--max-model-len", "4096"], "model.max_model_len", 4096),
        (["--device", "cpu"], "device", "cpu"),
        (["--block-size", "32"], "cache.block_size", 32),
        (["--kv-cache-memory", "2GiB"], "cache.kv_cache_memory_bytes", 2 << 30),
        (["--memory-utilization", "0.5"], "cache.memory_utilization", 0.5),
        (["--num-blocks", "100"], "cache.num_blocks", 100),
        (["--no-enable-prefix-caching"], "cache.enable_prefix_caching", False),
        (["--max-num-seqs", "8"], "scheduler.max_num_seqs", 8),
        (["--max-num-batched-tokens", "64"], "scheduler.max_num_batched_tokens", 64),
        (["--scheduling-policy", "priority"], "scheduler.policy", "priority"),
        (["--no-async-scheduling"], "scheduler.async_scheduling", False),
        (["--tensor-parallel-size", "2"], "parallel.tensor_parallel_size", 2),
        (["--pipeline-parallel-size", "2"], "parallel.pipeline_parallel_size", 2),
        (["--data-parallel-size", "3"], "parallel.data_parallel_size", 3),
        (["--enable-expert-parallel"], "parallel.enable_expert_parallel", True),
        (["--nnodes", "2"], "parallel.nnodes", 2),
        (["--node-rank", "1"], "parallel.node_rank", 1),
        (["--master-addr", "head"], "parallel.master_addr", "head"),
        (["--master-port", "7000"], "parallel.master_port", 7000),
        (["--cpu-share", "0.5"], "cpu.share", 0.5),
        (["--cpu-threads", "3"], "cpu.threads", 3),
        (["--cpu-memory", "8GiB"], "cpu.memory_bytes", 8 << 30),
        (["--kv-events-endpoint", "tcp://*:1"], "kv_events.endpoint", "tcp://*:1"),
        (["--kv-events-topic", "kv@me"], "kv_events.topic", "kv@me"),
        (["--runner", "simulated"], "runner", "simulated"),
        (["--simulated-step-seconds", "0.01"], "simulated.step_seconds", 0.01),
        (["--simulated-token-seconds", "0.02"], "simulated.token_seconds", 0.02),
        (
            ["--simulated-context-token-seconds", "0.03"],
            "simulated.context_token_seconds",
            0.03,
        ),
    ],
)
def test_each_engine_option_arrives(
    captured: Captured, arguments: list[str], path: str, value: object
) -> None:
    result = serve(*arguments)
    assert result.exit_code == 0, result.output
    expected = msgspec.to_builtins(EngineOptions(model=ModelOptions(source="model")))
    *parents, leaf = path.split(".")
    node = expected
    for parent in parents:
        node = node[parent]
    node[leaf] = value
    assert msgspec.to_builtins(captured[0][0]) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--host", "0.0.0.0", "--port", "0"], {"host": "0.0.0.0", "port": 0}),
        (["--api-key", "one", "--api-key", "two"], {"api_keys": ["one", "two"]}),
        (["--max-queue", "7"], {"max_queue": 7}),
        (["--response-store", "1MiB"], {"response_store": 1 << 20}),
        (["--rate-limit", "60"], {"rate_limit": 60}),
        (["--max-body-bytes", "1MiB"], {"max_body_bytes": 1 << 20}),
        (["--cors-origin", "https://a.example"], {"cors_origins": ["https://a.example"]}),
        (["--no-metric-aliases"], {"metric_aliases": False}),
        (["--drain-timeout", "0"], {"drain_timeout": 0.0}),
        (["--step-timeout", "5"], {"step_timeout": 5.0}),
        (
            ["--log-level", "debug", "--log-format", "json"],
            {"log_level": "debug", "log_format": "json"},
        ),
    ],
)
def test_each_server_option_arrives(
    captured: Captured, arguments: list[str], expected: dict[str, Any]
) -> None:
    result = serve(*arguments)
    assert result.exit_code == 0, result.output
    assert captured[0][1] == ServeSettings(**expected)


def test_events_can_be_replayed(captured: Captured) -> None:
    arguments = ("--kv-events-endpoint", "tcp://*:1", "--kv-events-replay-endpoint", "tcp://*:2")
    assert serve(*arguments).exit_code == 0
    assert captured[0][0].kv_events == KVEventsOptions(
        endpoint="tcp://*:1", replay_endpoint="tcp://*:2"
    )


@pytest.mark.parametrize("origin", ["*", "http://localhost:3000", "https://[::1]:8443"])
def test_origins_as_browsers_send_them(captured: Captured, origin: str) -> None:
    assert serve("--cors-origin", origin).exit_code == 0
    assert captured[0][1].cors_origins == [origin]


def test_files_arrive_as_paths(captured: Captured, tmp_path: Path) -> None:
    keys, template = tmp_path / "keys", tmp_path / "template.jinja"
    keys.write_text("secret\n")
    template.write_text("{{ messages }}")
    assert serve("--api-key-file", str(keys), "--chat-template", str(template)).exit_code == 0
    options, settings = captured[0]
    assert settings.api_key_file == str(keys)
    assert options.model.chat_template == str(template)


def test_keys_come_from_the_environment(captured: Captured) -> None:
    assert serve(env={"PAGELET_API_KEY": "one two"}).exit_code == 0
    assert captured[0][1].api_keys == ["one", "two"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "70000"], "less than or equal to 65535"),
        (["--block-size", "7"], "7 is not one of 8, 16, 32, 64 and 128"),
        (["--dtype", "int4"], "'float32'"),
        (["--kv-cache-memory", "lots"], "give bytes, or such as 512MiB, 2GiB"),
        (["--memory-utilization", "90"], "0.9 means 90%"),
        (["--max-num-seqs", "0"], "greater than or equal to 1"),
        (["--step-timeout", "0"], "is not more than 0"),
        (["--api-key-file", "/no/such/file"], "does not exist"),
        (["--api-key", ""], "an empty key would let everyone in"),
        (["--api-key", "good", "--api-key", "schlüssel"], "character 5 of the key is no visible"),
        (["--api-key", "two words"], "character 4 of the key is no visible"),
        (["--served-model-name", "a", "--served-model-name", " "], "an empty name"),
        (["--cors-origin", "app.example"], "'app.example' is not an origin"),
        (["--cors-origin", "https://app.example/"], "SCHEME://HOST[:PORT]"),
        (["--num-blocks", "9", "--kv-cache-memory", "1GiB"], "give only one of the two"),
        (["--kv-events-replay-endpoint", "tcp://*:2"], "without --kv-events-endpoint"),
        (["--allow-lora-updates"], "needs --enable-lora"),
        (["--lora-modules", "a=/x"], "needs --enable-lora"),
        (["--score-tokens", "no,no"], "says the same twice"),
        (["--no-such-option"], "No such option"),
    ],
)
def test_a_bad_value_is_refused_with_what_would_be_right(
    captured: Captured, arguments: list[str], words: str
) -> None:
    result = serve(*arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert captured == []


def test_the_configuration_survives_its_way_to_the_processes(captured: Captured) -> None:
    serve("--data-parallel-size", "2", "--api-key", "k")
    for struct in captured[0]:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(struct), type=type(struct)) == struct
        assert json.loads(msgspec.json.encode(struct))
