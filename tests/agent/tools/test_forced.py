import json

import pytest

from pagelet.agent.tools.events import CallArguments, CallBegin, Content
from pagelet.agent.tools.forced import ForcedParser
from pagelet.agent.tools.formats import FORMATS

from .test_parsers import parse

FORCING = [name for name, each in FORMATS.items() if each.spelling is not None]
ARGUMENTS = json.dumps({"city": 'Ko"ln ] } {', "days": [1, {"x": "\\"}]})


def spelled(tool_format, *names):
    spelling = FORMATS[tool_format].spelling
    calls = [spelling.begin(json.dumps(name)) + ARGUMENTS + spelling.end for name in names]
    return spelling.first + spelling.between.join(calls) + spelling.last


def maker(tool_format, names):
    spellings = {name: FORMATS[tool_format].spelling.beginning(name) for name in names}
    return lambda: ForcedParser(FORMATS[tool_format].make_parser(names), spellings)


@pytest.mark.parametrize("tool_format", FORCING)
@pytest.mark.parametrize("names", [("add",), ("add", "weather"), ("add", "add_all")])
def test_a_call_is_no_text_wherever_it_is_cut(tool_format, names):
    text = spelled(tool_format, *names)
    make = maker(tool_format, names)
    first = FORMATS[tool_format].spelling.beginning("add")
    for end in range(len(text) + 1):
        events = parse(make, [text[:end]])
        assert events == parse(make, list(text[:end]))
        for cut in range(0, end, 7):
            assert events == parse(make, [text[:cut], text[cut:end]])
        assert not any(isinstance(event, Content) for event in events)
        called = [event.name for event in events if isinstance(event, CallBegin)]
        assert called == list(names[: len(called)])
        for event in events:
            if isinstance(event, CallArguments):
                assert ARGUMENTS.startswith(event.text)
        if end >= len(first) or (len(names) == 1 and end >= 1):
            assert called
    assert called == list(names)


@pytest.mark.parametrize("tool_format", FORCING)
def test_of_what_two_names_share_nothing_is_said(tool_format):
    begin = FORMATS[tool_format].spelling.beginning("add").partition("add")[0]
    assert parse(maker(tool_format, ("add", "add_all")), [begin + "add"]) == []
    assert parse(maker(tool_format, ("add", "add_all")), [begin + 'add"']) == [CallBegin("add")]
    assert parse(maker(tool_format, ("add", "sub")), [begin + "s"]) == [CallBegin("sub")]
