"""Caches of keys and values of every type on the kernels of a GPU, in Triton's interpreter."""

import pytest

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.kernels.dispatch import Op
from pagelet.kernels.paged_attention import paged_attention
from pagelet.kernels.rotary import rotary_kv_write
from pagelet.protocol.config import KVCacheDType
from support.hand_scheduler import HandScheduler
from support.models import randomize
from support.tiny_models import tiny_config, tiny_options, tiny_transformers_model

OPS: list[Op] = [paged_attention, rotary_kv_write]


def make_runner(asked: KVCacheDType) -> ModelRunner:
    options = tiny_options(load_format="dummy")
    options.model.dtype = "float32"
    options.cache.kv_cache_dtype = asked
    return ModelRunner(options, tiny_config(tiny_transformers_model("Qwen3")), None, 64)


def tokens_with(
    implementation: str, asked: KVCacheDType, monkeypatch: pytest.MonkeyPatch
) -> tuple[ModelRunner, list[list[int]]]:
    """Two requests' answers, whose prompts are computed in chunks beside decodes."""
    for op in OPS:
        monkeypatch.setitem(op._by_device, "cpu", op.implementations[implementation])
    runner = make_runner(asked)
    randomize(runner._model)
    hand = HandScheduler(runner.layout, runner.num_blocks, 8)
    hand.add(0, [5, 17, 99, 3, 42])
    hand.add(1, [11, 7, 64])
    for parts in ([0], {0: 1, 1: 2}, [0, 1], [0, 1]):
        hand.take(runner.execute(hand.plan(parts)))
    return runner, [request.tokens for request in hand.requests.values()]


@pytest.mark.parametrize(
    ("asked", "token_bytes"), [("float16", 16), ("fp8", 8), ("int8", 12), ("bfloat16", 16)]
)
def test_answers_are_those_of_the_reference_with_the_same_cache(
    asked: KVCacheDType, token_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGELET_KERNELS", "moe=triton")  # so that the CPU library stands aside
    runner, tokens = tokens_with("triton", asked, monkeypatch)
    assert runner.info.kv_cache_dtype == asked
    # Two KV heads of eight elements, in two layers: keys and values.
    assert runner.layout.block_bytes == 2 * 2 * 2 * token_bytes * 8
    assert sum(map(len, tokens)) == 8 + 4 + 2
    assert tokens == tokens_with("reference", asked, monkeypatch)[1]


def test_torchs_operations_take_the_models_own_type_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGELET_KERNELS", "moe=triton")
    for op in OPS:
        monkeypatch.setitem(op._by_device, "cpu", op.implementations["torch_native"])
    with pytest.raises(ConfigurationError, match="fp8 needs the CPU library or Triton's kernels"):
        make_runner("fp8")


def test_what_the_cpu_library_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAGELET_KERNELS", raising=False)
    options = tiny_options(load_format="dummy")
    options.model.dtype, options.cache.block_size = "float32", 16
    options.cache.kv_cache_dtype = "fp8"
    config = tiny_config(tiny_transformers_model("Llama"))
    with pytest.raises(ConfigurationError, match="give float32, bfloat16, int8, or"):
        ModelRunner(options, config, None, 64)
