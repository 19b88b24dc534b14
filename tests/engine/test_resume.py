"""A request that starts with tokens which another engine generated goes on as that engine would
have: the same tokens and logprobs, whatever it asks of sampling. On the CPU library bit for bit."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagelet.protocol.engine import EngineCoreOutput, EngineCoreRequest

from .test_exactness import VOCAB, alone, joined, make_core, make_request, sampling

TOKENS = st.lists(st.integers(2, VOCAB - 1), min_size=1, max_size=40)


@st.composite
def broken_off(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "wanted": {"prompt": draw(TOKENS), "params": draw(sampling()), "priority": 0},
        "cut": draw(st.floats(0, 1, exclude_max=True)),
        "caches": draw(st.sampled_from(["nothing", "prompt", "all"])),
        "beside": draw(st.lists(TOKENS, max_size=2)),
        "async_scheduling": draw(st.booleans()),
        "max_num_batched_tokens": draw(st.integers(4, 64)),
    }


def run(core: Any, requests: list[EngineCoreRequest]) -> dict[int, list[EngineCoreOutput]]:
    outputs: dict[int, list[EngineCoreOutput]] = {each.request_id: [] for each in requests}
    for each in requests:
        core.add(each)
    while core.has_work:
        for output in core.step().outputs:
            outputs[output.request_id].append(output)
    return outputs


@pytest.mark.parametrize(
    ("kind", "numerics"),
    [("Llama", "float64"), ("Gemma3", "float64"), ("Llama", "float32"), ("Gemma3", "int8")],
)
@given(work=broken_off())
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_it_goes_on_as_the_other_engine_would_have(
    kind: str, numerics: str, work: dict[str, Any]
) -> None:
    wanted = work["wanted"]
    expected = alone(kind, numerics, repr(wanted))
    tokens = expected.new_token_ids
    cut = int(work["cut"] * len(tokens))
    core = make_core(
        kind,
        numerics,
        100,
        async_scheduling=work["async_scheduling"],
        max_num_batched_tokens=work["max_num_batched_tokens"],
    )
    resumed = make_request(kind, 0, wanted)
    resumed.output_token_ids = tokens[:cut]
    requests = [resumed]
    for number, prompt in enumerate(work["beside"], start=1):
        params = {"max_tokens": 6, "temperature": 1.0, "seed": number}
        requests.append(
            make_request(kind, number, {"prompt": prompt, "params": params, "priority": 0})
        )
    try:
        if work["caches"] != "nothing":
            known = wanted["prompt"] + (tokens if work["caches"] == "all" else [])
            params = {"max_tokens": 1, "temperature": 0.0, "seed": 0}
            run(core, [make_request(kind, 9, {"prompt": known, "params": params, "priority": 0})])
        outputs = run(core, requests)[0]
        assert core.kv.pool.num_free == core.kv.pool.num_usable
    finally:
        core.close()
    assert [output.new_token_ids for output in outputs] == [[token] for token in tokens[cut:]]
    went_on = joined(outputs)
    assert went_on.finish_reason == expected.finish_reason
    if expected.logprobs is None:
        assert went_on.logprobs is None
        return
    assert went_on.logprobs is not None
    for mine, other in zip(went_on.logprobs, expected.logprobs[cut:], strict=True):
        if numerics == "float64":
            assert mine.token_ids == other.token_ids
            assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-9)
        else:
            assert mine == other


def test_hits_cover_what_was_generated_but_only_the_prompt_is_told() -> None:
    wanted = {
        "prompt": list(range(2, 22)),
        "params": {"max_tokens": 30, "temperature": 0.0, "seed": 0},
        "priority": 0,
    }
    tokens = alone("Llama", "float64", repr(wanted)).new_token_ids
    core = make_core("Llama", "float64", 100)
    try:
        run(core, [make_request("Llama", 0, wanted)])
        resumed = make_request("Llama", 1, wanted)
        resumed.output_token_ids = tokens[:20]
        core.add(resumed)
        step = core.step()
    finally:
        core.close()
    assert step.stats.prefix_cache_queries == 20 + 20
    assert step.stats.prefix_cache_hits == 20 + 20 - 1
    assert step.outputs[0].num_cached_tokens == 20, "no more than the prompt has"
