"""A pipeline's steps in flight: each request draws once at a time, decodes are shared out over the
stages, and the answers are those of one stage."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from pagelet.engine.core.core import EngineCore
from pagelet.engine.runner.simulated import SimulatedExecutor
from pagelet.protocol.config import CacheOptions, EngineOptions, ModelOptions, SchedulerOptions
from pagelet.protocol.engine import EngineCoreRequest
from pagelet.protocol.sampling import SamplingParams

VOCAB = 500


def make_core(
    stages: int, num_blocks: int, budget: int, *, async_scheduling: bool = True
) -> EngineCore:
    options = EngineOptions(
        model=ModelOptions(source="none"),
        cache=CacheOptions(block_size=8),
        scheduler=SchedulerOptions(
            max_num_seqs=16, max_num_batched_tokens=budget, async_scheduling=async_scheduling
        ),
    )
    options.parallel.pipeline_parallel_size = stages
    executor = SimulatedExecutor(options.simulated, VOCAB, num_blocks=num_blocks)
    return EngineCore(options, executor, 96)


def request(index: int, prompt: list[int], max_tokens: int) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=index,
        external_id=str(index),
        prompt_token_ids=prompt,
        params=SamplingParams(temperature=0.0, max_tokens=max_tokens),
    )


def check_in_flight(core: EngineCore, stages: int) -> None:
    drawing: set[int] = set()
    steps = list(core._in_flight)
    assert len(steps) <= max(stages, 2)
    for step in steps:
        for entry in step.plan.scheduled:
            assert entry.request_id not in drawing, "its token is not known yet"
        drawing |= {entry.request_id for entry in step.plan.scheduled if entry.samples}


@given(
    stages=st.integers(2, 4),
    work=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), min_size=1, max_size=8),
    budget=st.integers(4, 64),
    spare=st.integers(0, 30),
    aborted=st.sets(st.integers(0, 7), max_size=2),
)
@settings(max_examples=60)
def test_answers_do_not_depend_on_the_stages(
    stages: int, work: list[tuple[int, int]], budget: int, spare: int, aborted: set[int]
) -> None:
    answers: list[dict[int, list[int]]] = []
    for size, blocks in ((1, 400), (stages, 14 + spare)):
        core = make_core(size, blocks, budget)
        tokens: dict[int, list[int]] = {index: [] for index in range(len(work))}
        for index, (length, count) in enumerate(work):
            core.add(request(index, [7 + index] * length, count))
        step = 0
        while core.has_work:
            core.fill()
            if size > 1:
                check_in_flight(core, stages)
            if size > 1 and step == 5:
                core.abort(sorted(aborted))
            for output in core.step().outputs:
                tokens[output.request_id] += output.new_token_ids
            core.kv.pool.check()
            step += 1
        assert core.kv.pool.num_free == core.kv.pool.num_usable
        core.close()
        answers.append(tokens)
    for index, (_, count) in enumerate(work):
        whole, staged = answers[0][index], answers[1][index]
        assert len(whole) == count
        assert staged == whole[: len(staged)]
        assert index in aborted or len(staged) == count


def decodes_of(core: EngineCore) -> list[int]:
    return [sum(entry.samples for entry in step.plan.scheduled) for step in list(core._in_flight)]


def test_decodes_fill_the_pipeline() -> None:
    for stages, num_requests in ((2, 8), (3, 8), (4, 3)):
        core = make_core(stages, 400, 64)
        for index in range(num_requests):
            core.add(request(index, [index + 1] * 3, 80))
        seen: list[list[int]] = []
        for _ in range(40):
            core.fill()
            seen.append(decodes_of(core))
            core.step()
        assert sum(seen[-1]) == num_requests
        assert len(seen[-1]) == min(stages, num_requests)
        assert max(seen[-1]) == math.ceil(num_requests / stages)
        core.close()


def test_chunks_of_one_prompt_follow_one_another() -> None:
    core = make_core(3, 400, 16)
    core.add(request(0, list(range(60)), 2))
    core.fill()
    chunks: list[tuple[int, int]] = [
        (entry.num_computed_tokens, entry.num_tokens)
        for step in core._in_flight
        for entry in step.plan.scheduled
    ]
    assert chunks == [(0, 16), (16, 16), (32, 16)]
    core.close()


def test_without_asynchronous_scheduling_a_step_takes_all_decodes() -> None:
    core = make_core(2, 400, 64, async_scheduling=False)
    for index in range(6):
        core.add(request(index, [index + 1] * 3, 80))
    for _ in range(10):
        core.step()
    core.fill()
    assert decodes_of(core) == [6]
    core.close()
