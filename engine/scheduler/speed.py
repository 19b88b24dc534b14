"""How fast this engine was seen to be: what a router estimates waiting times with."""

_DECAY = 0.95
"""What a step's observation is worth after the next one."""
_ENOUGH_TOKENS = 64
_LEAST_SHARE = 0.05
"""Of the time of steps with prompts that is taken for the prompts': steps of decodes may have been
slower, as of more of them."""


class MeasuredSpeed:
    """What steps take: so long as one of decodes alone, and so much more for each token of a prompt
    (a line through decaying averages). A plain mean of tokens over seconds would tell how long the
    prompts happened to be: after a few short ones it is a tenth of what the engine can do."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._tokens_squared = 0.0
        self._tokens_by_seconds = 0.0
        self.decode_step_seconds = 0.0
        """Of a step of decodes alone; 0.0 if there was none yet."""

    def prefill_tokens_per_second(self, step_tokens: int) -> float:
        """Prompt tokens that the engine computes in a second of steps with `step_tokens` of them
        each; 0.0 until it is known."""
        if self._tokens < _ENOUGH_TOKENS or self._tokens_by_seconds <= 0.0:
            return 0.0
        of_prompts = self._tokens_by_seconds - self._tokens * self.decode_step_seconds
        of_prompts = max(of_prompts, _LEAST_SHARE * self._tokens_by_seconds)
        token_seconds = of_prompts / self._tokens_squared
        return step_tokens / (self.decode_step_seconds + step_tokens * token_seconds)

    def observe(self, prompt_tokens: int, num_decodes: int, seconds: float) -> None:
        """A step that computed so many tokens of prompts, and one token for each of
        `num_decodes` requests, took `seconds`."""
        if prompt_tokens:
            self._tokens = _DECAY * self._tokens + prompt_tokens
            self._tokens_squared = _DECAY * self._tokens_squared + prompt_tokens**2
            self._tokens_by_seconds = _DECAY * self._tokens_by_seconds + prompt_tokens * seconds
        elif num_decodes:
            known = self.decode_step_seconds or seconds
            self.decode_step_seconds = _DECAY * known + (1 - _DECAY) * seconds
