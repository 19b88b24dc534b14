"""From the engine core's tokens to the deltas that callers read: text, logprobs, stop strings.

It runs on the event loop of the API process, between the core's socket and the callers. An answer
is here from `register` until its last delta, and leaves by one path whatever ends it.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pagelet.engine.observer import EngineObserver, RequestTimes
from pagelet.engine.outputs import Logprob, PositionLogprobs, PromptPositions, RequestOutput
from pagelet.engine.resume import end_of
from pagelet.protocol.engine import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    TokenLogprobs,
)
from pagelet.protocol.sampling import SamplingParams
from pagelet.text.detokenizer import Detokenizer
from pagelet.text.stop import StopMatcher
from pagelet.text.tokenizer import Tokenizer

Sink = Callable[[RequestOutput], None]
"""Takes the deltas of one answer, in order; the last one has a `finish_reason`. It must not raise
nor wait."""

MIN_LOGPROB: Final = -9999.0
"""What stands for minus infinity (and for a logprob that is no number): JSON has neither."""


@dataclasses.dataclass(slots=True)
class _Answer:
    request_id: int
    index: int
    engine_index: int
    sink: Sink
    params: SamplingParams
    detokenizer: Detokenizer | None
    stop: StopMatcher | None
    num_prompt_tokens: int
    arrival: float
    num_generated: int = 0
    num_cached: int = 0
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    resumed_text: str = ""
    """Text of tokens that the request came with; goes with the first delta."""

    def delta(self, text: str, token_ids: list[int]) -> RequestOutput:
        return RequestOutput(
            self.index,
            text,
            token_ids,
            self.num_prompt_tokens,
            self.num_generated,
            self.num_cached,
        )

    def take_resumed_text(self) -> str:
        """Once."""
        text, self.resumed_text = self.resumed_text, ""
        return text


class OutputProcessor:
    """All answers that are being generated.

    Every output of a core becomes one delta, also one without text (part of a character, or the
    possible beginning of a stop string): its tokens count for usage and may carry logprobs. Whoever
    has no use for such a delta skips it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        observer: EngineObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokenizer = tokenizer
        self._observer = observer or EngineObserver()
        self._clock = clock
        self._answers: dict[int, _Answer] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def register(
        self, request: EngineCoreRequest, sink: Sink, *, index: int = 0, engine_index: int = 0
    ) -> bool:
        """From now on `sink` gets the deltas of this request, answer `index` of its prompt.

        Returns whether there is anything to generate: tokens that the request comes with may end it
        already, and then `sink` has got its last delta."""
        assert request.request_id not in self._answers, "request ids must be unique"
        params = request.params
        detokenizer = (
            self._tokenizer.detokenizer(params.skip_special_tokens) if params.detokenize else None
        )
        stop = (
            StopMatcher(tuple(params.stop), params.include_stop_str_in_output)
            if params.stop
            else None
        )
        answer = self._answers[request.request_id] = _Answer(
            request.request_id,
            index,
            engine_index,
            sink,
            params,
            detokenizer,
            stop,
            len(request.prompt_token_ids),
            request.arrival_time,
        )
        return self._resume(answer, request) if request.output_token_ids else True

    def _resume(self, answer: _Answer, request: EngineCoreRequest) -> bool:
        """Takes in the tokens that the request comes with, whose text was passed on."""
        token_ids, end = request.output_token_ids, end_of(request)
        shows_last = end is None or end[0] != "stop" or answer.params.include_stop_str_in_output
        shown = token_ids if shows_last else token_ids[:-1]
        answer.resumed_text, _ = self._text(answer, shown, None)
        answer.num_generated = len(token_ids)
        stopped = answer.stop.matched if answer.stop is not None else None
        if stopped is None and end is None:
            return True
        delta = answer.delta("" if stopped is not None else self._flush(answer), [])
        delta.resumed_text = answer.take_resumed_text()
        if answer.stop is not None and answer.stop.matched is not None:
            delta.finish_reason, delta.stop_reason = "stop", answer.stop.matched
        elif end is not None:
            delta.finish_reason, delta.stop_reason = end
        self._end(answer, delta)
        return False

    def process(self, outputs: EngineCoreOutputs) -> list[int]:
        """Hands out the deltas of a step. Returns the requests that ended here with a stop string
        while the core still generates: it must be told to abort them."""
        now = self._clock()
        to_abort = []
        for output in outputs.outputs:
            answer = self._answers.get(output.request_id)
            if answer is None:
                continue  # ended here, before the core knew
            delta = self._take(answer, output, now)
            if delta.finish_reason is None:
                answer.sink(delta)
                continue
            if output.finish_reason is None:
                to_abort.append(answer.request_id)
            self._end(answer, delta)
        return to_abort

    def abort(self, request_ids: Iterable[int]) -> list[int]:
        """Ends these answers with `finish_reason` "abort", as nobody reads them any longer.
        Returns those that were still being generated: the core must be told."""
        answers = [self._answers[id] for id in request_ids if id in self._answers]
        for answer in answers:
            self._break_off(answer, "abort", None)
        return [answer.request_id for answer in answers]

    def forget_all(self) -> None:
        """No answer is read any longer, and no sink is told."""
        self._answers.clear()

    def engine_lost(self, engine_index: int, error: str) -> None:
        """Ends all answers of an engine core that died, with `finish_reason` "error"."""
        for answer in list(self._answers.values()):
            if answer.engine_index == engine_index:
                self._break_off(answer, "error", error)

    def _break_off(self, answer: _Answer, reason: FinishReason, error: str | None) -> None:
        delta = answer.delta(self._flush(answer), [])
        delta.finish_reason, delta.error = reason, error
        self._end(answer, delta)

    def _end(self, answer: _Answer, delta: RequestOutput) -> None:
        """The one way out."""
        assert delta.finish_reason is not None
        del self._answers[answer.request_id]
        delta.times = RequestTimes(
            params=answer.params,
            finish_reason=delta.finish_reason,
            num_prompt_tokens=answer.num_prompt_tokens,
            num_cached_tokens=answer.num_cached,
            num_generated_tokens=answer.num_generated,
            arrival=answer.arrival,
            scheduled=answer.scheduled,
            first_token=answer.first_token,
            last_token=answer.last_token,
        )
        answer.sink(delta)
        self._observer.on_finished(answer.engine_index, delta.times)

    def _take(self, answer: _Answer, output: EngineCoreOutput, now: float) -> RequestOutput:
        token_ids = output.new_token_ids
        text, count = self._text(answer, token_ids, output.finish_reason, output.ends_in_text)
        stopped = answer.stop.matched if answer.stop is not None else None
        if count < len(token_ids):
            token_ids = token_ids[:count]
        if token_ids:
            answer.num_generated += len(token_ids)
            if answer.first_token:
                self._observer.on_tokens(
                    answer.engine_index, len(token_ids), now - answer.last_token
                )
            else:
                answer.first_token = now
                self._observer.on_first_token(answer.engine_index, now - answer.arrival)
            answer.last_token = now
        if output.scheduled_time:
            answer.scheduled = output.scheduled_time
        if output.num_cached_tokens:
            answer.num_cached = output.num_cached_tokens
        if output.pooled is not None:
            answer.first_token = answer.last_token = now  # when the prompt was computed
        delta = answer.delta(text, token_ids)
        delta.pooled = output.pooled
        if answer.resumed_text:
            delta.resumed_text = answer.take_resumed_text()
        if stopped is not None:
            delta.finish_reason, delta.stop_reason = "stop", stopped
        elif output.finish_reason is not None:
            delta.finish_reason, delta.stop_reason = output.finish_reason, output.stop_reason
            delta.error, delta.request_fault = output.error, output.request_fault
        if output.logprobs is not None:
            delta.logprobs = [self._logprobs(entry) for entry in output.logprobs[:count]]
        if output.prompt_logprobs is not None:
            delta.prompt_logprobs = PromptPositions(output.prompt_logprobs, self._logprobs)
        return delta

    def _text(
        self,
        answer: _Answer,
        token_ids: list[int],
        finish_reason: FinishReason | None,
        ends_in_text: bool = False,
    ) -> tuple[str, int]:
        """The text that may be shown now, and how many of the tokens the answer keeps."""
        count = len(token_ids)
        detokenizer = answer.detokenizer
        if detokenizer is None:
            return "", count
        shown: Sequence[int] = token_ids
        stopped = finish_reason == "stop" and not ends_in_text
        if stopped and not answer.params.include_stop_str_in_output:
            shown = token_ids[:-1]  # the token that stopped it is not part of the text
        if answer.stop is None:
            text = detokenizer.push(shown)
            return (text if finish_reason is None else text + detokenizer.finish()), count
        # One token at a time, so that the answer ends with the token that completed the string.
        text = ""
        before = answer.num_generated
        for number, token_id in enumerate(shown, start=1):
            armed = before + number >= answer.params.min_tokens
            text += answer.stop.push(detokenizer.push((token_id,)), armed)
            if answer.stop.matched is not None:
                return text, number
        return (text if finish_reason is None else text + self._flush(answer)), count

    def _flush(self, answer: _Answer) -> str:
        """What was held back when an answer ends. Characters may come out only now, and complete a
        stop string."""
        if answer.detokenizer is None:
            return ""
        text = answer.detokenizer.finish()
        if answer.stop is None:
            return text
        text = answer.stop.push(text)
        return text if answer.stop.matched is not None else text + answer.stop.finish()

    def _logprobs(self, entry: TokenLogprobs) -> PositionLogprobs:
        candidates = [
            self._logprob(token_id, logprob, rank)
            for rank, (token_id, logprob) in enumerate(
                zip(entry.token_ids, entry.logprobs, strict=True)
            )
        ]
        chosen = candidates[0]
        chosen.rank = entry.rank
        return PositionLogprobs(chosen, candidates[1:])

    def _logprob(self, token_id: int, logprob: float, rank: int) -> Logprob:
        text, data = self._tokenizer.token_text(token_id)
        # A comparison with NaN is false, so this catches it too.
        return Logprob(
            token_id, text, data, logprob if logprob > MIN_LOGPROB else MIN_LOGPROB, rank
        )
