"""Whatever the layout of the ranks, an engine core gives the tokens that it gives with one: with
chunked prefill, prefix hits, preemptions and aborts in play. Ranks are real processes over gloo, in
float64, so that the order of additions cannot change a token."""

import dataclasses
import random
from typing import Any

import pytest

from pagelet.engine.core.core import EngineCore
from pagelet.engine.executor.base import Executor
from pagelet.engine.model_config import ModelConfig
from pagelet.protocol.engine import EngineCoreOutput, EngineCoreRequest
from pagelet.protocol.sampling import SamplingParams
from pagelet.protocol.speculation import SpeculationOptions
from support.ranks import LLAMA, MOE, make_ranks, ranks_options

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
MAX_MODEL_LEN = 96
NUM_BLOCKS = 14
"""For each KV group about what one longest request needs."""
HEAD = list(range(30, 54))
ABORTED = 3


def requests() -> list[EngineCoreRequest]:
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
        )
        for index, prompt in enumerate(prompts)
    ]


def serve(executor: Executor, options: Any) -> tuple[list[list[int]], dict[str, int]]:
    """The tokens of each request, and how often what should be in play was."""
    options.scheduler.max_num_batched_tokens = 16
    options.scheduler.max_step_seconds = 1000.0  # so that the plans do not depend on the time
    core = EngineCore(options, executor, MAX_MODEL_LEN)
    outputs: dict[int, list[EngineCoreOutput]] = {index: [] for index in range(7)}
    seen = {"preemptions": 0, "hits": 0, "in flight": 0, "accepted drafts": 0}
    arriving = requests()
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
        pytest.param(GEMMA3, 1, 2, False, id="gemma3-pp2"),
        pytest.param(QWEN2, 2, 2, False, id="qwen2-pp2-tp2"),
        pytest.param(MOE, 2, 1, True, id="moe-ep2"),
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
