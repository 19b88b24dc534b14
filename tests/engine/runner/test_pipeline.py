"""Runners of pipeline stages, as threads, draw the tokens of one runner: on torch's operations and
on the CPU library's recorded programs, also where a stage has no layer of some KV group."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pagelet.engine.layers.context import ALONE, Ranks
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.engine.step import RunnerOutput, SchedulerOutput
from support.hand_scheduler import HandScheduler
from support.ranks import LLAMA
from support.thread_ranks import thread_ranks
from support.tiny_models import tiny_options

GEMMA3 = dataclasses.replace(
    LLAMA,
    architecture="Gemma3ForCausalLM",
    num_layers=6,
    norm_plus_one=True,
    qk_norm=True,
    tie_word_embeddings=True,
    sliding_window=9,
    sliding_layers=frozenset({0, 1, 2, 4, 5}),
)
BLOCK_SIZE = 16


def make_runner(config: ModelConfig, dtype: str, ranks: Ranks = ALONE) -> ModelRunner:
    torch.set_num_threads(1)
    options = tiny_options(load_format="dummy", num_blocks=80)
    options.cache.block_size = BLOCK_SIZE  # type: ignore[assignment]
    options.model.dtype = dtype  # type: ignore[assignment]
    return ModelRunner(options, config, None, 128, ranks=ranks)


def generate(runners: list[ModelRunner]) -> list[list[int]]:
    """What two requests draw, one of which is prefilled in chunks and preempted; the last of the
    runners, which are stages, draws."""
    last = runners[-1]
    hand = HandScheduler(last.layout, last.num_blocks, BLOCK_SIZE)
    hand.add(0, list(range(60, 81)))
    hand.add(1, [7] * 9, temperature=0.8, seed=5)

    with ThreadPoolExecutor(len(runners)) as threads:

        def run(plan: SchedulerOutput) -> None:
            ends = {e.request_id: e.num_computed_tokens + e.num_tokens for e in plan.scheduled}
            outputs: list[RunnerOutput] = list(threads.map(lambda r: r.execute(plan), runners))
            for stage in runners[:-1]:
                drawn = [each for each in outputs[-1].sampled if each.token_ids]
                stage.take_tokens(
                    [each.request_id for each in drawn],
                    [ends[each.request_id] for each in drawn],
                    [each.token_ids for each in drawn],
                )
            hand.take(outputs[-1])

        run(hand.plan({0: 10, 1: 9}))
        for step in range(9):
            if step == 5:
                hand.preempt(1)
            run(hand.plan([1, 0]))
    return [hand.finish(0), hand.finish(1)]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("config", "stages"), [(LLAMA, 2), (GEMMA3, 3)], ids=["llama", "gemma3"])
def test_stages_draw_what_one_runner_does(config: ModelConfig, stages: int, dtype: str) -> None:
    alone = make_runner(config, dtype)
    parts = [make_runner(config, dtype, ranks) for ranks in thread_ranks(1, stages)]
    assert [len(part.layout.groups) for part in parts] == [len(alone.layout.groups)] * stages
    if config is LLAMA:
        assert {2 * part.layout.block_bytes for part in parts} == {alone.layout.block_bytes}
    else:
        assert any(not group.layers for part in parts for group in part.layout.groups)
    tokens = generate(parts)
    assert tokens == generate([alone])
    assert [len(each) for each in tokens] == [9, 10]
    kernels = {runner.info.kernels for runner in [alone, *parts]}
    assert len(kernels) == 1
