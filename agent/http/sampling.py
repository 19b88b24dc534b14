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
_LEAST_TOP_P = 1e-9
"""The most likely token has more by itself: what OpenAI's API means by 0, which the engine, as
vLLM's, refuses."""

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
    logprobs = body.logprobs
    if logprobs is None and body.num_drawn > (body.n or 1):
        logprobs = 0  # they tell which answers are the best
    return RequestedSampling(
        **_shared(body) | ({} if body.best_of is None else {"n": body.best_of}),
        max_tokens=1 if body.max_tokens == 0 else body.max_tokens,
        default_max_tokens=_COMPLETION_MAX_TOKENS,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def chat_names(body: ChatCompletionRequest) -> dict[str, str]:
    """What the client of a conversation calls the engine's fields."""
    names = {"prompt": "messages", "logprobs": "top_logprobs"}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    if body.thinking_budget is None:
        names["thinking_budget"] = "thinking_token_budget"
    return names


def completion_names(body: CompletionRequest) -> dict[str, str]:
    """What the client of a raw prompt calls the engine's fields."""
    return {} if body.best_of is None else {"n": "best_of"}


def _shared(body: GenerationRequest) -> dict[str, Any]:
    shared = {name: getattr(body, name) for name in _SAME_NAME}
    if body.top_p == 0:
        shared["top_p"] = _LEAST_TOP_P
    return {**shared, "structured": requested_grammar(body)}
