"""Completions of raw prompts: `POST /v1/completions`."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from pagelet.protocol.openai.common import PromptLogprobs, Usage
from pagelet.protocol.openai.fields import (
    Integer,
    ResponseBody,
    TokenId,
    invalid,
    one_of,
    unsupported,
)
from pagelet.protocol.openai.generation import GenerationRequest


def _prompt_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "<text>"
    if not isinstance(value, list) or not value:
        return "<texts>"
    if isinstance(value[0], str):
        return "<texts>"
    return "<token lists>" if isinstance(value[0], list) else "<tokens>"


TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Prompt = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[str], Field(min_length=1, fail_fast=True), Tag("<texts>")]
    | Annotated[TokenIds, Field(min_length=1), Tag("<tokens>")]
    | Annotated[list[TokenIds], Field(min_length=1, fail_fast=True), Tag("<token lists>")],
    Discriminator(_prompt_kind),
    one_of(str, list),
]


def prompts_of(given: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """The prompts of a batch, each text or token ids."""
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], int):
        return [given]
    return list(given)


class CompletionRequest(GenerationRequest):
    """`max_tokens` defaults to 16, as in OpenAI's API."""

    prompt: Prompt
    echo: bool | None = None
    logprobs: Integer | None = None
    best_of: Integer | None = None
    """Answers to draw, of which the `n` likeliest a token are told."""
    suffix: Annotated[
        Any, unsupported("", remedy="the models served here do not fill in the middle")
    ] = None

    @model_validator(mode="after")
    def _consistent(self) -> "CompletionRequest":
        self.check_stream()
        if self.echo and self.truncate_prompt_tokens is not None:
            raise invalid("truncate_prompt_tokens", "cannot go with 'echo': true")
        if self.best_of is not None:
            if self.n is not None and self.n < 1:
                raise invalid("n", "must be at least 1")
            if self.best_of < (self.n or 1):
                raise invalid("best_of", f"must be at least 'n' (here {self.n or 1})")
        if self.num_drawn > (self.n or 1):
            if self.stream:
                raise invalid("best_of", "above 'n' is not available with 'stream': true")
            if self.use_beam_search:
                raise invalid("best_of", "above 'n' cannot go with 'use_beam_search': true")
        if self.use_beam_search:
            if self.max_tokens == 0:
                raise invalid("max_tokens", "must be at least 1 with 'use_beam_search': true")
            if self.echo and self.logprobs is not None:
                raise invalid("echo", "with 'logprobs' cannot go with 'use_beam_search': true")
        return self

    @property
    def num_drawn(self) -> int:
        """Answers to each prompt, those included that are not told."""
        if self.best_of is not None:
            return self.best_of
        return 1 if self.n is None else self.n

    def prompts(self) -> list[str | list[int]]:
        """The prompts of the batch, each text or token ids."""
        return prompts_of(self.prompt)


class CompletionLogprobs(ResponseBody):
    """Logprobs in parallel lists, one entry a token; None where nothing precedes the token.

    `text_offset` counts characters from the start of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def extended(self, later: "CompletionLogprobs") -> "CompletionLogprobs":
        """These and those of the tokens that follow."""
        return CompletionLogprobs(
            tokens=self.tokens + later.tokens,
            token_logprobs=self.token_logprobs + later.token_logprobs,
            top_logprobs=self.top_logprobs + later.top_logprobs,
            text_offset=self.text_offset + later.text_offset,
        )


class CompletionChoice(ResponseBody):
    """One answer; `index` is (position of its prompt) * n + (which of the n)."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: int | str | None = None
    prompt_logprobs: PromptLogprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Completion(ResponseBody):
    """The whole answer to a request that does not stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str | None = None
