"""What a router tells a replica beside the client's own request: the body field `pagelet`.

Only a router sends it, and a router refuses it from its clients. It lets a request skip the
tokenisation that the router has done, go on where another replica broke off, and use a cache salt
that no client can choose.
"""

from typing import Annotated

from pydantic import Field

from pagelet.protocol.openai.fields import Integer, RequestBody, TokenId, invalid
from pagelet.protocol.openai.response_input import InputItem, KeptItems

TENANT_HEADER = "x-pagelet-tenant"
"""Whose stored responses a request may see, of all those that one API key of a router's stores."""
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]


class ResumedAnswer(RequestBody):
    """How far one answer (choice index) had come in the stream that broke off."""

    begun: bool
    """Whether its first event was passed on: the role, or the echoed prompt, is not sent again."""
    token_ids: TokenIds
    """Tokens whose text and logprobs were passed on, as the journal told them."""
    cached_tokens: Annotated[int, Field(ge=0, le=2**32 - 1)] | None = None
    """Of its prompt, found in the cache where it began: what the usage tells. None if not told."""
    finished: bool = False
    """Whether its finish reason was passed on: nothing of it is generated or sent again."""


class Resume(RequestBody):
    """The state of a stream that broke off, from its journal."""

    created: Integer | None = None
    """As in the events that were passed on; messages do not tell it."""
    events: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    """How many were passed on, where they are numbered: in responses."""
    response_id: str | None = None
    """Of a response, as in the events that were passed on."""
    answers: Annotated[list[ResumedAnswer], Field(min_length=1)]
    """One a choice index: (number of the prompt) * n + (which of the n)."""


class RouterHints(RequestBody):
    """The field `pagelet` of a request."""

    prompt_token_ids: Annotated[list[TokenIds], Field(min_length=1)] | None = None
    """One list a prompt, in place of the chat template and the tokenizer."""
    seed: Integer | None = None
    """Taken if the request has no seed of its own, so that any replica can go on with it."""
    cache_salt: str | None = None
    """Takes the place of the request's own: KV blocks are shared among equal salts only."""
    shared_prefix_tokens: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    """KV blocks that lie wholly within so many first tokens are shared whatever the salt."""
    journal: bool = False
    """Whether a stream tells, in comment lines, which tokens its events have shown."""
    conversation: KeptItems | None = None
    """What `previous_response_id` stands for, wherever it is stored."""
    items: dict[str, InputItem] | None = None
    """Those that `input` refers to, by id, as far as they are stored anywhere."""
    resume: Resume | None = None
    """Go on with a stream from here; only with `stream`."""

    def check_one_answer(self, *, streams: bool) -> None:
        """For requests that have one answer, whose end is also that of the stream. Raises if they
        could not be resumed so."""
        if self.resume is None:
            return
        if not streams:
            raise invalid("pagelet", "can resume an answer only when 'stream' is true")
        if len(self.resume.answers) != 1 or self.resume.answers[0].finished:
            raise invalid("pagelet", "can resume one answer here, which has not finished")
