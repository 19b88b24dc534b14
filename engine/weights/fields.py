"""Typed access to the fields of a checkpoint's configuration, with errors that name the field."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pagelet.protocol.errors import ModelSourceError

# Far beyond any model, and small enough to make a set of: what is counted one by one.
MAX_COUNT: Final = 10_000


class Fields:
    """A mapping from a file that is not to be trusted.

    Each method raises ModelSourceError, naming the file and the key, if the value isn't as asked.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def __contains__(self, key: str) -> bool:
        """Whether the key is there with a value other than null."""
        return self._values.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        """The keys."""
        return iter(self._values)

    def integer(self, key: str, *, minimum: int = 1, maximum: int = 2**31 - 1) -> int:
        value = self._values.get(key)
        if type(value) is not int or not minimum <= value <= maximum:
            raise self.wrong(key, f"an integer from {minimum} to {maximum}")
        return value

    def optional_integer(self, key: str, *, minimum: int = 1) -> int | None:
        return self.integer(key, minimum=minimum) if key in self else None

    def finite(self, key: str) -> int | float:
        value = self._values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number")
        if not abs(value) <= sys.float_info.max:
            raise self.wrong(key, "a finite number")
        return value

    def number(self, key: str) -> float:
        value = self.finite(key)
        if value <= 0:
            raise self.wrong(key, "a positive number")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if key in self else None

    def boolean(self, key: str) -> bool:
        value = self._values.get(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def string(self, key: str) -> str:
        value = self._values.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        """A copy; empty if the key is absent."""
        if key not in self:
            return {}
        value = self._values[key]
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return dict(value)

    def strings(self, key: str) -> list[str]:
        value = self._values.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of strings")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id or a list of them; empty if the key is absent."""
        value = self._values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(i) is int and i >= 0 for i in ids):
            raise self.wrong(key, "a token id or a list of them")
        return tuple(ids)

    def integers(self, key: str) -> list[int]:
        """Empty if the key is absent."""
        if key not in self:
            return []
        value = self._values[key]
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self.wrong(key, "a list of integers")
        return value

    def wrong(self, key: str, expected: str) -> ModelSourceError:
        found = f"is {self._values[key]!r:.80}" if key in self._values else "is missing"
        return ModelSourceError(f"{self._where}: `{key}` {found}, where {expected} is expected")
