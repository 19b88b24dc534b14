"""Parts of answers that several routes share."""

from pagelet.protocol.openai.fields import ResponseBody


class PromptTokensDetails(ResponseBody):
    """`cached_tokens` of the prompt were found in the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(ResponseBody):
    """`reasoning_tokens` of the answers were thinking, shown or not."""

    reasoning_tokens: int


class Usage(ResponseBody):
    """What was read and written, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


def make_usage(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int, reasoning_tokens: int = 0
) -> Usage:
    """Usage with its total."""
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=reasoning_tokens),
    )


class PromptLogprob(ResponseBody):
    """A candidate at a position of the prompt (an extension, as in vLLM)."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""One a prompt token, by token id; None for the first."""
