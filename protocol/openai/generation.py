"""What requests for an answer have in common, of either API."""

from typing import Annotated, Any, Literal

from pydantic import Field

from pagelet.protocol.openai.fields import (
    Integer,
    Metadata,
    Number,
    RequestBody,
    SchemaOrText,
    StringOrStrings,
    Timeout,
    TokenId,
    invalid,
    unsupported,
)
from pagelet.protocol.openai.routing import RouterHints
from pagelet.protocol.openai.structured import Choices, ResponseFormat, StructuredOutputs

ServiceTier = Literal["auto", "default", "flex", "scale", "priority"]
"""Asks for a way to be charged; answers tell that they had the default one."""
CacheRetention = Literal["in_memory", "in-memory", "24h"]
"""How long a prompt is to stay in a cache at least. Every prompt stays as long as there is room."""


class StreamOptions(RequestBody):
    """What a stream tells besides its text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """The usage so far in every chunk; has effect with `include_usage` only."""
    include_obfuscation: Annotated[Any, unsupported(False)] = None


class GenerationRequest(RequestBody):
    """Fields that chat completions and completions share; None means the model's default."""

    model: str
    n: Integer | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Integer | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: dict[Integer, Number] | None = None
    seed: Integer | None = None
    stop: StringOrStrings | None = None

    # Extensions, named as in vLLM.
    top_k: Integer | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    allowed_token_ids: Annotated[list[TokenId], Field(fail_fast=True)] | None = None
    bad_words: Annotated[list[str], Field(fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Integer | None = None
    truncate_prompt_tokens: Integer | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    add_special_tokens: bool | None = None
    """What the tokenizer puts around a text, such as BOS. Default: true for a prompt, false for a
    chat, whose template spells its special tokens."""
    prompt_logprobs: Integer | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    """Lets logprobs name tokens `token_id:5`."""
    priority: Integer | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    timeout: Timeout | None = None
    pagelet: RouterHints | None = None
    use_beam_search: bool | None = None
    """The `n` most likely answers, the best first, instead of drawn ones."""
    length_penalty: Number | None = None
    """Of a beam search; default 1."""

    # What the answer must match; one of them.
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None

    # Labels and hints: they change no answer.
    user: str | None = None
    metadata: Metadata | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: CacheRetention | None = None
    store: bool | None = None
    """For a vendor's own records, which are not here; responses are what clients find again."""

    service_tier: ServiceTier | None = None
    spaces_between_special_tokens: Annotated[Any, unsupported(True, False)] = None

    # vLLM's, for what is not here.
    mm_processor_kwargs: Annotated[Any, unsupported({})] = None
    kv_transfer_params: Annotated[Any, unsupported({})] = None
    vllm_xargs: Annotated[Any, unsupported({})] = None
    logits_processors: Annotated[Any, unsupported([])] = None

    # SGLang's, which vllm-router adds to every request with these values.
    no_stop_trim: Annotated[Any, unsupported(False)] = None
    return_hidden_states: Annotated[Any, unsupported(False)] = None
    separate_reasoning: Annotated[Any, unsupported(True)] = None
    stream_reasoning: Annotated[Any, unsupported(True)] = None

    @property
    def streams(self) -> bool:
        """Whether the answer comes as server-sent events."""
        return bool(self.stream)

    @property
    def includes_usage(self) -> bool:
        """Whether a last chunk with the usage was asked for."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def includes_continuous_usage(self) -> bool:
        """Whether the usage so far was asked for in every chunk."""
        options = self.stream_options
        return bool(options and options.include_usage and options.continuous_usage_stats)

    def check_stream(self) -> None:
        """Raises for options that go only with, or only without, `stream`."""
        if self.stream_options is not None and not self.streams:
            raise invalid("stream_options", "is only allowed when 'stream' is true")
        if self.prompt_logprobs is not None and self.streams:
            raise invalid("prompt_logprobs", "is not available with 'stream': true")
        if self.pagelet is not None and self.pagelet.resume is not None and not self.streams:
            raise invalid("pagelet", "can resume an answer only when 'stream' is true")
        if self.use_beam_search and self.streams:
            raise invalid("use_beam_search", "is not available with 'stream': true")
        if self.length_penalty not in (None, 1) and not self.use_beam_search:
            raise invalid("length_penalty", "is only allowed when 'use_beam_search' is true")
