"""Options of speculative decoding; the names are vLLM's."""

from typing import Annotated, Literal

import msgspec

_DEFAULT_LOOKUP_MIN = 2
_DEFAULT_LOOKUP_MAX = 5


class SpeculationOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How tokens are guessed before the model is asked, several at once, whether they are right.

    Raises ValueError for fields that contradict each other."""

    method: Literal["ngram", "draft_model"]
    """ngram: what followed the last tokens earlier in prompt and answer (prompt lookup).
    draft_model: what a smaller model of the same vocabulary says."""
    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=1, le=32)] = 5
    """Most tokens guessed at once for a request."""
    prompt_lookup_max: Annotated[int, msgspec.Meta(ge=1, le=32)] | None = None
    """ngram: the most last tokens that are looked up; the longest match wins. Default 5."""
    prompt_lookup_min: Annotated[int, msgspec.Meta(ge=1, le=32)] | None = None
    """ngram: the fewest last tokens that must be found again. Default 2."""
    model: str | None = None
    """draft_model: where it comes from, in the forms of the model's own source."""
    quantization: Literal["auto", "none", "int8", "int4"] = "auto"
    """draft_model: of its weights, as the model's own option."""
    adaptive: bool = True
    """Guess as many tokens as pay off by what was right before, and none while it costs time;
    otherwise always `num_speculative_tokens`."""

    def __post_init__(self) -> None:
        lookup = self.prompt_lookup_max is not None or self.prompt_lookup_min is not None
        if self.method == "ngram":
            if self.model is not None:
                raise ValueError("model is for method draft_model: ngram has none")
            if self.lookup_min > self.lookup_max:
                raise ValueError(
                    f"prompt_lookup_min {self.lookup_min} is more than prompt_lookup_max "
                    f"{self.lookup_max}"
                )
        elif self.model is None:
            raise ValueError("method draft_model needs model, the draft model's source")
        elif lookup:
            raise ValueError("prompt_lookup_min and prompt_lookup_max are for method ngram")

    @property
    def lookup_min(self) -> int:
        """`prompt_lookup_min` with its default."""
        if self.prompt_lookup_min is not None:
            return self.prompt_lookup_min
        return min(_DEFAULT_LOOKUP_MIN, self.prompt_lookup_max or _DEFAULT_LOOKUP_MAX)

    @property
    def lookup_max(self) -> int:
        """`prompt_lookup_max` with its default."""
        if self.prompt_lookup_max is not None:
            return self.prompt_lookup_max
        return max(_DEFAULT_LOOKUP_MAX, self.prompt_lookup_min or _DEFAULT_LOOKUP_MIN)
