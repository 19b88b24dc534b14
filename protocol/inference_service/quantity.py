"""Amounts as Kubernetes writes them."""

import re
from decimal import ROUND_CEILING, Decimal
from typing import Final

from pagelet.protocol.inference_service.parts import QUANTITY_PATTERN

_UNITS: Final = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTP", 1)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTP", 1)},
}
_QUANTITY: Final = re.compile(QUANTITY_PATTERN)


def parse_quantity(quantity: int | str) -> Decimal:
    """The number that `4`, `500m` or `8Gi` means. The schema has checked its form."""
    match = _QUANTITY.fullmatch(str(quantity))
    assert match is not None, quantity
    unit = match[2] or ""
    return Decimal(str(quantity).removesuffix(unit)) * _UNITS[unit]


def bytes_of(quantity: int | str) -> int:
    """A quantity of memory in whole bytes."""
    return int(parse_quantity(quantity).to_integral_value(rounding=ROUND_CEILING))
