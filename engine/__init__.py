"""The engine as a library: `from pagelet.engine import LLM`.

Loaded on first use, so that importing a module of this package costs that module alone.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagelet.engine.llm import LLM
    from pagelet.engine.sampling_request import RequestedSampling
    from pagelet.engine.structured.requested import RequestedGrammar

__all__ = ["LLM", "RequestedGrammar", "RequestedSampling"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from pagelet.engine.llm import LLM

        return LLM
    if name == "RequestedSampling":
        from pagelet.engine.sampling_request import RequestedSampling

        return RequestedSampling
    if name == "RequestedGrammar":
        from pagelet.engine.structured.requested import RequestedGrammar

        return RequestedGrammar
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
