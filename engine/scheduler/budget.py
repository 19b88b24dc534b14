"""How many prompt tokens a step may take, from how fast this machine was seen to be.

A step lasts as long as its slowest part, and every running stream waits for it: a long prompt's
chunk of fixed size is a stall where the machine is slow. So the budget aims at a step time. It
learns two numbers: what a step of decodes alone takes, and what each prompt token adds.
"""

_WEIGHT = 0.25
"""Of the newest observation in the moving averages."""
_FIRST_CHUNK = 64
"""Prompt tokens of a step while nothing has been observed."""
_LEAST_CHUNK = 16
_LEAST_SHARE = 0.5
"""A prefill may lengthen a decode step by at least this share, or it would never end where decodes
alone take longer than the target."""


class StepBudget:
    """Chooses the prompt tokens of each step. Without a target it is always `max_tokens`."""

    def __init__(self, max_tokens: int, target_seconds: float | None) -> None:
        self._max_tokens = max_tokens
        self._target = target_seconds
        self._decode_seconds = 0.0
        self._token_seconds: float | None = None

    def prompt_tokens(self) -> int:
        """Most prompt tokens of the next step."""
        if self._target is None:
            return self._max_tokens
        if self._token_seconds is None:
            return min(_FIRST_CHUNK, self._max_tokens)
        room = max(self._target - self._decode_seconds, _LEAST_SHARE * self._decode_seconds)
        tokens = int(room / max(self._token_seconds, 1e-9))
        return max(_LEAST_CHUNK, min(tokens, self._max_tokens))

    def observe(self, prompt_tokens: int, num_decodes: int, seconds: float) -> None:
        """A step that computed so many tokens of prompts, and one token for each of
        `num_decodes` requests, took `seconds`."""
        if prompt_tokens == 0:
            self._decode_seconds += _WEIGHT * (seconds - self._decode_seconds)
        elif prompt_tokens >= _LEAST_CHUNK:
            decodes = self._decode_seconds if num_decodes else 0.0
            # Not less than a part of the step: the decodes' average may be from slower steps.
            cost = max(seconds - decodes, 0.25 * seconds) / prompt_tokens
            known = self._token_seconds
            self._token_seconds = cost if known is None else known + _WEIGHT * (cost - known)
