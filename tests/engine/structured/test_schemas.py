"""Random answers under a grammar: what any model at any temperature could write."""

import json
import random

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.engine.structured.compile import GrammarError, mask_words
from pagelet.engine.structured.json_schema import _LLGUIDANCE_KEYWORDS, json_schema_grammar
from pagelet.engine.structured.requested import RequestedGrammar
from pagelet.protocol.errors import InvalidRequest
from support.schemas import load_schemas

SCHEMAS = load_schemas()
MOST_TOKENS = 600
# No grammar knows leap years: dates are checked by their digits alone.
FORMATS = jsonschema.FormatChecker(("email", "ipv4", "ipv6", "uuid"))


def random_answer(compiler, matcher, rng):
    """The text of a random walk; None if it does not end. Tokens that begin with a mark of JSON are
    preferred at times, as few would end a string otherwise."""
    vocabulary = compiler.vocabulary
    row = np.zeros(mask_words(vocabulary.size), np.int32)
    ends = set(vocabulary.eos_token_ids)
    text = b""
    for _ in range(MOST_TOKENS):
        assert matcher.fill(row), matcher.error
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")[: vocabulary.size]
        allowed = np.flatnonzero(bits).tolist()
        if ends.intersection(allowed) and (rng.random() < 0.4 or set(allowed) <= ends):
            return text.decode()
        allowed = [token_id for token_id in allowed if token_id not in ends]
        marks = [i for i in allowed if vocabulary.tokens[i][:1] in b'",]}']
        token_id = rng.choice(marks if marks and rng.random() < 0.4 else allowed)
        assert matcher.accept(token_id), matcher.error
        text += vocabulary.tokens[token_id]
        if matcher.finished:
            return text.decode()
    return None


def test_there_are_a_hundred():
    assert len(SCHEMAS) == 100


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_answer_validates(compiler, name):
    schema = SCHEMAS[name]
    matcher = compiler.compile(json_schema_grammar(schema, "response_format"))
    draft = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    validator = draft(schema, format_checker=FORMATS)
    rng = random.Random(name)
    answers = [random_answer(compiler, matcher.fork(), rng) for _ in range(6)]
    finished = [answer for answer in answers if answer is not None]
    assert finished, "no answer ended"
    for answer in finished:
        validator.validate(json.loads(answer))


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": {"type": "integer"}}, "'not'"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
        ({"type": "object", "properties": {"a": {"if": {}, "then": {}}}}, "'if'"),
        ({"anyOf": [{"type": "array", "contains": {}}]}, "'contains'"),
        ({"type": "object", "propertyNames": {"pattern": "a"}}, "'propertyNames'"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "'dependentRequired'"),
        ({"$defs": {"a": {"unevaluatedProperties": False}}}, "'unevaluatedProperties'"),
        ({"items": {"$dynamicRef": "#a"}}, r"'\$dynamicRef'"),
        ({"type": "string", "format": "color"}, "'color'"),
        ({"type": "integer", "minimum": 10**50}, "'minimum'"),
        ({"type": "integer", "minimum": 10**20, "maximum": 10**21}, "'minimum'"),
        ({"items": {"exclusiveMaximum": -1e30}}, "'exclusiveMaximum' at #/items"),
        ({"type": "string", "minLength": 10**12}, "'minLength'"),
        (
            {"type": "object", "properties": {"a": {"multipleOf": 2}}, "minProperties": 1},
            "'minProperties'.*'multipleOf'",
        ),
    ],
)
def test_what_cannot_be_enforced_is_named(schema, named):
    with pytest.raises(InvalidRequest, match=named) as refused:
        json_schema_grammar(schema, "response_format")
    assert refused.value.code == "unsupported_keyword"
    assert refused.value.param == "response_format"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        {"type": "integer", "minimum": 0, "exclusiveMaximum": 10**50},
        {"type": "number", "minimum": -1.7e308, "maximum": 1.7e308},
        {"type": "string", "maxLength": 10**30},
        {"type": "array", "items": {"type": "null"}, "maxItems": 10**30},
    ],
)
def test_bounds_out_of_reach_bound_nothing(compiler, schema):
    matcher = compiler.compile(json_schema_grammar(schema, "guided_json"))
    text = {"string": '"a"', "array": "[null]"}.get(schema["type"], "7")
    assert all(map(matcher.accept, compiler.vocabulary.encode(text)))


@pytest.mark.parametrize("schema", [False, "false"])
def test_what_nothing_matches_is_said(schema):
    with pytest.raises(InvalidRequest, match="no answer can match the schema false"):
        RequestedGrammar(param="response_format", json=schema).build()


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    ],
)
def test_a_schema_that_leads_to_itself_is_said(compiler, schema):
    with pytest.raises(GrammarError, match="leads to nothing but itself"):
        compiler.compile(json_schema_grammar(schema, "guided_json"))


@pytest.mark.parametrize(
    "schema", [3, "[1]", "{", {"properties": {"a": 1}}, "[" * 5000, {"items": "x"}]
)
def test_what_is_no_schema(schema):
    with pytest.raises(InvalidRequest):
        json_schema_grammar(schema, "guided_json")


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"properties": False}, "#/properties must be an object"),
        ({"items": {"required": "a"}}, "#/items/required must be a list of strings"),
        ({"anyOf": {}}, "#/anyOf must be a list of schemas"),
        ({"type": ["string", 3]}, "#/type must be a string or a list of strings"),
        ({"format": ["date"]}, "#/format must be a string"),
        ({"minItems": -1}, "#/minItems must be a whole number of at least 0"),
        ({"maxLength": float("inf")}, "#/maxLength must be a whole number"),
        ({"minimum": True}, "#/minimum must be a number"),
    ],
)
def test_a_keyword_of_the_wrong_type_is_named(schema, named):
    with pytest.raises(InvalidRequest, match=named) as refused:
        json_schema_grammar(schema, "guided_json")
    assert refused.value.param == "guided_json"


ANY_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(sorted(_LLGUIDANCE_KEYWORDS | {"x"})), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(schema=ANY_VALUE)
def test_any_value_is_a_grammar_or_refused(compiler, schema):
    try:
        grammar = json_schema_grammar(schema, "guided_json")
        compiler.compile(grammar)
    except (InvalidRequest, GrammarError):
        pass


def test_depth_is_bounded():
    schema = {}
    for _ in range(80):
        schema = {"items": schema}
    with pytest.raises(InvalidRequest, match="levels deep"):
        json_schema_grammar(schema, "guided_json")


def test_white_space_is_bounded(compiler):
    matcher = compiler.compile(json_schema_grammar({"type": "object"}, "guided_json"))
    for text in ("{   ", "{\n\n", "{" + "\n" + " " * 30):
        fork = matcher.fork()
        assert not all(fork.accept(id) for id in compiler.vocabulary.encode(text)), text


@pytest.mark.parametrize(
    ("requested", "good", "bad"),
    [
        ({"regex": r"\d{3}-[a-z]{2}"}, ["123-ab"], ["12-ab", "123-abc"]),
        ({"choice": ["yes", "no", 'a "b"\n']}, ["yes", "no", 'a "b"\n'], ["y", "maybe"]),
        ({"choice": ["a", "ab", "a.c", "ß"]}, ["a", "ab", "a.c", "ß"], ["abc", "axc", "s"]),
        ({"choice": [f"number {i}" for i in range(10_000)]}, ["number 9999"], ["number 10000"]),
        ({"grammar": 'root ::= "x" [0-9]+ ("," root)?'}, ["x1", "x12,x3"], ["x", "1"]),
        ({"grammar": 'start: "x" NUMBER\nNUMBER: /[0-9]{1,2}/'}, ["x1", "x12"], ["x", "x123"]),
        ({"json_object": True}, ["{}", '{"a": [1]}'], ["[]", "1"]),
        (
            {
                "structural_tag": {
                    "type": "structural_tag",
                    "format": {
                        "type": "tag",
                        "begin": "<f>",
                        "content": {"type": "json_schema", "json_schema": {"type": "boolean"}},
                        "end": "</f>",
                    },
                }
            },
            ["<f>true</f>"],
            ["true", "<f>1</f>"],
        ),
    ],
)
def test_other_grammars(compiler, requested, good, bad):
    matcher = compiler.compile(RequestedGrammar(param="structured_outputs", **requested).build())
    end = compiler.vocabulary.eos_token_ids[0]

    def matches(text):
        fork = matcher.fork()
        accepted = all(fork.accept(id) for id in compiler.vocabulary.encode(text))
        return accepted and (fork.finished or fork.accept(end))

    assert all(matches(text) for text in good)
    assert not any(matches(text) for text in bad)
