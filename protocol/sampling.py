"""Sampling parameters as they cross from the API process to the engine core."""

import msgspec


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How one request's tokens are chosen and when it stops.

    The values follow OpenAI's API and vLLM's extensions of it. Values are validated where a
    request enters (`pagelet.engine.processor`), so the engine core may trust them.
    """

    n: int = 1
    """Answers for the one prompt; the processor turns each into an engine request of its own."""
    max_tokens: int | None = None
    """Most tokens to generate; None means up to the model's context length."""
    min_tokens: int = 0
    """End-of-sequence and stop tokens are masked until this many tokens are out."""
    temperature: float = 1.0
    """0 is greedy; otherwise logits are divided by it."""
    top_p: float = 1.0
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than `min_p` times the most likely one."""
    repetition_penalty: float = 1.0
    """Divides (or multiplies, if negative) logits of tokens of the prompt and the output."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token of the output."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for every time that it is in the output."""
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    """The only tokens that may be drawn; None for all."""
    bad_words: list[str] = []
    """Texts that must not be generated; the processor spells them in `bad_word_token_ids`."""
    bad_word_token_ids: list[list[int]] = []
    """Sequences of tokens whose last one is not drawn where the answer ends in those before it."""
    seed: int | None = None
    """Random numbers depend on (seed, position) alone. The processor fills in fresh entropy for
    None, so it is never None inside of the engine."""
    stop: list[str] = []
    """Stop strings, matched in the API process; the engine core does not look at them."""
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    logprobs: int | None = None
    """Return the sampled token's logprob and those of this many most likely tokens (raw model
    logprobs, before penalties and temperature)."""
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < 1e-5
