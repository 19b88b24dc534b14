"""Numbers that a command line can say and nothing can take."""

import math
from collections.abc import Iterable
from typing import Any, Final

import typer
from typer.core import TyperCommand

_BITS: Final = 63
"""Of a whole number as processes pass it on, beside its sign."""


class NumbersChecked(TyperCommand):
    """A command that refuses NaN, infinity, and whole numbers of more than 64 bits as options."""

    def invoke(self, ctx: Any) -> Any:
        params: list[Any] = self.params
        for param in params:
            for value in _flat(ctx.params.get(param.name)):
                if words := _refusal(value):
                    raise typer.BadParameter(words, ctx=ctx, param=param)
        return super().invoke(ctx)


def _flat(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _refusal(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not a finite number"
    if isinstance(value, int) and not -(2**_BITS) <= value < 2**_BITS:
        return f"the number is too large; at most {2**_BITS - 1} can be meant"
    return ""
