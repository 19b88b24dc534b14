"""Sizes in bytes as people write them."""

import re

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?)B?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str) -> int:
    """Bytes of "1048576", "512MiB", "2 GB" or "1.5g".

    `Ki`, `Mi` and `Gi` count in 1024s, and so do bare letters, as in `docker run --memory`; `KB`,
    `MB` and `GB` count in 1000s. Raises `ValueError` with the forms that are understood.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no size: give bytes, or such as 512MiB, 2GiB or 1.5GB")
    unit = match[2].lower()
    decimal = text.strip().lower().endswith("b") and unit and not unit.endswith("i")
    size = float(match[1]) * (1000 if decimal else 1024) ** _POWERS[unit.removesuffix("i")]
    if size < 1:
        raise ValueError(f"{text!r} is no size: it must be at least 1 byte")
    return int(size)
