"""Sizes in bytes as people read them."""

import math
from collections.abc import Iterator


def format_bytes(size: float) -> str:
    """Such as "1.5 GiB"."""
    units: Iterator[str] = iter(("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))
    unit = next(units)
    while size >= 1024:
        size /= 1024
        unit = next(units)
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


def format_at_least(size: float) -> str:
    """Such as "12 MiB", and never less than `size`, for what is missing."""
    unit, name = (1 << 20, "MiB") if size >= 1 << 20 else (1 << 10, "KiB")
    return f"{math.ceil(size / unit):,} {name}"


def format_at_most(size: int) -> str:
    """Such as "1.53 GiB", and never more than `size`, for what there is room for."""
    if size >= 1 << 30:
        hundredths = size * 100 >> 30
        return f"{hundredths // 100}.{hundredths % 100:02} GiB"
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
