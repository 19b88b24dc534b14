"""A draft model that is the model itself is always right, whatever its blocks go through; one that
is not changes no token."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagelet.engine.core.core import EngineCore
from pagelet.engine.errors import ConfigurationError
from pagelet.engine.executor.inproc import InprocExecutor
from pagelet.engine.runner import draft_model, model_runner
from pagelet.engine.runner.draft_model import DraftModel, DraftSource
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.engine.runner.worst_step import warm_up_sizes
from pagelet.engine.speculation.speculation import Speculation
from pagelet.engine.weights.hf_config import model_config_from_hf
from pagelet.protocol.engine import EngineCoreRequest, SpeculationStats
from pagelet.protocol.sampling import SamplingParams
from pagelet.protocol.speculation import SpeculationOptions
from support.tiny_models import TINY, tiny_options

MAX_MODEL_LEN = 96
VOCAB = TINY["vocab_size"]


def config(kind: str = "Llama", **changes: Any) -> Any:
    raw = {**TINY, **changes, "architectures": [f"{kind}ForCausalLM"], "model_type": kind.lower()}
    return model_config_from_hf(raw)


def make_core(
    drafted_by: Any,
    *,
    model: Any = None,
    num_blocks: int = 200,
    dtype: str = "float64",
    **scheduler: Any,
) -> EngineCore:
    torch.set_num_threads(1)
    options = tiny_options(num_blocks=num_blocks, load_format="dummy")
    if dtype != "float64":
        options.model.dtype, options.cache.block_size = dtype, 16  # type: ignore[assignment]
    for name, value in scheduler.items():
        setattr(options.scheduler, name, value)
    draft = None
    if drafted_by is not None:
        options.speculation = SpeculationOptions(
            method="draft_model", model="tiny", num_speculative_tokens=3, adaptive=False
        )
        draft = DraftSource(drafted_by, None)
    executor = InprocExecutor(
        lambda: ModelRunner(options, model or config(), None, MAX_MODEL_LEN, draft=draft)
    )
    return EngineCore(options, executor, MAX_MODEL_LEN)


def answers(
    core: EngineCore, wanted: list[dict[str, Any]]
) -> tuple[list[list[int]], SpeculationStats]:
    """Every request comes a step after the one before it."""
    found: list[list[int]] = [[] for _ in wanted]
    total = SpeculationStats()
    coming = list(enumerate(wanted))
    try:
        while core.has_work or coming:
            if coming:
                index, each = coming.pop(0)
                core.add(
                    EngineCoreRequest(
                        request_id=index,
                        external_id=str(index),
                        prompt_token_ids=list(each["prompt"]),
                        params=SamplingParams(**each["params"]),
                    )
                )
            outputs = core.step()
            for output in outputs.outputs:
                assert output.finish_reason != "error", output.error
                found[output.request_id] += output.new_token_ids
            core.kv.pool.check()
            if (stats := outputs.stats.speculation) is not None:
                total.num_draft_tokens += stats.num_draft_tokens
                total.num_accepted_tokens += stats.num_accepted_tokens
        assert core.kv.pool.num_free == core.kv.pool.num_usable
    finally:
        core.close()
    return found, total


@st.composite
def workloads(draw: st.DrawFn) -> list[dict[str, Any]]:
    head = draw(st.lists(st.integers(2, VOCAB - 1), max_size=30))
    return [
        {
            "prompt": (head if draw(st.booleans()) else [])
            + draw(st.lists(st.integers(2, VOCAB - 1), min_size=1, max_size=20)),
            "params": {
                "max_tokens": draw(st.integers(1, 20)),
                "temperature": draw(st.sampled_from([0.0, 0.8])),
                "seed": draw(st.integers(0, 3)),
                "top_k": draw(st.sampled_from([0, 20])),
                "presence_penalty": draw(st.sampled_from([0.0, 0.7])),
                "ignore_eos": True,
            },
        }
        for _ in range(draw(st.integers(1, 5)))
    ]


@given(
    work=workloads(), budget=st.integers(8, 64), spare=st.integers(0, 12), most=st.integers(4, 96)
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_model_that_drafts_for_itself_is_always_right(
    work: list[dict[str, Any]], budget: int, spare: int, most: int
) -> None:
    expected, _ = answers(make_core(None), work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft_model, "_CATCH_UP_TOKENS", most)
        core = make_core(config(), num_blocks=14 + spare, max_num_batched_tokens=budget)
        found, stats = answers(core, work)
    assert found == expected
    assert stats.num_accepted_tokens == stats.num_draft_tokens
    if spare == 12 and any(each["params"]["max_tokens"] > 4 for each in work):
        assert stats.num_draft_tokens > 0


def test_where_kernels_are_compiled_it_runs_before_requests_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_runner, "measurable", lambda device: True)
    monkeypatch.setattr(model_runner, "peak_bytes", lambda function, device: function() or 0)
    sizes: list[int] = []
    run = DraftModel._run

    def noted(draft: DraftModel, entries: Any) -> Any:
        sizes.append(sum(entry.num_tokens for entry in entries))
        return run(draft, entries)

    monkeypatch.setattr(DraftModel, "_run", noted)
    core = make_core(config(), max_num_batched_tokens=40)
    assert sizes == [*warm_up_sizes(40), 1]
    work = [{"prompt": [5, 6, 7], "params": {"max_tokens": 8, "ignore_eos": True}}]
    found, stats = answers(core, work)
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 0
    monkeypatch.undo()
    assert found == answers(make_core(None), work)[0]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "drafted_by",
    [
        config(num_hidden_layers=1),
        config("Qwen3", num_attention_heads=2, hidden_size=16, vocab_size=140),
        config(num_hidden_layers=1, vocab_size=100),
    ],
)
def test_other_models_change_no_token(dtype: str, drafted_by: Any) -> None:
    work = [
        {"prompt": [3 + i, 5, 7, 130], "params": {"max_tokens": 30, "temperature": t, "seed": i}}
        for i, t in enumerate([0.0, 0.9])
    ]
    expected, _ = answers(make_core(None, dtype=dtype), copy.deepcopy(work))
    found, stats = answers(make_core(drafted_by, dtype=dtype), work)
    assert found == expected
    assert stats.num_draft_tokens > 0
    assert stats.num_accepted_tokens < stats.num_draft_tokens


def test_models_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="lower --max-model-len from 96"):
        make_core(config(max_position_embeddings=64))
    sliding = config("Mistral", sliding_window=12)
    with pytest.raises(ConfigurationError, match="ngram"):
        make_core(config(), model=sliding)


def test_a_model_with_sliding_layers_beside_others_can_have_a_draft_model() -> None:
    gemma = config(
        "Gemma3",
        num_hidden_layers=6,
        sliding_window=9,
        layer_types=[*["sliding_attention"] * 2, "full_attention"] * 2,
    )
    work = [{"prompt": list(range(2, 30)), "params": {"max_tokens": 30, "temperature": 0.0}}]
    expected, _ = answers(make_core(None, model=gemma), copy.deepcopy(work))
    found, stats = answers(make_core(gemma, model=gemma), work)
    assert found == expected
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 10


def test_what_was_not_read_while_nothing_was_drafted_is_read_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in blocks that held another request's tokens, which had been read."""
    drafts = True
    monkeypatch.setattr(Speculation, "is_active", lambda self, request, n: drafts)
    core = make_core(config(), num_blocks=14)
    outputs = []
    try:
        for request_id in range(4):
            drafts = request_id % 2 == 0
            core.add(
                EngineCoreRequest(
                    request_id=request_id,
                    external_id=str(request_id),
                    prompt_token_ids=[10 * request_id + i % 7 for i in range(40)],
                    params=SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True),
                )
            )
            steps = 0
            while core.has_work:
                outputs.append(core.step().stats.speculation)
                steps += 1
                drafts = drafts or steps > 10
    finally:
        core.close()
    accepted = sum(stats.num_accepted_tokens for stats in outputs if stats)
    assert accepted == sum(stats.num_draft_tokens for stats in outputs if stats) > 60
