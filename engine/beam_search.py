"""Beam search: the most likely answers to a prompt, instead of drawn ones.

The rules are those of transformers' `generate(num_beams=...)` with its default early stopping. Each
step extends every live beam by its most likely tokens. Of all extensions the `width` best live on;
one that ends the answer is kept aside if it is among the `width` best. A finished answer scores its
log-probability over (its tokens, the end included) ** `length_penalty`. The search is over once
`width` answers have finished and the best live beam scores no more than the worst of them, or at
`max_tokens`, where the `width` best count as finished.

The engine sees one request of one token for each beam and step; what a beam has in common with the
others, and with itself a step before, is in the prefix cache.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from pagelet.engine.outputs import PositionLogprobs
from pagelet.engine.sampling_request import MAX_LOGPROBS, RequestedSampling
from pagelet.protocol.engine import EngineCoreRequest
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.sampling import SamplingParams

MOST_LENGTH_PENALTY: Final = 10.0
_NEUTRAL: Final = {
    "min_tokens": 0,
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
}
_NOT_SEARCHED: Final = (
    *("stop", "stop_token_ids", "logit_bias", "allowed_token_ids", "bad_words"),
    *("prompt_logprobs", *_NEUTRAL),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Beam:
    """An answer, or the beginning of one."""

    token_ids: list[int]
    logprob: float
    """Of all its tokens together, by the model alone."""
    positions: list[PositionLogprobs]
    """One a token, if logprobs were asked for."""
    finish_reason: Literal["stop", "length"] | None = None


def check_searchable(sampling: RequestedSampling, length_penalty: float) -> None:
    """Raises InvalidRequest for what would change an answer and cannot go with beam search.
    Temperature, seed and what cuts off unlikely tokens say how to draw; nothing is drawn."""
    for name in _NOT_SEARCHED:
        value = getattr(sampling, name)
        if value is not None and value != [] and value != {} and value != _NEUTRAL.get(name):
            raise _refusal(name)
    if sampling.structured is not None:
        raise _refusal(sampling.structured.param)
    if sampling.thinking is not None:
        raise _refusal("thinking_budget")
    if not -MOST_LENGTH_PENALTY <= length_penalty <= MOST_LENGTH_PENALTY:
        raise InvalidRequest(
            f"length_penalty must be at least {-MOST_LENGTH_PENALTY:g} and at most "
            f"{MOST_LENGTH_PENALTY:g}, got {length_penalty}",
            "length_penalty",
        )


def _refusal(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"'{name}' cannot go with beam search, which ranks answers by the model's own "
        "probabilities: leave it out",
        name,
    )


class BeamSearch:
    """Ask the engine for `requests`, hand what it says to `advance`, and again, until `done`."""

    def __init__(
        self, request: EngineCoreRequest, width: int, length_penalty: float, logprobs: int | None
    ) -> None:
        """`request` is the prompt's, as the processor made it. `logprobs` is how many candidates
        `positions` shall tell; None for no positions. Raises InvalidRequest."""
        params = request.params
        assert params.max_tokens is not None
        self._ends = frozenset(() if params.ignore_eos else request.eos_token_ids)
        # Of one beam's extensions, all but its ends may be among the `width` that live on.
        num_candidates = width + len(self._ends)
        if num_candidates > MAX_LOGPROBS:
            raise InvalidRequest(
                f"n (the width of a beam search) must be at most {MAX_LOGPROBS - len(self._ends)} "
                f"with this model, got {width}",
                "n",
            )
        self.params = params
        self._request = request
        self._width = width
        self._length_penalty = length_penalty
        self._logprobs = logprobs
        self._max_tokens = params.max_tokens
        self._step = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            seed=0,
            logprobs=max(num_candidates, logprobs or 0),
            detokenize=False,
        )
        self._live = [Beam([], 0.0, [])]
        self._finished: list[Beam] = []

    @property
    def num_prompt_tokens(self) -> int:
        """Of the prompt that all beams continue."""
        return len(self._request.prompt_token_ids)

    @property
    def done(self) -> bool:
        """Whether `best` is final."""
        if not self._live:
            return True
        if len(self._finished) < self._width:
            return False
        return self._score(self._live[0]) <= self._score(self._finished[-1])

    @property
    def best(self) -> list[Beam]:
        """The finished answers, the best first: `width` of them once the search is done, fewer
        only where the vocabulary has no more."""
        return self._finished

    def shown(self, beam: Beam) -> list[int]:
        """The tokens that make a finished answer's text."""
        ended = beam.finish_reason == "stop" and not self.params.include_stop_str_in_output
        return beam.token_ids[:-1] if ended else beam.token_ids

    def requests(self) -> list[EngineCoreRequest]:
        """One for each live beam, their `request_id`s still to be given."""
        prompt = self._request.prompt_token_ids
        return [
            msgspec.structs.replace(
                self._request,
                prompt_token_ids=prompt + beam.token_ids,
                params=self._step,
                eos_token_ids=[],
            )
            for beam in self._live
        ]

    def advance(self, positions: Sequence[PositionLogprobs]) -> None:
        """`positions` are what the requests came to, in order: their most likely tokens count, not
        the one that was chosen."""
        extensions = [
            (beam.logprob + candidate.logprob, beam, position, candidate)
            for beam, position in zip(self._live, positions, strict=True)
            for candidate in position.top
        ]
        extensions.sort(key=lambda extension: extension[0], reverse=True)
        self._live = []
        for rank, (logprob, beam, position, candidate) in enumerate(extensions):
            reason = self._end(candidate.token_id, len(beam.token_ids) + 1)
            if reason is not None and rank >= self._width:
                continue
            told = beam.positions
            if self._logprobs is not None:
                told = [*told, PositionLogprobs(candidate, position.top[: self._logprobs])]
            extended = Beam([*beam.token_ids, candidate.token_id], logprob, told, reason)
            (self._live if reason is None else self._finished).append(extended)
            if len(self._live) == self._width:
                break
        self._finished.sort(key=self._score, reverse=True)
        del self._finished[self._width :]

    def _end(self, token_id: int, num_tokens: int) -> Literal["stop", "length"] | None:
        """What ends a beam of so many tokens, the last of which is `token_id`."""
        if token_id in self._ends:
            return "stop"
        return "length" if num_tokens == self._max_tokens else None

    def _score(self, beam: Beam) -> float:
        return float(beam.logprob / len(beam.token_ids) ** self._length_penalty)
