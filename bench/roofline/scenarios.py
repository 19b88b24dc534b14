"""Two questions that the field asks of a serving engine, answered on paper."""

import dataclasses
from collections.abc import Callable

from pagelet.bench.offline.model_cost import ModelCost
from pagelet.bench.roofline.hardware import GPUS
from pagelet.bench.roofline.model import Assumptions, Roofline
from pagelet.bench.roofline.presets import find_model

TTFT_SECONDS = 0.1
TOKENS_PER_SECOND = 3500
STREAMS = 128
_LONGEST = 1 << 17


def coder_on_a100s(assumed: Assumptions) -> Roofline:
    """Qwen2.5-Coder-32B in bfloat16 on four A100 80GB."""
    cost = ModelCost(find_model("qwen2.5-coder-32b"), "bfloat16", 16)
    return Roofline(cost, GPUS["a100"], 4, assumed)


@dataclasses.dataclass(frozen=True)
class Answer:
    """Whether it can be, and up to what."""

    question: str
    holds: bool
    words: str


def first_token(roofline: Roofline, prompt: int) -> Answer:
    """Whether the first token comes within 100 ms if the prompt's prefix is cached: how many of its
    tokens may be new."""

    def in_time(new: int) -> bool:
        return roofline.ttft_seconds(prompt, prompt - new) < TTFT_SECONDS

    new = _most(in_time, prompt)
    if new == 0:
        words = "not even with one new token"
    else:
        seconds = roofline.ttft_seconds(prompt, prompt - new)
        words = (
            f"with up to {new:,} new tokens ({100 * new / prompt:.0f} %, {seconds * 1e3:.0f} ms); "
            f"without a cached prefix it takes {roofline.ttft_seconds(prompt) * 1e3:,.0f} ms"
        )
    question = f"TTFT under {TTFT_SECONDS * 1e3:.0f} ms for a prompt of {prompt:,} tokens"
    return Answer(question, new > 0, words)


def throughput(roofline: Roofline) -> Answer:
    """Whether 128 streams get 3,500 tokens a second together: up to which mean context."""

    def enough(context: int) -> bool:
        return (
            roofline.decode_tokens_per_second(STREAMS, context) >= TOKENS_PER_SECOND
            and roofline.largest_batch(context) >= STREAMS
        )

    context = _most(enough, _LONGEST)
    question = f"{TOKENS_PER_SECOND:,} tokens/s at {STREAMS} streams"
    if context == 0:
        best = roofline.decode_tokens_per_second(STREAMS, 1)
        return Answer(question, False, f"at best {best:,.0f} tokens/s, with empty contexts")
    fits = roofline.largest_batch(context + 1) >= STREAMS
    return Answer(
        question,
        True,
        f"up to a mean context of {context:,} tokens, beyond which "
        + ("reading the KV cache takes too long" if fits else "the KV cache is full"),
    )


def _most(holds: Callable[[int], bool], largest: int) -> int:
    """The largest number that a condition holds for, which holds for all below it; 0 for none."""
    low, high = 0, largest
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
