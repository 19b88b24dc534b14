"""How much a model is to think: the same in all APIs."""

from typing import Any, Literal

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def effort_kwargs(effort: Effort | None) -> dict[str, Any]:
    """What a chat template is told of it. Templates go by `reasoning_effort` or, if all they know
    is whether to think, by `enable_thinking`; others go by neither."""
    if effort is None:
        return {}
    return {"reasoning_effort": effort} | ({"enable_thinking": False} if effort == "none" else {})
