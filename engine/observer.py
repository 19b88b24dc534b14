"""Where an engine's measurements go. The agent turns them into Prometheus metrics; the default
observer drops them. Calls come on the event loop and must be cheap."""

import dataclasses

from pagelet.protocol.engine import EngineCoreReady, FinishReason, SchedulerStats
from pagelet.protocol.sampling import SamplingParams


@dataclasses.dataclass(slots=True)
class RequestTimes:
    """A finished answer. Times are `time.monotonic()` seconds; 0.0 means that it never came to
    that."""

    params: SamplingParams
    finish_reason: FinishReason
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    arrival: float
    scheduled: float
    first_token: float
    last_token: float


class EngineObserver:
    """Override what you need."""

    def on_ready(self, ready: EngineCoreReady) -> None:
        """An engine core has its model loaded (again, after a restart)."""

    def on_lost(self, engine_index: int) -> None:
        """The connection to an engine core broke."""

    def on_stats(self, engine_index: int, stats: SchedulerStats) -> None:
        """After a step of an engine core."""

    def on_first_token(self, engine_index: int, seconds: float) -> None:
        """Time to first token of one answer, from its arrival."""

    def on_tokens(self, engine_index: int, tokens: int, seconds: float) -> None:
        """`tokens` new tokens of one answer came `seconds` after the last (not the first token)."""

    def on_finished(self, engine_index: int, times: RequestTimes) -> None:
        """One answer ended, in whatever way."""
