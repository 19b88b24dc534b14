"""How fast this engine was seen to be: what a router estimates waiting times with."""

_DECAY = 0.95
"""What a step's observation is worth after the next one."""
_ENOUGH_TOKENS = 64
_LEAST_SHARE = 0.25
"""Of a step that is taken for its prompts': the decodes' average may be of slower steps."""


class MeasuredSpeed:
    """Decaying averages over steps. Long chunks of prompts count for more than short ones, whose
    time is mostly a step's fixed cost."""

    def __init__(self) -> None:
        self._prompt_tokens = 0.0
        self._prompt_seconds = 0.0
        self.decode_step_seconds = 0.0
        """Of a step of decodes alone; 0.0 if there was none yet."""

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens that the engine computes in a second; 0.0 until it is known."""
        if self._prompt_tokens < _ENOUGH_TOKENS or self._prompt_seconds <= 0.0:
            return 0.0
        return self._prompt_tokens / self._prompt_seconds

    def observe(self, prompt_tokens: int, num_decodes: int, seconds: float) -> None:
        """A step that computed so many tokens of prompts, and one token for each of
        `num_decodes` requests, took `seconds`."""
        if prompt_tokens:
            of_decodes = self.decode_step_seconds if num_decodes else 0.0
            of_prompts = max(seconds - of_decodes, _LEAST_SHARE * seconds)
            self._prompt_tokens = _DECAY * self._prompt_tokens + prompt_tokens
            self._prompt_seconds = _DECAY * self._prompt_seconds + of_prompts
        elif num_decodes:
            known = self.decode_step_seconds or seconds
            self.decode_step_seconds = _DECAY * known + (1 - _DECAY) * seconds
