"""What happened to each request."""

import dataclasses
import itertools


@dataclasses.dataclass
class Record:
    """One request. Times are seconds after the start of the run."""

    label: str
    due: float
    """When it should have been sent: later than that, and the generator was behind."""
    sent: float
    token_times: list[float]
    """Of each event that brought tokens."""
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    """Of the prompt, found in the server's prefix cache; None if it does not tell."""
    end: float
    """When the answer was complete or given up."""
    error: str | None = None
    """Why it failed, in a few words that are the same for the same cause."""
    error_detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether the answer came whole."""
        return self.error is None

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return self.token_times[0] - self.sent

    @property
    def e2e(self) -> float:
        """Time to the last token."""
        return self.token_times[-1] - self.sent

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None for an answer of one token."""
        if self.output_tokens < 2:
            return None
        return (self.e2e - self.ttft) / (self.output_tokens - 1)

    @property
    def itl(self) -> list[float]:
        """Times between successive events."""
        return [after - before for before, after in itertools.pairwise(self.token_times)]
