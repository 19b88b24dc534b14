"""What becomes of streams whose replica fails in their midst, event by event."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.protocol.router import ModelRoute, Pool
from pagelet.router.proxy.journal import EventSplitter, Journal, StreamFailed
from support.scripted_replica import DONE, ScriptedReplica, error, event, scripted, stream

from .conftest import IMPATIENT

SERVER_ERROR = (
    b'data: {"error":{"message":"died","type":"server_error","param":null,"code":"x"}}\n\n'
)
USAGE = b'data: {"id":"x","created":7,"choices":[],"usage":{"prompt_tokens":3}}\n\n'


def first(index=0):
    return event(index, "", f"begin {index} 16")


def shown(data):
    """Texts of the events, by answer."""
    texts = {}
    for block in data.decode().split("\n\n"):
        assert "\n: " not in block
        if block.startswith("data: {"):
            chunk = json.loads(block[6:])
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


class Script:
    """Answers for the requests in the order in which they come, whichever replica they come to;
    the last one for all that follow."""

    def __init__(self, *answers, num_replicas=4):
        self.asked = []
        self._answers = list(answers)
        self.replicas = [ScriptedReplica() for _ in range(num_replicas)]
        for replica in self.replicas:
            replica.answer = self._answer

    async def _answer(self, asked):
        self.asked.append(asked)
        await self._answers[min(len(self.asked), len(self._answers)) - 1](asked)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param({"end": "cut"}, id="cut"),
        pytest.param({"end": "whole"}, id="ended without its end"),
        pytest.param({"end": "silent"}, id="silent"),
    ],
)
async def test_a_stream_goes_on_from_its_journal(routed, end) -> None:
    before = [first(), event(0, "a", "tokens 0 5,6"), event(0, "b", "tokens 0 7")]
    half = event(0, "never", "tokens 0 9")[:-20]
    after = [event(0, "c", "tokens 0 8", "end 0", finish="stop"), DONE]
    script = Script(stream(*before, half, **end), stream(*after))
    patience = IMPATIENT if end["end"] == "silent" else {}
    async with routed(*script.replicas, **patience) as fleet:
        data = await fleet.stream({"seed": 3})
        assert shown(data) == {0: "abc"}
        assert data.endswith(DONE)
        begun, resumed = script.asked
        assert begun.body["pagelet"]["journal"] is True
        assert "resume" not in begun.body["pagelet"]
        assert resumed.body["pagelet"]["resume"] == {
            "created": 7,
            "answers": [
                {"begun": True, "cached_tokens": 16, "token_ids": [5, 6, 7], "finished": False}
            ],
        }
        assert resumed.body["pagelet"]["seed"] == begun.body["pagelet"]["seed"]
        assert resumed.headers["x-request-id"] == begun.headers["x-request-id"]


async def test_events_of_a_token_are_shown_together_or_again(routed) -> None:
    before = [first(), event(0, "a"), event(0, "b", "tokens 0 5"), event(0, "c")]
    after = [event(0, "c"), event(0, "d", "tokens 0 6", "end 0", finish="stop"), DONE]
    script = Script(stream(*before, end="cut"), stream(*after, pause=0.02))
    async with routed(*script.replicas) as fleet:
        assert shown(await fleet.stream()) == {0: "abcd"}


async def test_an_error_of_the_server_is_made_good_by_another(routed) -> None:
    failing = stream(first(), event(0, "a", "tokens 0 5") + SERVER_ERROR)
    going_on = stream(event(0, "b", "tokens 0 6", "end 0", finish="length"), DONE)
    async with routed(*Script(failing, going_on).replicas) as fleet:
        assert shown(await fleet.stream()) == {0: "ab"}


async def test_an_error_of_the_request_is_passed_on(routed) -> None:
    wrong = SERVER_ERROR.replace(b"server_error", b"invalid_request_error")
    script = Script(stream(first(), wrong))
    async with routed(*script.replicas) as fleet:
        data = await fleet.stream()
        assert data.endswith(wrong)
        assert len(script.asked) == 1


async def test_a_stream_that_kills_two_replicas_ends_with_an_error(routed) -> None:
    dying = stream(first(), event(0, "a", "tokens 0 5"), end="cut")
    script = Script(dying)
    async with routed(*script.replicas) as fleet:
        data = await fleet.stream()
        last = json.loads(data.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]
        assert last["type"] == "server_error"
        assert DONE not in data
        assert len(script.asked) == 2


async def test_a_refused_continuation_is_asked_of_the_next(routed) -> None:
    dying = stream(first(), event(0, "a", "tokens 0 5"), end="cut")
    going_on = stream(event(0, "b", "tokens 0 6", "end 0", finish="length"), DONE)
    refusing = error(503, "draining", ["Retry-After: 1"])
    script = Script(dying, refusing, going_on)
    async with routed(*script.replicas, retry_budget=0.0) as fleet:
        assert shown(await fleet.stream()) == {0: "ab"}


@pytest.mark.parametrize("usage", [False, True])
async def test_what_lacks_only_its_end_needs_no_other_replica(routed, usage) -> None:
    finished = event(0, "a", "tokens 0 5", "end 0", finish="stop")
    parts = [first(), finished, USAGE] if usage else [first(), finished]
    script = Script(stream(*parts, end="cut"))
    async with routed(*script.replicas) as fleet:
        data = await fleet.stream({"stream_options": {"include_usage": usage}})
        assert shown(data) == {0: "a"}
        assert data.endswith(DONE)
        assert len(script.asked) == 1


async def test_a_lost_usage_is_asked_of_another_replica(routed) -> None:
    finished = event(0, "a", "tokens 0 5", "end 0", finish="stop")
    script = Script(stream(first(), finished, end="cut"), stream(USAGE, DONE))
    async with routed(*script.replicas) as fleet:
        data = await fleet.stream({"stream_options": {"include_usage": True}})
        assert data.endswith(USAGE + DONE)
        _, resumed = script.asked
        assert resumed.body["pagelet"]["resume"]["answers"][0]["finished"]


async def test_answers_of_several_prompts_go_on_each_from_its_own_state(routed) -> None:
    before = [first(0), first(3), event(3, "d", "tokens 3 9", "end 3", finish="stop")]
    after = [
        event(0, "a", "tokens 0 5", "end 0", finish="stop"),
        first(1),
        event(1, "b", "tokens 1 5", "end 1", finish="stop"),
        event(2, "c", "begin 2 0", "tokens 2 5", "end 2", finish="stop"),
        DONE,
    ]
    script = Script(stream(*before, end="cut"), stream(*after))
    async with routed(*script.replicas) as fleet:
        data = await fleet.stream({"prompt": ["p", "q"], "n": 2})
        assert shown(data) == {0: "a", 1: "b", 2: "c", 3: "d"}
        answers = script.asked[1].body["pagelet"]["resume"]["answers"]
        assert [answer["begun"] for answer in answers] == [True, False, False, True]
        assert [answer["finished"] for answer in answers] == [False, False, False, True]


async def test_what_cannot_go_on_elsewhere_may_finish_where_it_is(routed, tmp_path) -> None:
    replicas = [ScriptedReplica() for _ in range(2)]
    for replica in replicas:
        replica.answer = stream(b"event: x\ndata: 1\n\n", b"data: 2\n\n", pause=1.0)
    file = tmp_path / "replicas.json"
    async with scripted(replicas):
        file.write_text(json.dumps([{"id": r.url, "url": r.url} for r in replicas]))
        models = [ModelRoute(pools=[Pool(replicas_file=str(file))])]
        options = {"wait": False, "config": {"models": models}, "idle_timeout": 30.0}
        async with routed(ScriptedReplica(), **options) as fleet:
            await fleet.wait_for(lambda: fleet.num_available == 2)
            body = {"model": "m", "stream": True, "input": "i"}
            async with fleet.client.stream("POST", "/v1/responses", json=body) as response:
                parts = response.aiter_bytes()
                assert await anext(parts) == b"event: x\ndata: 1\n\n"
                (stays,) = (replica for replica in replicas if not replica.asked)
                file.write_text(json.dumps([{"id": stays.url, "url": stays.url}]))
                await fleet.wait_for(lambda: fleet.num_available == 1)
                assert b"".join([part async for part in parts]) == b"data: 2\n\n"
            assert not stays.asked


@pytest.mark.parametrize("pagelet", [False, True])
async def test_a_stream_without_a_journal_ends_with_a_clear_error(routed, pagelet) -> None:
    replicas = [ScriptedReplica(pagelet=pagelet) for _ in range(2)]
    for replica in replicas:
        replica.answer = stream(b'data: {"choices":[]}\n\n', b'data: {"cho', end="cut")
    async with routed(*replicas) as fleet:
        data = await fleet.stream()
        assert data.startswith(b'data: {"choices":[]}\n\n')
        last = json.loads(data.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]
        assert last["code"] == "stream_broken"
        assert sum(len(replica.asked) for replica in replicas) == 1


LINES = st.lists(st.text("ab:", min_size=1, max_size=6), min_size=1, max_size=3)


@given(st.lists(LINES.map("\n".join).map(str.encode)), st.data())
def test_only_whole_events_are_passed_on(texts, data) -> None:
    whole = b"".join(text + b"\n\n" for text in texts)
    splitter, rest, passed = EventSplitter(), whole, b""
    while rest:
        cut = data.draw(st.integers(1, len(rest)))
        events = splitter.feed(rest[:cut])
        rest = rest[cut:]
        assert not events or events.endswith(b"\n\n")
        passed += events
        received = whole[: len(whole) - len(rest)]
        complete = received[: received.rfind(b"\n\n") + 2] if b"\n\n" in received else b""
        assert passed == complete
    assert passed == whole


TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=3)


@given(st.lists(st.tuples(st.integers(0, 2), TOKENS, st.text(max_size=5))), st.data())
def test_the_journal_knows_what_was_shown_and_clients_do_not_see_it(steps, data) -> None:
    begun, events, plain, tokens = set(), b"", b"", {index: [] for index in range(3)}
    for index, ids, text in steps:
        comments = [f"begin {index} 32"] if index not in begun else []
        begun.add(index)
        if ids:
            comments.append(f"tokens {index} {','.join(map(str, ids))}")
        tokens[index] += ids
        events += event(index, text, *comments)
        plain += event(index, text)
    journal, splitter, seen = Journal(3, 1, wants_usage=False), EventSplitter(), b""
    while events:
        cut = data.draw(st.integers(1, len(events)))
        seen += journal.strip(splitter.feed(events[:cut]))
        events = events[cut:]
    assert seen == plain
    assert journal.begun == bool(steps)
    if steps:
        assert journal.resume()["answers"] == [
            {
                "begun": index in begun,
                "cached_tokens": 32 if index in begun else None,
                "token_ids": tokens[index],
                "finished": False,
            }
            for index in range(3)
        ]
    assert journal.num_tokens == sum(map(len, tokens.values()))
    assert journal.cached_tokens == 32 * len(begun)


def test_what_was_shown_before_an_error_counts() -> None:
    journal = Journal(1, 1, wants_usage=False)
    with pytest.raises(StreamFailed) as failed:
        journal.strip(first() + event(0, "a", "tokens 0 5") + SERVER_ERROR)
    assert shown(failed.value.shown) == {0: "a"}
    assert journal.resume()["answers"][0]["token_ids"] == [5]


LONG = "9" * 5000


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(event(0, "a", "begin 0", f"tokens 0 {LONG}"), id="token"),
        pytest.param(event(0, "a", f"begin {LONG}"), id="index"),
        pytest.param(event(0, "a", f"begin 0 {LONG}", "tokens 0 5"), id="cached tokens"),
        pytest.param(b'data: {"created":%b,"choices":[]}\n\n' % LONG.encode(), id="time"),
    ],
)
async def test_numbers_that_no_replica_means_are_not_believed(routed, told) -> None:
    whole_answer = (event(0, "b", "begin 0", "tokens 0 6", "end 0", finish="stop"), DONE)
    replicas = ScriptedReplica(), ScriptedReplica()
    replicas[0].answer = stream(told, end="cut")
    replicas[1].answer = stream(*whole_answer)
    async with routed(*replicas) as fleet:
        for _ in range(2):
            data = await fleet.stream()
            assert b"The router had an error" not in data
            assert data.endswith(DONE) or b'"code":"stream_broken"' in data
        replicas[0].answer = stream(told, *whole_answer)
        for _ in range(2):
            assert (await fleet.stream()).endswith(DONE)


@pytest.mark.parametrize("digits", [400, 5000])
async def test_a_usage_that_no_replica_means_is_not_believed(routed, digits) -> None:
    usage = {name: int("9" * 400) for name in ("prompt_tokens", "completion_tokens")}
    replica = ScriptedReplica()
    body = json.dumps({"choices": [], "usage": usage}).replace("9" * 400, "9" * digits)
    head = (
        f"HTTP/1.1 200 x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )

    async def answer(asked):
        asked.writer.write((head + body).encode())

    replica.answer = answer
    async with routed(replica) as fleet:
        for _ in range(3):
            response = await fleet.post()
            assert (response.status_code, response.text) == (200, body)


def test_text_that_looks_like_a_journal_is_text() -> None:
    journal = Journal(1, 1, wants_usage=False)
    text = '\n: tokens 0 1,2\n\ndata: {"error":{"message":"x"}}\n\n"choices":[],data: [DONE]\n\n'
    events = event(0, text, "begin 0 0", "tokens 0 4")
    assert shown(journal.strip(events)) == {0: text}
    assert not journal.complete
    assert journal.num_tokens == 1
