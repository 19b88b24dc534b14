"""What rounding the weights costs: perplexity, and agreement with the unrounded model."""

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Final

from pagelet.bench.progress import Progress
from pagelet.engine.llm import LLM
from pagelet.engine.processor import RequestedSampling
from pagelet.protocol.config import DType, KVCacheDType, Quantization

_MAX_MODEL_LEN: Final = 2048
_PERPLEXITY_TOKENS: Final = 1024
"""A window of the text: no token is judged on more context than this."""


@dataclasses.dataclass(frozen=True)
class Numerics:
    """What a model is held in."""

    quantization: Quantization
    dtype: DType
    kv_cache_dtype: KVCacheDType = "auto"

    def __str__(self) -> str:
        return f"{self.quantization}, {self.dtype}, KV cache {self.kv_cache_dtype}"


@dataclasses.dataclass(frozen=True)
class Observed:
    """What one model did."""

    logprobs: list[float]  # of the text's tokens, but the first of each window
    choices: list[int]  # the most likely token at each of those positions
    answers: list[list[int]]  # greedy, to each prompt

    @property
    def perplexity(self) -> float:
        """The exponential of the mean negative logprob."""
        return math.exp(-math.fsum(self.logprobs) / len(self.logprobs))


@dataclasses.dataclass(frozen=True)
class Quality:
    """A model beside the one that it is held against."""

    numerics: Numerics
    perplexity: float
    perplexity_change: float
    """Relative: 0.01 is 1 % more than the reference's."""
    top_agreement: float
    """Share of the text's positions at which both find the same token the most likely."""
    mean_agreed_tokens: float
    """Of greedy answers until the first that differs, on average over the prompts."""
    answer_tokens: int
    """The most that `mean_agreed_tokens` can be."""


def observe(
    model: str,
    numerics: Numerics,
    text: str,
    prompts: Sequence[str],
    answer_tokens: int,
    progress: Progress,
) -> Observed:
    """Runs the model over the text and the prompts. Raises ConfigurationError if it cannot."""
    progress(f"{numerics}: loading")
    with contextlib.closing(
        LLM(
            model,
            quantization=numerics.quantization,
            dtype=numerics.dtype,
            kv_cache_dtype=numerics.kv_cache_dtype,
            max_model_len=_MAX_MODEL_LEN,
            max_num_seqs=32,
            num_blocks=1024,
            enable_prefix_caching=False,
            device="cpu",
        )
    ) as llm:
        progress(f"{numerics}: the text")
        beginning = llm.tokenizer.encode("")  # what the model expects first, such as <bos>
        tokens = llm.tokenizer.encode(text, add_special_tokens=False)
        windows = [
            beginning + tokens[start : start + _PERPLEXITY_TOKENS]
            for start in range(0, len(tokens), _PERPLEXITY_TOKENS)
        ]
        judged = RequestedSampling(max_tokens=1, temperature=0.0, prompt_logprobs=1)
        logprobs, choices = [], []
        for completion in llm.generate(windows, judged, progress=False):
            for position in completion.prompt_logprobs or []:
                if position is not None:
                    logprobs.append(position.chosen.logprob)
                    choices.append(position.top[0].token_id)
        progress(f"{numerics}: {len(prompts)} answers")
        greedy = RequestedSampling(max_tokens=answer_tokens, temperature=0.0, ignore_eos=True)
        completions = llm.generate(list(prompts), greedy, progress=False)
    answers = [completion.outputs[0].token_ids for completion in completions]
    return Observed(logprobs, choices, answers)


def compare(numerics: Numerics, observed: Observed, reference: Observed) -> Quality:
    """Holds a model against the reference on the same text and prompts."""
    pairs = list(zip(observed.choices, reference.choices, strict=True))
    agreed = [
        _common_length(mine, theirs)
        for mine, theirs in zip(observed.answers, reference.answers, strict=True)
    ]
    return Quality(
        numerics,
        observed.perplexity,
        observed.perplexity / reference.perplexity - 1,
        sum(mine == theirs for mine, theirs in pairs) / len(pairs),
        sum(agreed) / len(agreed),
        max(map(len, reference.answers)),
    )


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens until the first that differs."""
    for index, (mine, theirs) in enumerate(zip(first, second, strict=False)):
        if mine != theirs:
            return index
    return min(len(first), len(second))
