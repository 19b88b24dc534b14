"""What a rule across fields is: a condition in CEL for the API server and in Python for local mode,
with the same words in both."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pagelet.protocol.inference_service.parts import Part, Quantity
from pagelet.protocol.inference_service.quantity import parse_quantity

P = TypeVar("P", bound=Part)


@dataclasses.dataclass(frozen=True)
class Rule(Generic[P]):
    """A condition on a part of a spec."""

    part: type[P]
    field: str
    """JSON name of the field that an error points at; empty for the part itself."""
    holds: str
    """The condition in CEL; `self` is the part."""
    message: str
    """What to change. In it `{name}` stands for a value of `values`."""
    values: dict[str, tuple[str, Callable[[P], Any]]]
    """The values in the message: in CEL and in Python."""
    check: Callable[[P], bool]
    """The condition in Python."""

    def words(self, part: P) -> str:
        """The message for a part that breaks the rule."""
        return self.message.format(**{name: of(part) for name, (_, of) in self.values.items()})

    def message_expression(self) -> str | None:
        """The message in CEL; None if it is the same for every part."""
        if not self.values:
            return None
        names = re.findall(r"\{(\w+)\}", self.message)
        text = re.sub(r"\{\w+\}", "%s", self.message)
        assert not set(text) & {"'", "\\"}
        assert text.count("%") == len(names)
        # `+` would do, but the API server takes the result of string(1) to be of any length, and
        # refuses what it thinks too costly.
        return f"'{text}'.format([{', '.join(self.values[name][0] for name in names)}])"

    def plain_message(self) -> str:
        """The message where no expression can be evaluated."""
        return re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), self.message)


def mebibyte_at_least(
    part: type[P], field: str, example: str, size_of: Callable[[P], Quantity | None]
) -> Rule[P]:
    """A size in bytes that is so small must lack its unit, or have another than is meant."""

    def check(spec: P) -> bool:
        size = size_of(spec)
        return size is None or parse_quantity(size) >= 1 << 20

    size = f"self.{field}"
    return Rule(
        part=part,
        field=field,
        holds=f"!has({size}) || !isQuantity(string({size})) || "
        f"quantity(string({size})).compareTo(quantity('1Mi')) >= 0",
        message=f"{{size}} is less than 1Mi: give it in Mi or Gi, such as {example}",
        values={"size": (size, size_of)},
        check=check,
    )
