"""What a rule across fields is: a condition in CEL for the API server and in Python for local mode,
with the same words in both."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pagelet.protocol.inference_service.parts import Part

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
