"""What callers ask is completed, or refused with what to change; nothing else reaches the core."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.model_config import ModelConfig, PoolingConfig, RopeConfig
from pagelet.engine.processor import Processor
from pagelet.engine.sampling_request import RequestedSampling
from pagelet.engine.source import ModelFiles
from pagelet.protocol.config import ModelOptions
from pagelet.protocol.engine import EngineCoreRequest
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.sampling import SamplingParams
from pagelet.text.tokenizer import Tokenizer

CONTEXT = 100
VOCAB = 40  # rows of the model; the tokenizer has 30 tokens, and none of id 7
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def make_processor(
    defaults: dict[str, Any] | None = None,
    template: str | None = TEMPLATE,
    pooling: PoolingConfig | None = None,
    **options: Any,
) -> Processor:
    vocab = {f"t{i}": i for i in range(30) if i != 7}
    backend = Backend(models.WordLevel(vocab, "t0"))
    backend.decoder = decoders.Fuse()
    config = ModelConfig(
        architecture="LlamaForCausalLM",
        hidden_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        intermediate_size=8,
        vocab_size=VOCAB,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        rope=RopeConfig(),
        eos_token_ids=(3, 2, 3, 999),
        generation_defaults=defaults or {},
        pooling=pooling,
    )
    tokenizer = Tokenizer(backend, special_tokens={"eos_token": "t1"}, chat_template=template)
    files = ModelFiles(Path("m"), "safetensors", "tiny")
    return Processor(config, tokenizer, CONTEXT, files, ModelOptions(source="m", **options))


PROCESSOR = make_processor()
EMBEDDING = make_processor(pooling=PoolingConfig("embed"))


def process(
    processor: Processor = PROCESSOR, *, prompt: list[int] | None = None, **given: Any
) -> list[EngineCoreRequest]:
    names = {field.name for field in dataclasses.fields(RequestedSampling)}
    sampling = RequestedSampling(**{name: given.pop(name) for name in names & given.keys()})
    return processor.process(prompt or [1, 2, 3], sampling, request_id="r", **given)


def test_defaults_are_openais() -> None:
    [request] = process()
    seed = request.params.seed
    assert seed is not None
    assert 0 <= seed < 2**63
    assert request == EngineCoreRequest(
        request_id=0,
        external_id="r",
        prompt_token_ids=[1, 2, 3],
        params=SamplingParams(max_tokens=CONTEXT - 3, seed=seed),
        eos_token_ids=[3, 2, 1],
    )


def test_request_before_generation_config_before_openai() -> None:
    processor = make_processor({"temperature": 0.6, "top_k": 20.0, "top_p": 0.9})
    [request] = process(processor, top_p=0.5)
    assert (request.params.temperature, request.params.top_k) == (0.6, 20)
    assert (request.params.top_p, request.params.min_p) == (0.5, 0.0)
    assert processor.default_sampling["temperature"] == 0.6
    assert processor.default_sampling["top_k"] == 20
    assert processor.default_sampling["presence_penalty"] == 0.0
    assert "max_tokens" not in processor.default_sampling


def test_a_bad_generation_config_is_found_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match=r"generation_config\.json of tiny: temperature"):
        make_processor({"temperature": -1.0})


def test_everything_that_is_given_arrives() -> None:
    given: dict[str, Any] = {
        "max_tokens": 10,
        "min_tokens": 2,
        "temperature": 0.0,
        "top_p": 0.1,
        "top_k": 5,
        "min_p": 0.2,
        "repetition_penalty": 1.1,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "logit_bias": {5: 12.5},
        "seed": -(2**63),
        "stop": ["a", "b"],
        "stop_token_ids": [4, 5],
        "ignore_eos": True,
        "logprobs": 0,
        "prompt_logprobs": 20,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }
    [request] = process(**given, priority=-5, cache_salt="s", arrival_time=7.0)
    assert request.params == SamplingParams(**given)
    assert (request.priority, request.cache_salt, request.arrival_time) == (-5, "s", 7.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=EngineCoreRequest) == (
        request
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 1000}, {"top_k": 0}),
        ({"logit_bias": {5: 1e9, 6: -1e9}}, {"logit_bias": {5: 100.0, 6: -100.0}}),
        ({"logit_bias": {}}, {"logit_bias": None}),
        ({"stop": "x"}, {"stop": ["x"]}),
        ({"stop": ["x", "y", "x"]}, {"stop": ["x", "y"]}),
        ({"stop_token_ids": [4, 4]}, {"stop_token_ids": [4]}),
        ({"max_tokens": CONTEXT - 3}, {"max_tokens": CONTEXT - 3}),
    ],
)
def test_forms_that_mean_the_same(given: dict[str, Any], expected: dict[str, Any]) -> None:
    [request] = process(**given)
    assert {name: getattr(request.params, name) for name in expected} == expected


NUMBERS = [
    *("temperature", "top_p", "min_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty"),
]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"prompt": [1] * CONTEXT},
            "context length is 100 tokens.*prompt has 100 .*shorten it by 1",
        ),
        ({"prompt": [1] * (CONTEXT + 9)}, "shorten it by 10"),
        ({"prompt": [1, 2, VOCAB]}, f"prompt: token id {VOCAB} is not in"),
        ({"prompt": [1, 35]}, "prompt: token id 35 is not in"),
        ({"prompt": [7]}, "prompt: token id 7 is not in"),
        ({"prompt": [-1]}, "prompt: token id -1 is not in"),
        ({"prompt": [2**70]}, "prompt: token id"),
        ({"max_tokens": 98}, "3 and the 98 asked for make 101.*at most 97"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        (
            {"min_tokens": 6, "max_tokens": 5},
            "min_tokens must be at least 0 and at most 5, .*, got 6",
        ),
        ({"min_tokens": 98}, "min_tokens"),
        ({"n": 0}, "n must be at least 1 and at most 128, got 0"),
        ({"n": 129}, "n must be"),
        *(({name: value}, name) for name in NUMBERS for value in (math.nan, math.inf, -math.inf)),
        ({"temperature": 2.1}, "temperature must be at least 0 and at most 2, got 2.1"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p must be greater than 0"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k must be at least 1, or -1 or 0"),
        ({"top_k": 1.5}, "top_k must be an integer"),
        ({"min_p": 1.1}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias: token id 40"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias: token id -1"),
        ({"logit_bias": {5: math.nan}}, "logit_bias of token 5"),
        ({"logit_bias": dict.fromkeys(range(2000), 0.0)}, "logit_bias may name at most 1024"),
        ({"stop_token_ids": [VOCAB]}, "stop_token_ids: token id 40"),
        ({"stop_token_ids": [30]}, "stop_token_ids: token id 30"),
        ({"stop_token_ids": range(200)}, "at most 128 stop_token_ids, got 200"),
        ({"stop": ""}, "stop string must not be empty"),
        ({"stop": ["a", ""]}, "stop string must not be empty"),
        ({"stop": [str(i) for i in range(17)]}, "at most 16 stop strings, got 17"),
        ({"stop": "x" * 4097}, "at most 4096 characters long, got 4097"),
        ({"stop": "\ud800"}, "stop has half a surrogate pair"),
        ({"stop": "a", "detokenize": False}, "stop strings need detokenize"),
        ({"logprobs": 21}, "logprobs must be at least 0 and at most 20, got 21"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"seed": 2**63}, "seed must fit in 64 bits"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"priority": 2**31}, "priority must fit in 32 bits"),
        ({"cache_salt": ""}, "cache_salt must have 1 to 256 characters, got 0"),
        ({"cache_salt": "x" * 257}, "cache_salt"),
        ({"cache_salt": "\udc00"}, "cache_salt has half a surrogate pair"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as error:
        process(**given)
    assert error.value.param is not None
    assert error.value.param in ("prompt", *given)


@pytest.mark.parametrize("given", [{"priority": -(2**31) - 1}, {"cache_salt": ""}])
def test_a_prompt_for_a_vector_has_the_same_bounds(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as error:
        EMBEDDING.process_pooled([1, 2], request_id="r", **given)
    assert [error.value.param] == list(given)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="prompt is empty"):
        PROCESSOR.process([], RequestedSampling(), request_id="r")


def test_context_length_errors_have_openais_words_and_code() -> None:
    for wrong in ({"prompt": [1] * 200}, {"max_tokens": 200}):
        with pytest.raises(
            InvalidRequest, match=f"^This model's maximum context length is {CONTEXT} tokens"
        ) as error:
            process(**wrong)
        assert error.value.code == "context_length_exceeded"


def test_children_differ_in_seed_alone() -> None:
    requests = process(n=5, seed=42, temperature=0.5)
    assert [request.params.n for request in requests] == [1] * 5
    seeds = [request.params.seed for request in requests]
    assert seeds[0] == 42
    assert len(set(seeds)) == 5
    assert seeds == [request.params.seed for request in process(n=5, seed=42)]
    assert set(seeds[1:]).isdisjoint(r.params.seed for r in process(n=5, seed=43))
    for request in requests:
        request.params.seed = 0
        assert request == requests[0]


def test_unseeded_answers_get_fresh_entropy() -> None:
    seeds = [request.params.seed for _ in range(3) for request in process(n=4, temperature=0.0)]
    assert len(set(seeds)) == 12


ANY_NUMBER = st.one_of(st.none(), st.floats(0.1, 1.0), st.integers(0, 2), st.floats())
ANY_INTEGER = st.one_of(st.none(), st.integers(1, 20), st.integers(-3, 130), st.integers())


@settings(max_examples=500)
@given(
    numbers=st.fixed_dictionaries({}, optional=dict.fromkeys(NUMBERS, ANY_NUMBER)),
    integers=st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            ["n", "max_tokens", "min_tokens", "top_k", "seed", "logprobs", "prompt_logprobs"],
            ANY_INTEGER,
        ),
    ),
    lists=st.fixed_dictionaries(
        {},
        optional={
            "stop": st.lists(st.text(max_size=4), max_size=3),
            "stop_token_ids": st.lists(st.integers(-2, 50), max_size=3),
            "logit_bias": st.dictionaries(st.integers(-2, 50), st.floats(), max_size=3),
            "prompt": st.lists(st.integers(-1, 50), min_size=1, max_size=110),
        },
    ),
)
def test_whatever_passes_is_sound(
    numbers: dict[str, Any], integers: dict[str, Any], lists: dict[str, Any]
) -> None:
    try:
        requests = process(**numbers, **integers, **lists)
    except InvalidRequest:
        return
    for request in requests:
        params = request.params
        decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=EngineCoreRequest)
        assert decoded == request
        assert params.max_tokens is not None
        assert 0 <= params.min_tokens <= params.max_tokens
        assert 1 <= params.max_tokens <= CONTEXT - len(request.prompt_token_ids)
        used = [*request.prompt_token_ids, *params.stop_token_ids, *(params.logit_bias or {})]
        assert all(0 <= token_id < 30 and token_id != 7 for token_id in used)
        assert all(math.isfinite(getattr(params, name)) for name in NUMBERS)
        assert 0 <= params.top_k < VOCAB
        assert params.seed is not None


def test_chat() -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert PROCESSOR.prompts.render_chat(messages) == "user: hi\n"
    with pytest.raises(InvalidRequest, match="messages must not be empty"):
        PROCESSOR.prompts.render_chat([])
    with pytest.raises(InvalidRequest, match="'tiny' has no chat template"):
        make_processor(template=None).prompts.render_chat(messages)


def test_a_chat_template_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    with pytest.raises(ConfigurationError, match="cannot be read"):
        make_processor(chat_template=str(path))
    path.write_text("{{ messages[0].content }}!")
    processor = make_processor(chat_template=str(path))
    assert processor.prompts.render_chat([{"role": "user", "content": "hi"}]) == "hi!"


def test_text_that_is_no_unicode_is_refused_before_the_tokenizer() -> None:
    backend = Backend(models.WordLevel({"a": 0}, "a"))
    tokenizer = Tokenizer(backend)
    with pytest.raises(InvalidRequest, match="half a surrogate pair at character 1"):
        tokenizer.encode("a\ud83d")
    with pytest.raises(InvalidRequest, match="surrogate"):
        tokenizer.encode_batch(["a", "\ud83d"])


def test_text_that_cannot_fit_is_refused_before_the_tokenizer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fits = "t29" * CONTEXT  # 3 characters are the most that a token of this vocabulary has
    encoded = []
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text, special: encoded.append(text))
    PROCESSOR.prompts.encode(fits)
    with pytest.raises(InvalidRequest, match="301 characters are at least 101: shorten") as caught:
        PROCESSOR.prompts.encode(fits + "t")
    assert caught.value.code == "context_length_exceeded"
    assert encoded == [fits]


@pytest.mark.parametrize(
    "content", ["It is ", [{"type": "text", "text": "It"}, {"type": "text", "text": "is "}]]
)
def test_the_last_message_can_be_continued(content: Any) -> None:
    messages = [{"role": "user", "content": "Is?"}, {"role": "assistant", "content": content}]
    text = PROCESSOR.prompts.render_chat(messages, continue_final_message=True)
    said = content if isinstance(content, str) else "It\nis "
    assert text == "user: Is?\nassistant: " + said


@pytest.mark.parametrize(
    "template", ["{{ messages[0].content }}", "{{ messages[-1].content * 2 }}", "nothing"]
)
def test_a_template_that_hides_the_last_message_cannot_continue_it(template: str) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with pytest.raises(InvalidRequest, match="cannot be continued"):
        make_processor(template=template).prompts.render_chat(messages, continue_final_message=True)


@pytest.mark.parametrize(("length", "expected"), [(10, 16), (95, 5), (84, 16), (85, 15)])
def test_default_of_max_tokens_is_cut_to_the_room(length: int, expected: int) -> None:
    wanted = RequestedSampling(default_max_tokens=16)
    (request,) = PROCESSOR.process([0] * length, wanted, request_id="r")
    assert request.params.max_tokens == expected


def test_prompts_are_truncated_at_their_beginning():
    processor = make_processor()
    prompt = [8, 9, 10, 11, 12, 13]

    def process(most_tokens):
        sampling = RequestedSampling(truncate_prompt_tokens=most_tokens)
        return processor.process(prompt, sampling, request_id="r")[0].prompt_token_ids

    assert process(None) == prompt
    assert process(3) == [11, 12, 13]
    assert process(100) == prompt
    with pytest.raises(InvalidRequest, match="at least 1"):
        process(0)
