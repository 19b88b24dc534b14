"""Deltas: text, stop strings, logprobs, counts, times, and that every answer leaves."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from pagelet.engine.observer import EngineObserver, RequestTimes
from pagelet.engine.output_processor import OutputProcessor
from pagelet.engine.outputs import RequestOutput
from pagelet.protocol.engine import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    SchedulerStats,
    TokenLogprobs,
)
from pagelet.protocol.sampling import SamplingParams
from pagelet.text.token_decoding import BYTE_CHARACTERS
from pagelet.text.tokenizer import Tokenizer

EOS = 256


def make_tokenizer() -> Tokenizer:
    """One token a byte, and an end token."""
    backend = Backend(models.BPE(BYTE_CHARACTERS.copy(), []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    return Tokenizer(backend, special_tokens={"eos_token": "<end>"})


TOKENIZER = make_tokenizer()


class Recorder(EngineObserver):
    def __init__(self) -> None:
        self.first: list[float] = []
        self.tokens: list[tuple[int, float]] = []
        self.finished: list[RequestTimes] = []

    def on_first_token(self, engine_index: int, seconds: float) -> None:
        self.first.append(seconds)

    def on_tokens(self, engine_index: int, tokens: int, seconds: float) -> None:
        self.tokens.append((tokens, seconds))

    def on_finished(self, engine_index: int, times: RequestTimes) -> None:
        self.finished.append(times)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Harness:
    """An output processor, and all that came out of it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.observer = Recorder()
        self.processor = OutputProcessor(TOKENIZER, self.observer, self.clock)
        self.deltas: dict[int, list[RequestOutput]] = {}

    def add(self, request_id: int = 1, engine_index: int = 0, **params: object) -> None:
        request = EngineCoreRequest(
            request_id=request_id,
            external_id=f"r{request_id}",
            prompt_token_ids=[1, 2, 3],
            params=SamplingParams(**params),  # type: ignore[arg-type]
            arrival_time=99.0,
        )
        deltas = self.deltas[request_id] = []
        self.processor.register(request, deltas.append, engine_index=engine_index)

    def send(self, *outputs: EngineCoreOutput) -> list[int]:
        return self.processor.process(EngineCoreOutputs(0.0, list(outputs), SchedulerStats()))

    def text(self, request_id: int = 1) -> str:
        return "".join(delta.text for delta in self.deltas[request_id])

    def merged(self, request_id: int = 1) -> RequestOutput:
        first, *rest = self.deltas[request_id]
        for delta in rest:
            first.merge(delta)
        return first


def test_an_answer_from_first_to_last_token() -> None:
    harness = Harness()
    harness.add()
    assert not harness.send(
        EngineCoreOutput(1, list(b"H"), num_cached_tokens=2, scheduled_time=99.5)
    )
    harness.clock.now = 101.0
    harness.send(EngineCoreOutput(1, list(b"i!")))
    harness.clock.now = 103.0
    assert not harness.send(EngineCoreOutput(1, [EOS], "stop"))
    assert len(harness.processor) == 0
    answer = harness.merged()
    assert (answer.text, answer.token_ids) == ("Hi!", [*b"Hi!", EOS])
    assert (answer.finish_reason, answer.stop_reason) == ("stop", None)
    assert (answer.num_prompt_tokens, answer.num_generated_tokens) == (3, 4)
    assert answer.num_cached_tokens == 2
    assert harness.observer.first == [1.0]
    assert harness.observer.tokens == [(2, 1.0), (1, 2.0)]
    [times] = harness.observer.finished
    assert (times.arrival, times.scheduled) == (99.0, 99.5)
    assert (times.first_token, times.last_token) == (100.0, 103.0)
    assert (times.num_generated_tokens, times.num_cached_tokens) == (4, 2)


def test_half_a_character_waits_and_is_flushed_at_the_end() -> None:
    harness = Harness()
    harness.add()
    smile = "🙂".encode()
    harness.send(EngineCoreOutput(1, list(smile[:3])))
    assert [(d.text, d.num_generated_tokens) for d in harness.deltas[1]] == [("", 3)]
    harness.send(EngineCoreOutput(1, list(smile[3:] + smile[:2]), "length"))
    assert harness.text() == "🙂\ufffd"


def test_stop_string_ends_the_answer_and_aborts_in_the_core() -> None:
    harness = Harness()
    harness.add(stop=["STOP"])
    assert harness.send(EngineCoreOutput(1, list(b"one ST"))) == []
    assert harness.text() == "one "
    assert harness.send(EngineCoreOutput(1, list(b"OP and more"))) == [1]
    last = harness.deltas[1][-1]
    assert (harness.text(), last.finish_reason, last.stop_reason) == ("one ", "stop", "STOP")
    assert last.token_ids == list(b"OP")
    assert last.num_generated_tokens == len("one STOP")
    # The core may have sent more before it heard.
    assert harness.send(EngineCoreOutput(1, list(b"late"), "length")) == []
    assert len(harness.deltas[1]) == 2
    assert len(harness.observer.finished) == 1


def test_stop_string_in_the_last_token_needs_no_abort() -> None:
    harness = Harness()
    harness.add(stop=["b"])
    assert harness.send(EngineCoreOutput(1, list(b"ab"), "length")) == []
    assert (harness.merged().finish_reason, harness.text()) == ("stop", "a")


def test_held_back_text_comes_when_the_answer_ends() -> None:
    for reason in ("stop", "length", "abort"):
        harness = Harness()
        harness.add(stop=["</s>"])
        harness.send(EngineCoreOutput(1, list(b"a</")))
        tokens = [EOS] if reason == "stop" else []
        harness.send(EngineCoreOutput(1, tokens, reason))
        assert harness.text() == "a</"


def test_stop_string_that_the_flush_completes() -> None:
    harness = Harness()
    harness.add(stop=["\ufffd"])
    harness.send(EngineCoreOutput(1, [ord("a"), 0xF0]))
    harness.send(EngineCoreOutput(1, [], "length"))
    assert (harness.text(), harness.merged().stop_reason) == ("a", "\ufffd")


def test_min_tokens_disarms_stop_strings() -> None:
    harness = Harness()
    harness.add(stop=["b"], min_tokens=4)
    assert harness.send(EngineCoreOutput(1, list(b"ababab"))) == [1]
    assert (harness.text(), harness.merged().num_generated_tokens) == ("aba", 4)
    harness.add(2, stop=["b"], min_tokens=5)
    assert harness.send(EngineCoreOutput(2, list(b"ababab"))) == [2]
    assert (harness.text(2), harness.merged(2).num_generated_tokens) == ("ababa", 6)


@given(
    data=st.lists(st.sampled_from(list("ab🙂".encode())), max_size=20),
    stop=st.lists(st.text("ab🙂\ufffd", min_size=1, max_size=3), max_size=3),
    include=st.booleans(),
    min_tokens=st.integers(0, 5),
    sizes=st.lists(st.integers(1, 4), max_size=20),
    reason=st.sampled_from(["stop", "length"]),
)
def test_no_chunking_changes_the_answer(
    data: list[int],
    stop: list[str],
    include: bool,
    min_tokens: int,
    sizes: list[int],
    reason: str,
) -> None:
    answers = []
    tokens = [*data, EOS if reason == "stop" else ord("b")]
    for cut in (sizes, [len(tokens)], [1] * len(tokens)):
        harness = Harness()
        harness.add(stop=stop, include_stop_str_in_output=include, min_tokens=min_tokens)
        rest = tokens
        for size in [*cut, len(tokens)]:
            chunk, rest = rest[:size], rest[size:]
            logprobs = [TokenLogprobs([token], [-1.0], 1) for token in chunk]
            last = None if rest else reason
            harness.send(EngineCoreOutput(1, chunk, last, logprobs=logprobs))  # type: ignore[arg-type]
            if not rest:
                break
        assert len(harness.processor) == 0
        answer = harness.merged()
        assert [p.chosen.token_id for p in answer.logprobs or []] == answer.token_ids
        assert len(answer.token_ids) == answer.num_generated_tokens
        answers.append(answer)
    assert answers[0] == answers[1] == answers[2]


def test_logprobs_have_exact_bytes_and_only_numbers() -> None:
    harness = Harness()
    harness.add(logprobs=3)
    entry = TokenLogprobs([0xE6, 0xE6, EOS, 999], [-0.5, -0.5, -math.inf, math.nan], 1)
    first = TokenLogprobs([ord("a")], [-2.0], 7)
    harness.send(EngineCoreOutput(1, [0xE6], logprobs=[entry], prompt_logprobs=[None, first]))
    [delta] = harness.deltas[1]
    assert delta.logprobs is not None
    [position] = delta.logprobs
    assert (position.chosen.token, position.chosen.token_bytes) == ("\ufffd", b"\xe6")
    assert [candidate.logprob for candidate in position.top] == [-0.5, -9999.0, -9999.0]
    assert [candidate.rank for candidate in position.top] == [1, 2, 3]
    assert [candidate.token for candidate in position.top] == ["\ufffd", "<end>", ""]
    assert delta.prompt_logprobs is not None
    assert delta.prompt_logprobs[0] is None
    assert delta.prompt_logprobs[1] is not None
    assert (delta.prompt_logprobs[1].chosen.token, delta.prompt_logprobs[1].chosen.rank) == ("a", 7)


def test_special_tokens_show_if_asked_for() -> None:
    harness = Harness()
    harness.add(1, skip_special_tokens=False)
    harness.add(2, skip_special_tokens=True)
    harness.add(3, detokenize=False)
    harness.send(*(EngineCoreOutput(i, [ord("a"), EOS, ord("b")], "length") for i in (1, 2, 3)))
    assert [harness.text(i) for i in (1, 2, 3)] == ["a<end>b", "ab", ""]


def test_stop_token_is_not_text_unless_asked_for() -> None:
    harness = Harness()
    harness.add(1, stop_token_ids=[ord("b")])
    harness.add(2, stop_token_ids=[ord("b")], include_stop_str_in_output=True)
    harness.send(*(EngineCoreOutput(i, list(b"ab"), "stop", ord("b")) for i in (1, 2)))
    assert [harness.text(i) for i in (1, 2)] == ["a", "ab"]
    assert harness.merged(1).stop_reason == ord("b")
    assert harness.merged(1).token_ids == list(b"ab")


def test_abort_ends_once() -> None:
    harness = Harness()
    harness.add(1)
    harness.add(2)
    harness.send(EngineCoreOutput(1, [0xF0]))
    assert harness.processor.abort([1, 77]) == [1]
    assert harness.processor.abort([1]) == []
    assert (harness.text(), harness.merged().finish_reason) == ("\ufffd", "abort")
    assert harness.send(EngineCoreOutput(1, [5], "abort")) == []
    assert len(harness.processor) == 1
    assert [times.finish_reason for times in harness.observer.finished] == ["abort"]


def test_a_lost_engine_ends_its_answers_and_no_others() -> None:
    harness = Harness()
    harness.add(1, engine_index=0)
    harness.add(2, engine_index=1)
    harness.processor.engine_lost(1, "the engine core was killed")
    assert not harness.deltas[1]
    [delta] = harness.deltas[2]
    assert (delta.finish_reason, delta.error) == ("error", "the engine core was killed")
    assert len(harness.processor) == 1
    harness.processor.engine_lost(0, "gone")
    assert len(harness.processor) == 0


def test_an_error_of_the_core_is_passed_on() -> None:
    harness = Harness()
    harness.add()
    harness.send(EngineCoreOutput(1, [], "error", error="no blocks left"))
    assert (harness.merged().finish_reason, harness.merged().error) == ("error", "no blocks left")
    assert harness.observer.finished[0].first_token == 0.0


def test_request_ids_are_unique() -> None:
    harness = Harness()
    harness.add(1)
    with pytest.raises(AssertionError, match="unique"):
        harness.add(1)
