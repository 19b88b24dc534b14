"""Implementations that import Triton when they are first called."""

import importlib
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def triton_implementation(like: Callable[P, R], function: str | None = None) -> Callable[P, R]:
    """The function of that name (by default `like`'s) in the `triton.py` beside `like`'s module.

    A process without a GPU thus never imports Triton, and needn't have it. `like` is the
    operation's reference, whose signature the function has.
    """
    module = like.__module__.rpartition(".")[0] + ".triton"
    name = function or like.__name__
    loaded: Any = None

    def implementation(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal loaded
        if loaded is None:
            loaded = getattr(importlib.import_module(module), name)
        return loaded(*args, **kwargs)  # type: ignore[no-any-return]

    return implementation
