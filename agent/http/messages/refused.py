"""What is wrong with a request for a message, as its clients know it."""

from pagelet.agent.http.conversation import renamed
from pagelet.agent.http.messages.request import NAMES
from pagelet.protocol.errors import ContextLengthExceeded, InvalidRequest


def in_anthropics_words(error: InvalidRequest) -> InvalidRequest:
    """Under the names of Anthropic's fields. Of what is too long it begins as in Anthropic's API:
    agents read there whether to shorten the conversation or to ask for fewer tokens, and send it
    again."""
    if not isinstance(error, ContextLengthExceeded):
        return renamed(error, NAMES)
    found, most, asked = error.prompt_tokens, error.context_length, error.max_tokens
    if asked is None:
        words = f"prompt is too long: {found} tokens > {most} maximum"
        return InvalidRequest(words, "messages", error.code)
    return InvalidRequest(
        f"input length and `max_tokens` exceed context limit: {found} + {asked} > {most}, "
        f"ask for at most {most - found}",
        "max_tokens",
        error.code,
    )
