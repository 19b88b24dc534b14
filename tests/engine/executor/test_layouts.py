"""Whatever the layout of the ranks, an engine core gives the tokens that it gives with one: with
chunked prefill, prefix hits, preemptions and aborts in play. Ranks are real processes over gloo, in
float64, so that the order of additions cannot change a token."""

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pagelet.engine.core.core import EngineCore
from pagelet.engine.executor.base import Executor
from pagelet.engine.executor.factory import make_executor
from pagelet.engine.model_config import ModelConfig
from pagelet.protocol.config import LoraOptions
from pagelet.protocol.engine import EngineCoreOutput, EngineCoreRequest
from pagelet.protocol.lora import LoraAdapter
from pagelet.protocol.sampling import SamplingParams
from pagelet.protocol.speculation import SpeculationOptions
from support.adapters import random_adapter
from support.ranks import LLAMA, MOE, NO_FILES, make_ranks, ranks_options
from support.tiny_models import TINY

QWEN2 = dataclasses.replace(LLAMA, architecture="Qwen2ForCausalLM", qkv_bias=True, num_layers=3)
GEMMA3 = dataclasses.replace(
    LLAMA,
    architecture="Gemma3ForCausalLM",
    num_layers=5,
    norm_plus_one=True,
    qk_norm=True,
    tie_word_embeddings=True,
    embedding_scale=5.0,
    sliding_window=9,
    sliding_layers=frozenset({0, 1, 3}),
)
MISTRAL = dataclasses.replace(LLAMA, architecture="MistralForCausalLM")
QWEN3 = dataclasses.replace(LLAMA, architecture="Qwen3ForCausalLM", qk_norm=True)
MIXTRAL = dataclasses.replace(MOE, architecture="MixtralForCausalLM", qk_norm=False)
MAX_MODEL_LEN = 96
NUM_BLOCKS = 14
"""For each KV group about what one longest request needs."""
HEAD = list(range(30, 54))
ABORTED = 3


def requests(adapters: Sequence[LoraAdapter | None] = (None,)) -> list[EngineCoreRequest]:
    """Two with one prefix, seeded and greedy ones, and one that will be aborted."""
    rng = random.Random(4)
    prompts = [[*HEAD, 7, 8], [9] * 21, [*HEAD, 5], [rng.randrange(131) for _ in range(40)]]
    prompts += [[rng.randrange(131) for _ in range(rng.randint(1, 30))] for _ in range(3)]
    return [
        EngineCoreRequest(
            request_id=index,
            external_id=str(index),
            prompt_token_ids=prompt,
            params=SamplingParams(
                max_tokens=20,
                temperature=(0.0, 0.9)[index % 2],
                seed=index,
                logprobs=1 if index == 1 else None,
                repetition_penalty=1.2 if index == 4 else 1.0,
            ),
            lora=adapters[(0, 1, 0, 2, 1, 2, 0)[index] % len(adapters)],
        )
        for index, prompt in enumerate(prompts)
    ]


def serve(
    executor: Executor, options: Any, adapters: Sequence[LoraAdapter | None] = (None,)
) -> tuple[list[list[int]], dict[str, int]]:
    """The tokens of each request, and how often what should be in play was."""
    options.scheduler.max_num_batched_tokens = 16
    options.scheduler.max_step_seconds = 1000.0  # so that the plans do not depend on the time
    core = EngineCore(options, executor, MAX_MODEL_LEN)
    outputs: dict[int, list[EngineCoreOutput]] = {index: [] for index in range(7)}
    seen = {"preemptions": 0, "hits": 0, "in flight": 0, "accepted drafts": 0}
    arriving = requests(adapters)
    try:
        step = 0
        while core.has_work or arriving:
            if step % 2 == 0 and arriving:
                core.add(arriving.pop(0))
            if step == 9:
                core.abort([ABORTED])
            core.fill()
            seen["in flight"] = max(seen["in flight"], len(core._in_flight))
            result = core.step()
            for output in result.outputs:
                outputs[output.request_id].append(output)
            seen["preemptions"] += result.stats.num_preemptions
            seen["hits"] += result.stats.prefix_cache_hits
            if (speculation := result.stats.speculation) is not None:
                seen["accepted drafts"] += speculation.num_accepted_tokens
            core.kv.pool.check()
            step += 1
        assert core.kv.pool.num_free == core.kv.pool.num_usable
    finally:
        core.close()
    tokens = [[t for o in outputs[index] for t in o.new_token_ids] for index in range(7)]
    return tokens, seen


def alone(config: ModelConfig) -> list[list[int]]:
    options = ranks_options(1, num_blocks=200)
    return serve(make_ranks(config, 1, num_blocks=200), options)[0]


@pytest.mark.parametrize(
    ("config", "tp_size", "pp_size", "expert_parallel"),
    [
        pytest.param(LLAMA, 4, 1, False, id="llama-tp4"),
        pytest.param(MISTRAL, 2, 1, False, id="mistral-tp2"),
        pytest.param(GEMMA3, 1, 2, False, id="gemma3-pp2"),
        pytest.param(GEMMA3, 2, 1, False, id="gemma3-tp2"),
        pytest.param(QWEN2, 2, 2, False, id="qwen2-pp2-tp2"),
        pytest.param(QWEN3, 2, 2, False, id="qwen3-pp2-tp2"),
        pytest.param(MOE, 2, 1, True, id="moe-ep2"),
        pytest.param(MOE, 2, 2, False, id="moe-pp2-tp2"),
        pytest.param(MIXTRAL, 2, 1, False, id="mixtral-tp2"),
    ],
)
def test_tokens_are_those_of_one_process(
    config: ModelConfig, tp_size: int, pp_size: int, expert_parallel: bool
) -> None:
    cache = {"num_blocks": NUM_BLOCKS * (2 if config is GEMMA3 else 1)}
    options = ranks_options(tp_size, pp_size, expert_parallel=expert_parallel, **cache)
    if pp_size > 1:  # guesses must not change a token either
        options.speculation = SpeculationOptions(
            method="ngram", prompt_lookup_min=1, prompt_lookup_max=2, adaptive=False
        )
    executor = make_ranks(config, tp_size, pp_size, expert_parallel=expert_parallel, **cache)
    tokens, seen = serve(executor, options)
    expected = alone(config)
    for index in range(7):
        if index == ABORTED:
            assert tokens[index] == expected[index][: len(tokens[index])]
        else:
            assert tokens[index] == expected[index]
            assert len(tokens[index]) == 20
    assert seen["in flight"] == 2
    assert seen["hits"] >= 16
    assert seen["preemptions"] >= 1
    assert (seen["accepted drafts"] > 0) == (pp_size > 1)


def tiny_draft(folder: Path) -> SpeculationOptions:
    """A draft model of one layer; its weights are random, too."""
    folder.mkdir()
    config = {**TINY, "num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    return SpeculationOptions(
        method="draft_model", model=str(folder), num_speculative_tokens=3, adaptive=False
    )


@pytest.mark.parametrize(
    ("tp_size", "pp_size", "method"),
    [
        pytest.param(2, 2, "ngram", id="pp2-tp2-ngram"),
        pytest.param(2, 1, "draft_model", id="tp2-draft"),
        pytest.param(2, 2, "draft_model", id="pp2-tp2-draft"),
    ],
)
def test_adapters_and_drafts_on_ranks_give_the_tokens_of_one_process(
    tp_size: int, pp_size: int, method: str, tmp_path: Path
) -> None:
    made = [random_adapter(tmp_path / str(seed), LLAMA, seed, 2 + seed) for seed in range(2)]
    adapters = [made[0], None, made[1]]

    def run(
        tp_size: int, pp_size: int, num_blocks: int, speculation: SpeculationOptions | None
    ) -> tuple[list[list[int]], dict[str, int]]:
        options = ranks_options(tp_size, pp_size, num_blocks=num_blocks)
        options.lora = LoraOptions(enabled=True, max_loras=2, max_cpu_loras=2)
        options.speculation = speculation
        executor = make_executor(options, NO_FILES, LLAMA, 128)
        return serve(executor, options, adapters)

    expected, plain = run(1, 1, 200, None)
    assert plain["accepted drafts"] == 0
    speculation = SpeculationOptions(
        method="ngram", prompt_lookup_min=1, prompt_lookup_max=2, adaptive=False
    )
    if method == "draft_model":
        speculation = tiny_draft(tmp_path / "draft")
    tokens, seen = run(tp_size, pp_size, NUM_BLOCKS, speculation)
    for index in range(7):
        if index == ABORTED:
            assert tokens[index] == expected[index][: len(tokens[index])]
        else:
            assert tokens[index] == expected[index]
    assert seen["hits"] >= 16
    assert seen["preemptions"] >= (method == "ngram"), "a draft model ends them too soon"
    assert seen["accepted drafts"] > 0
    without = alone(LLAMA)
    for each, tokens_of_base in zip(requests(adapters), without, strict=True):
        if each.request_id != ABORTED:
            changed = expected[each.request_id] != tokens_of_base
            assert changed == (each.lora is not None)
