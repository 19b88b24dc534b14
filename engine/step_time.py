"""How long a step takes: one formula for the simulated runner, simulated replicas and the roofline.

Free of torch.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class StepTime:
    """A step reads all weights while its tokens are multiplied with them: the longer of the two
    counts (the roofline of Williams, Waterman and Patterson, CACM 52(4), 2009). Keys and values of
    the context are each request's own and come on top, as does what any step costs."""

    step_seconds: float = 0.0
    token_seconds: float = 0.0
    """Of one token's arithmetic."""
    context_token_seconds: float = 0.0
    """Of reading the keys and values of one token."""
    weights_seconds: float = 0.0
    """Of reading the weights."""

    def seconds(self, num_tokens: float, context: float = 0.0) -> float:
        """Of a step of so many tokens, over a context summed over its requests."""
        return (
            self.step_seconds
            + max(self.weights_seconds, num_tokens * self.token_seconds)
            + context * self.context_token_seconds
        )
