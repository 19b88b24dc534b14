"""What a request asks of sampling, in the engine's words. Ranges and the model's own defaults are
the processor's business; what a request leaves out, or gives as null, stays None."""

from typing import Any

from pagelet.agent.http.structured import requested_grammar
from pagelet.engine.processor import RequestedSampling
from pagelet.protocol.openai.chat import ChatCompletionRequest
from pagelet.protocol.openai.completions import CompletionRequest
from pagelet.protocol.openai.generation import GenerationRequest

_COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for completions; that for chat is what is left of the context."""

_SAME_NAME = (
    *("n", "temperature", "top_p", "top_k", "min_p", "min_tokens", "seed", "stop"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    *("allowed_token_ids", "bad_words", "truncate_prompt_tokens"),
    *("stop_token_ids", "ignore_eos", "skip_special_tokens", "include_stop_str_in_output"),
)


def chat_sampling(body: ChatCompletionRequest) -> RequestedSampling:
    """For a conversation."""
    max_tokens = body.max_completion_tokens
    return RequestedSampling(
        **_shared(body),
        max_tokens=body.max_tokens if max_tokens is None else max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
    )


def completion_sampling(body: CompletionRequest) -> RequestedSampling:
    """For a raw prompt. The engine makes at least one token, also where none is wanted; logprobs
    of an echoed prompt come with those of the answer."""
    prompt_logprobs = body.prompt_logprobs
    if prompt_logprobs is None and body.echo:
        prompt_logprobs = body.logprobs
    return RequestedSampling(
        **_shared(body),
        max_tokens=1 if body.max_tokens == 0 else body.max_tokens,
        default_max_tokens=_COMPLETION_MAX_TOKENS,
        logprobs=body.logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _shared(body: GenerationRequest) -> dict[str, Any]:
    shared = {name: getattr(body, name) for name in _SAME_NAME}
    return {**shared, "structured": requested_grammar(body)}
