import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagelet.agent.reasoning import ReasoningSplitter
from pagelet.agent.tools.events import CallArguments, CallBegin, Content, Event, Reasoning
from pagelet.agent.tools.formats import FORMATS

NAMES = ("weather", "add", "no_arguments")
Call = tuple[str, object]
WEATHER: Call = ("weather", {"city": 'Ko"ln ] } {', "days": [1, 2.5, None], "at": {"x": "\\"}})
ADD: Call = ("add", {"a": 1, "b": -2})
EMPTY: Call = ("no_arguments", {})


def merge(events: Sequence[Event]) -> list[Event]:
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, CallBegin) or type(last) is not type(event):
            merged.append(event)
        else:
            assert not isinstance(last, CallBegin | None)
            merged[-1] = type(event)(last.text + event.text)  # type: ignore[union-attr]
    return merged


def parse(make: Callable[[], object], pieces: Sequence[str]) -> list[Event]:
    parser = make()
    events: list[Event] = []
    for piece in pieces:
        events += parser.push(piece)  # type: ignore[attr-defined]
    return merge(events + parser.finish())  # type: ignore[attr-defined]


def calls_of(events: Sequence[Event]) -> list[Call]:
    calls: list[Call] = []
    for event in events:
        if isinstance(event, CallBegin):
            calls.append((event.name, ""))
        elif isinstance(event, CallArguments):
            name, before = calls[-1]
            calls[-1] = name, str(before) + event.text
    return [(name, json.loads(str(arguments))) for name, arguments in calls]


def content_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Content))


def spelled(call: Call, arguments: str = "arguments") -> str:
    return json.dumps({"name": call[0], arguments: call[1]})


def tagged(call: Call) -> str:
    return f"<tool_call>\n{spelled(call)}\n</tool_call>"


def python(call: Call) -> str:
    assert isinstance(call[1], dict)
    return f"{call[0]}({', '.join(f'{name}={value!r}' for name, value in call[1].items())})"


CASES: list[tuple[str, str, str, list[Call]]] = [
    ("hermes", tagged(WEATHER), "", [WEATHER]),
    ("hermes", f"Let me see.\n\n{tagged(WEATHER)}\n{tagged(ADD)}\n", "Let me see.", [WEATHER, ADD]),
    ("hermes", f"{tagged(EMPTY)} and then", "and then", [EMPTY]),
    ("hermes", '<tool_call>{"name": "no_arguments"}</tool_call>', "", [EMPTY]),
    ("hermes", '<tool_call>{"arguments": {"a": 1, "b": -2}, "name": "add"}</tool_call>', "", [ADD]),
    ("hermes", json.dumps({"name": "add", "arguments": json.dumps(ADD[1])}), "*", []),
    (
        "hermes",
        "<tool_call>" + json.dumps({"name": "add", "arguments": json.dumps(ADD[1])}),
        "",
        [ADD],
    ),
    ("hermes", "a < b <tool_cal l> 2 ", "*", []),
    ("hermes", "<tool_call>not a call</tool_call> ", "*", []),
    ("hermes", "<tool_call>", "*", []),
    ("llama3_json", spelled(WEATHER, "parameters"), "", [WEATHER]),
    ("llama3_json", f"\n{spelled(ADD, 'parameters')}; {spelled(EMPTY)}", "", [ADD, EMPTY]),
    ("llama3_json", f"<|python_tag|>{spelled(ADD, 'parameters')}", "", [ADD]),
    ("llama3_json", f"[{spelled(ADD)}, {spelled(WEATHER)}]", "", [ADD, WEATHER]),
    ("llama3_json", '{"name": "Bob", "age": 3}', "*", []),
    ("llama3_json", '{"a": 1} is JSON', "*", []),
    ("llama3_json", "<|python_tag", "*", []),
    ("llama3_json", "Plain [text] {with} braces", "*", []),
    ("pythonic", f"[{python(WEATHER)}, {python(ADD)}]", "", [WEATHER, ADD]),
    (
        "pythonic",
        '[add(a="é😀",\r\n b=[1,\n true],\r c="\\u00e9", d=\'ü\', e=null), add()]',
        "",
        [("add", {"a": "é😀", "b": [1, True], "c": "é", "d": "ü", "e": None}), ("add", {})],
    ),
    ("pythonic", "[no_arguments()]", "", [EMPTY]),
    ("pythonic", "[1, 2, 3]", "*", []),
    ("pythonic", "[unknown(a=1)]", "*", []),
    ("pythonic", "[add(1, 2)]", "*", []),
    ("pythonic", "It is [add(a=1)]", "*", []),
    ("mistral", f"[TOOL_CALLS] [{spelled(WEATHER)}, {spelled(ADD)}]", "", [WEATHER, ADD]),
    ("mistral", f"Sure.[TOOL_CALLS][{spelled(EMPTY)}]", "Sure.", [EMPTY]),
    ("mistral", f"[TOOL_CALLS]add[ARGS]{json.dumps(ADD[1])}", "", [ADD]),
    (
        "mistral",
        f"[TOOL_CALLS]add[CALL_ID]123456789[ARGS]{json.dumps(ADD[1])}"
        f"[TOOL_CALLS]weather{json.dumps(WEATHER[1])}",
        "",
        [ADD, WEATHER],
    ),
    ("mistral", "a [TOOL_CALL", "*", []),
    ("mistral", '[TOOL_CALLS]I would send {"a": 1} there', "*", []),
    ("mistral", '[TOOL_CALLS]unknown[ARGS]{"a": {"b": 1}}', "*", []),
    ("mistral", f'[TOOL_CALLS]x{{"a": 1}}[TOOL_CALLS]add[ARGS]{json.dumps(ADD[1])}', "", [ADD]),
    ("gemma", f"Now:\n```tool_code\n{python(ADD)}\n```\n", "Now:", [ADD]),
    (
        "gemma",
        f"```tool_code\nprint({python(WEATHER)})\n{python(EMPTY)}\n```",
        "",
        [WEATHER, EMPTY],
    ),
    ("gemma", f"```tool_code\n[{python(ADD)}]", "", [ADD]),
    ("gemma", f"```tool_call\n{spelled(ADD)}\n```", "", [ADD]),
    ("gemma", "```python\nadd(a=1)\n```", "*", []),
    ("gemma", "```tool_code\nimport os\n```", "*", []),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_every_cut_gives_the_same(name: str, text: str, content: str, calls: list[Call]) -> None:
    def make() -> object:
        return FORMATS[name].make_parser(NAMES)

    whole = parse(make, [text])
    assert calls_of(whole) == calls
    assert content_of(whole) == (text if content == "*" else content)
    assert parse(make, list(text)) == whole
    for cut in range(1, len(text)):
        assert parse(make, [text[:cut], text[cut:]]) == whole
    for begin in range(1, len(text) - 2, 3):
        assert parse(make, [text[:begin], text[begin : begin + 2], text[begin + 2 :]]) == whole


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_what_nests_without_end_calls_none_of_the_tools(name: str) -> None:
    deep = "[" * 20_000 + "]" * 20_000
    for mark, end in (("", ""), ("<tool_call>", "</tool_call>"), ("[TOOL_CALLS]", "")):
        text = f'{mark}{{"name": {deep}, "arguments": {{}}}}{end}'
        called = calls_of(parse(lambda: FORMATS[name].make_parser(NAMES), [text]))
        assert not {call[0] for call in called} & {*NAMES}


MARKS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"),
        *(
            "```tool_code",
            "```",
            "<think>",
            "</think>",
            spelled(ADD),
            python(ADD),
            '{"name": "add"',
        ),
        *(
            ' "arguments": ',
            "{",
            "}",
            "[",
            "]",
            '"',
            "\\",
            ",",
            ";",
            " ",
            "\n",
            "add",
            "(",
            ")",
            "a",
        ),
    ]
)


@settings(max_examples=300)
@given(
    name=st.sampled_from(sorted(FORMATS)),
    text=st.lists(MARKS, max_size=12).map("".join),
    data=st.data(),
)
def test_any_text_in_any_pieces(name: str, text: str, data: st.DataObject) -> None:
    def make() -> object:
        return FORMATS[name].make_parser(NAMES)

    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    events = parse(make, pieces)
    assert events == parse(make, [text])
    if not any(isinstance(event, CallBegin) for event in events):
        assert content_of(events) == text  # nothing is lost where nothing is called


@settings(max_examples=200)
@given(begun=st.booleans(), text=st.lists(MARKS, max_size=10).map("".join), data=st.data())
def test_thinking_in_any_pieces(begun: bool, text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(lambda: ReasoningSplitter(begun), pieces) == parse(
        lambda: ReasoningSplitter(begun), [text]
    )


@pytest.mark.parametrize(
    ("begun", "text", "thought", "answer"),
    [
        (False, "<think>\nhm, <b>\n</think>\n\nYes.\n", "hm, <b>", "Yes.\n"),
        (True, "\nhm\n</think>\nYes.", "hm", "Yes."),
        (True, "hm", "hm", ""),
        (False, "  no <think> at the start", "", "  no <think> at the start"),
        (False, "<thin", "", "<thin"),
        (False, "<think></think>x", "", "x"),
    ],
)
def test_thinking(begun: bool, text: str, thought: str, answer: str) -> None:
    events = parse(lambda: ReasoningSplitter(begun), [text])
    assert "".join(event.text for event in events if isinstance(event, Reasoning)) == thought
    assert content_of(events) == answer
