"""Whatever shares its steps with others, a request gets the answer that it gets alone, and no
block is ever lost."""

from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagelet.engine.core.core import EngineCore
from pagelet.engine.errors import ConfigurationError
from pagelet.engine.kv.residency import ResidencySampler
from pagelet.engine.scheduler.budget import StepBudget
from pagelet.protocol.config import CacheOptions, EngineOptions, ModelOptions, SchedulerOptions
from pagelet.protocol.engine import EngineCoreRequest
from pagelet.protocol.kv_events import BlockRemoved, BlockStored
from pagelet.protocol.sampling import SamplingParams
from pagelet.protocol.speculation import SpeculationOptions
from support.kv_oracle import (
    VOCAB,
    KVOracleExecutor,
    generate_alone,
    next_token,
    repeating_token,
)

BLOCK: Final = 8


def make_core(
    *,
    windows: list[int | None] | None = None,
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    budget: int = 32,
    max_model_len: int = 128,
    policy: str = "fcfs",
    async_scheduling: bool = True,
    prefix_caching: bool = True,
    events: bool = False,
    speculation: SpeculationOptions | None = None,
    token: Callable[[list[int]], int] = next_token,
) -> EngineCore:
    options = EngineOptions(
        model=ModelOptions(source="none"),
        cache=CacheOptions(block_size=BLOCK, enable_prefix_caching=prefix_caching),
        scheduler=SchedulerOptions(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            policy=policy,  # type: ignore[arg-type]
            async_scheduling=async_scheduling,
        ),
        speculation=speculation,
    )
    if events:
        options.kv_events.endpoint = "inproc://none"
    executor = KVOracleExecutor(windows or [None], num_blocks, BLOCK, token)
    return EngineCore(options, executor, max_model_len)


def request(
    request_id: int, prompt: list[int], max_tokens: int = 8, **extra: Any
) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=request_id,
        external_id=str(request_id),
        prompt_token_ids=list(prompt),
        params=SamplingParams(max_tokens=max_tokens, seed=0),
        **extra,
    )


def run(core: EngineCore) -> dict[int, list[int]]:
    answers: dict[int, list[int]] = {}
    while core.has_work:
        for output in core.step().outputs:
            assert output.finish_reason != "error", output.error
            answers.setdefault(output.request_id, []).extend(output.new_token_ids)
        core.kv.pool.check()
    return answers


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, Any]:
    """Requests that share prefixes, arriving and aborted at random steps, on a scarce pool."""
    heads = draw(
        st.lists(
            st.lists(st.integers(0, VOCAB - 1), min_size=0, max_size=40), min_size=1, max_size=3
        )
    )
    count = draw(st.integers(1, 10))
    requests = []
    for _ in range(count):
        tail = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=24))
        max_tokens = draw(st.integers(1, 40))
        requests.append(
            {
                "prompt": (draw(st.sampled_from(heads)) + tail)[:80],
                "max_tokens": max_tokens,
                "resumed": draw(st.one_of(st.just(0), st.integers(0, max_tokens - 1))),
                "arrives": draw(st.integers(0, 20)),
                "aborted": draw(st.one_of(st.none(), st.none(), st.integers(0, 40))),
                "priority": draw(st.integers(0, 2)),
                "salt": draw(st.sampled_from([None, "a"])),
                "shared": draw(st.integers(0, 80)),
            }
        )
    return {
        "requests": requests,
        "windows": draw(
            st.sampled_from(
                [[None], [None], [16, None], [12, 12, None, 12, 12, None], [20], [9, 30, None]]
            )
        ),
        "spare_blocks": draw(st.integers(0, 20)),
        "budget": draw(st.integers(1, 64)),
        "max_num_seqs": draw(st.integers(1, 6)),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "async_scheduling": draw(st.booleans()),
        "prefix_caching": draw(st.booleans()),
        "speculation": draw(speculations()),
    }


@st.composite
def speculations(draw: st.DrawFn) -> SpeculationOptions | None:
    method = draw(st.sampled_from([None, "ngram", "draft_model"]))
    if method is None:
        return None
    settings: dict[str, Any] = {
        "num_speculative_tokens": draw(st.integers(1, 6)),
        "adaptive": draw(st.booleans()),
    }
    if method == "draft_model":
        return SpeculationOptions(method=method, model="oracle", **settings)
    return SpeculationOptions(method=method, prompt_lookup_min=1, **settings)


@given(workloads())
@settings(max_examples=300)
def test_every_mix_gives_the_answers_of_requests_alone(work: dict[str, Any]) -> None:
    probe = make_core(windows=work["windows"], num_blocks=2000, budget=work["budget"])
    needed = probe.kv.blocks_needed(128, work["budget"])
    core = make_core(
        windows=work["windows"],
        num_blocks=1 + needed + work["spare_blocks"],
        budget=work["budget"],
        max_num_seqs=work["max_num_seqs"],
        policy=work["policy"],
        async_scheduling=work["async_scheduling"],
        prefix_caching=work["prefix_caching"],
        speculation=work["speculation"],
        token=repeating_token,
    )
    alone = [
        generate_alone(each["prompt"], each["max_tokens"], repeating_token)
        for each in work["requests"]
    ]
    answers = {i: alone[i][: each["resumed"]] for i, each in enumerate(work["requests"])}
    finished: dict[int, str] = {}
    aborted: set[int] = set()
    step = 0
    while core.has_work or step <= 40:
        for index, wanted in enumerate(work["requests"]):
            if wanted["arrives"] == step:
                core.add(
                    request(
                        index,
                        wanted["prompt"],
                        wanted["max_tokens"],
                        priority=wanted["priority"],
                        cache_salt=wanted["salt"],
                        shared_prefix_tokens=wanted["shared"],
                        output_token_ids=alone[index][: wanted["resumed"]],
                    )
                )
            if wanted["aborted"] == step and index not in finished and wanted["arrives"] <= step:
                core.abort([index])
                aborted.add(index)
                core.kv.pool.check()
        if core.has_work:
            for output in core.step().outputs:
                assert output.request_id not in finished
                assert output.request_id not in aborted
                answers[output.request_id] += output.new_token_ids
                if output.finish_reason is not None:
                    finished[output.request_id] = output.finish_reason
            core.kv.pool.check()
        step += 1
        assert step < 5000, "no progress"
    for index in range(len(work["requests"])):
        assert answers[index] == alone[index][: len(answers[index])]
        if index not in aborted:
            assert finished[index] == "length"
            assert answers[index] == alone[index]
    assert core.kv.pool.num_free == core.kv.pool.num_usable


def test_prefix_hit_is_counted_and_never_takes_the_whole_prompt() -> None:
    core = make_core()
    prompt = list(range(4 * BLOCK))
    core.add(request(0, prompt, 1))
    run(core)
    core.add(request(1, prompt, 1))
    (output,) = iter_outputs(core)
    assert output.num_cached_tokens == 4 * BLOCK - 1, "one token must be computed"


def iter_outputs(core: EngineCore) -> list[Any]:
    outputs = []
    while core.has_work:
        outputs += core.step().outputs
    return outputs


def test_prefix_of_prompts_that_arrive_together_is_computed_once() -> None:
    core = make_core(num_blocks=200, budget=64, max_num_seqs=8)
    head = list(range(90))
    for index in range(6):
        core.add(request(index, [*head, index], 4))
    core.add(request(6, [7] * 20, 4))
    computed, order = 0, []
    while core.has_work:
        outputs = core.step()
        computed += outputs.stats.num_scheduled_tokens
        order += [output.request_id for output in outputs.outputs]
    assert computed < 91 + 5 * (91 - 88) + 20 + 7 * 4
    assert order.index(6) <= 1, "a request that shares nothing is not held up"


def test_request_that_was_stood_aside_for_is_aborted() -> None:
    core = make_core(num_blocks=200, budget=16)
    for index in range(3):
        core.add(request(index, list(range(80)), 4))
    core.step()
    core.abort([0])
    assert run(core) == {index: generate_alone(list(range(80)), 4) for index in (1, 2)}


def test_salt_separates_prefixes() -> None:
    core = make_core()
    prompt = list(range(3 * BLOCK))
    for index, salt in enumerate(["a", "b", None, "a"]):
        core.add(request(index, prompt, 1, cache_salt=salt))
        (output,) = iter_outputs(core)
        assert output.num_cached_tokens == (3 * BLOCK - 1 if index == 3 else 0)


def test_aborted_request_leaves_its_full_blocks_cached_and_frees_all() -> None:
    core = make_core(budget=64)
    prompt = list(range(5 * BLOCK))
    core.add(request(0, prompt, 50))
    core.step()
    core.abort([0])
    assert core.kv.pool.num_free == core.kv.pool.num_usable
    core.add(request(1, prompt, 1))
    assert iter_outputs(core)[0].num_cached_tokens == 5 * BLOCK - 1


def test_scarce_blocks_preempt_and_answers_stay_right() -> None:
    core = make_core(num_blocks=21, max_model_len=128, budget=64)
    for index in range(4):
        core.add(request(index, [index] * 20, 60))
    preemptions = 0
    answers: dict[int, list[int]] = {index: [] for index in range(4)}
    while core.has_work:
        outputs = core.step()
        preemptions += outputs.stats.num_preemptions
        for output in outputs.outputs:
            answers[output.request_id] += output.new_token_ids
    assert preemptions > 0
    for index in range(4):
        assert answers[index] == generate_alone([index] * 20, 60)


def test_prefills_are_mixed_with_decodes_under_the_budget() -> None:
    core = make_core(budget=16)
    core.add(request(0, [1], 30))
    core.step()
    core.add(request(1, list(range(60)), 4))
    mixed = 0
    while core.has_work:
        outputs = core.step()
        assert outputs.stats.num_scheduled_tokens <= 16
        if outputs.stats.num_scheduled_tokens == 16:
            mixed += any(output.request_id == 0 for output in outputs.outputs)
    assert mixed >= 3, "the running request must get its token in the steps of the long prompt"


def test_long_prompt_does_not_hold_up_a_short_one() -> None:
    core = make_core(num_blocks=400, max_model_len=1000, budget=32)
    core.add(request(0, [1] * 600, 4))
    core.step()
    core.add(request(1, [2] * 10, 2))
    steps, order = 0, []
    while core.has_work:
        outputs = core.step()
        steps += 1
        assert outputs.stats.num_scheduled_tokens <= 32
        order += [(steps, output.request_id) for output in outputs.outputs]
    assert order[0][1] == 1
    assert order[0][0] <= 3, "the step that runs and the one after it were planned already"


def test_share_that_nobody_needs_goes_back_to_the_long_prompt() -> None:
    core = make_core(num_blocks=400, max_model_len=1000, budget=64)
    core.add(request(0, [1] * 600, 4))
    core.add(request(1, [2] * 10, 2))
    tokens = []
    while core.has_work:
        tokens.append(core.step().stats.num_scheduled_tokens)
    assert tokens[:9] == [64] * 9, "no step leaves budget while the prompt has tokens"


def test_of_equal_prompts_the_first_is_finished_first() -> None:
    core = make_core(num_blocks=400, max_model_len=200, budget=32)
    for index in range(4):
        core.add(request(index, [index] * 100, 1))
    assert [output.request_id for output in iter_outputs(core)] == [0, 1, 2, 3]


def test_budget_aims_at_the_step_time() -> None:
    budget = StepBudget(2048, 0.1)
    first = budget.prompt_tokens()
    assert 16 <= first <= 128, "nothing is known yet"
    for _ in range(40):  # a machine of 1 ms a token and 20 ms a step of decodes
        budget.observe(0, 8, 0.020)
        tokens = budget.prompt_tokens()
        budget.observe(tokens, 8, 0.020 + tokens * 0.001)
    assert budget.prompt_tokens() == pytest.approx(80, abs=4)
    for _ in range(40):  # decodes alone take longer than the target
        budget.observe(0, 8, 0.4)
        budget.observe(budget.prompt_tokens(), 8, 0.4 + budget.prompt_tokens() * 0.001)
    assert budget.prompt_tokens() >= 100, "a prefill must end all the same"
    assert StepBudget(2048, None).prompt_tokens() == 2048


def test_priority_goes_first_and_preempts_the_least_important() -> None:
    core = make_core(policy="priority", max_num_seqs=1)
    for index, priority in enumerate([5, 1, 3]):
        core.add(request(index, [index], 2, priority=priority))
    order = [output.request_id for output in iter_outputs(core) if output.finish_reason]
    assert order == [1, 2, 0]


def test_eos_and_stop_tokens_end_a_request_but_not_before_min_tokens() -> None:
    alone = generate_alone([3, 4], 20)
    stop = alone[6]
    first = alone.index(stop)
    for min_tokens in (0, first + 2):
        core = make_core()
        core.add(
            EngineCoreRequest(
                request_id=0,
                external_id="0",
                prompt_token_ids=[3, 4],
                params=SamplingParams(max_tokens=20, stop_token_ids=[stop], min_tokens=min_tokens),
            )
        )
        tokens = [t for output in iter_outputs(core) for t in output.new_token_ids]
        if min_tokens == 0:
            assert tokens == alone[: first + 1]
        else:
            assert len(tokens) >= min_tokens
    core = make_core()
    core.add(request(0, [3, 4], 20, eos_token_ids=[stop]))
    outputs = iter_outputs(core)
    assert outputs[-1].finish_reason == "stop"
    assert outputs[-1].stop_reason is None


def test_request_that_can_never_fit_is_answered_with_the_numbers() -> None:
    core = make_core(num_blocks=18, max_model_len=128)
    assert core.kv.pool.num_usable == 17
    core.scheduler.max_model_len = 1000
    core.add(request(0, [1] * 150, 8))
    (output,) = iter_outputs(core)
    assert output.finish_reason == "error"
    assert "17" in (output.error or "")


def test_pool_too_small_for_the_context_is_refused_at_start() -> None:
    with pytest.raises(ConfigurationError, match=r"lower --max-model-len to 72"):
        make_core(num_blocks=10, max_model_len=128)


def test_window_gives_blocks_back_while_a_long_answer_grows() -> None:
    core = make_core(windows=[16], num_blocks=40, max_model_len=256, budget=8)
    core.add(request(0, [1, 2, 3], 200))
    most = 0
    while core.has_work:
        core.step()
        most = max(most, core.kv.pool.num_usable - core.kv.pool.num_free)
    assert most <= core.kv.blocks_needed(203, 8) < 203 // BLOCK


def test_events_follow_the_cache() -> None:
    core = make_core(num_blocks=18, events=True)
    seen: set[bytes] = set()
    for index in range(6):
        core.add(request(index, [index] * 40, 4))
        while core.has_work:
            core.step()
            for event in core.take_kv_events():
                if isinstance(event, BlockStored):
                    assert len(event.token_ids) == BLOCK * len(event.block_hashes)
                    assert event.parent_block_hash is None or event.parent_block_hash in seen
                    seen |= set(event.block_hashes)
                elif isinstance(event, BlockRemoved):
                    seen -= set(event.block_hashes)
            assert len(seen) == core.kv.pool.num_cached


def test_stay_of_a_block_is_measured_when_it_is_evicted() -> None:
    core = make_core(num_blocks=18)
    now = 0.0
    core.kv.pool.residency = ResidencySampler(lambda: now)
    stays = []
    for index, prompt in enumerate([0, 0, 1, 2, 3, 4, 5]):
        now += 1.0
        core.add(request(index, [prompt] * 80, 1))
        while core.has_work:
            stays += core.step().stats.evicted
    assert stays
    assert all(stay.lifetime >= stay.idle >= 0 for stay in stays)
    assert any(stay.lifetime > 0 for stay in stays)


def test_oracle_notices_a_block_given_away_too_early() -> None:
    core = make_core()
    core.add(request(0, [1] * 20, 20))
    core.step()
    blocks = core.scheduler.requests[0].blocks[0]
    blocks[0].ref_count = 0
    core.kv.pool.free_queue.appendleft(blocks[0])
    core.add(request(1, [2] * 20, 20))
    with pytest.raises(AssertionError):
        run(core)
