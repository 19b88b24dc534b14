"""Times of more replicas, as KEDA's cron trigger has them: from when `start` says until `end` does.

Expressions are those of the library that KEDA reads them with (robfig/cron): minute, hour, day of
the month, month, day of the week (0 is Sunday); `*` or `?`, `a`, `a-b`, and `/n` after any of them,
in lists; names of months and weekdays. Where neither kind of day is `*`, either will do. A time
that clocks skip does not come, and one that they show twice comes twice.
"""

import dataclasses
import zoneinfo
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Final, Protocol

_YEARS: Final = 5
"""Within which a time that ever comes does come, leap days included."""
_MONTHS: Final = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()
    """Of the values, from the least on."""

    def read(self, text: str) -> frozenset[int]:
        """The values of a list. Raises ValueError."""
        return frozenset(value for part in text.split(",") for value in self._span(part))

    def _span(self, part: str) -> range:
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        if first in ("*", "?") and not dash:
            low, high = self.least, self.most
        else:
            low = self._value(first, part)
            high = self._value(last, part) if dash else self.most if slash else low
        if low > high:
            raise ValueError(f"{part!r} ends before it begins")
        if slash and not (step.isdecimal() and int(step)):
            raise ValueError(f"{part!r} has no number above 0 behind its /")
        return range(low, high + 1, int(step) if slash else 1)

    def _value(self, text: str, part: str) -> int:
        if text.lower() in self.names:
            return self.least + self.names.index(text.lower())
        if text.isdecimal() and self.least <= int(text) <= self.most:
            return int(text)
        names = f", or {self.names[0]} to {self.names[-1]}" if self.names else ""
        raise ValueError(f"{part!r} is no {self.name}: {self.least} to {self.most}{names}")


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of the week", 0, 6, _WEEKDAYS),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Cron:
    """An expression of five fields, read."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either_day: bool
    """Whether a day of `days` or one of `weekdays` will do, in place of one that is both."""

    @classmethod
    def read(cls, text: str) -> "Cron":
        """Raises ValueError, which says what is wrong with it."""
        parts = text.split()
        if len(parts) != len(_FIELDS):
            raise ValueError(f"has {len(parts)} fields; it takes {len(_FIELDS)}")
        minutes, hours, days, months, weekdays = (
            field.read(part) for field, part in zip(_FIELDS, parts, strict=True)
        )
        return cls(
            tuple(sorted(minutes)),
            tuple(sorted(hours)),
            days,
            months,
            weekdays,
            either_day=not (_is_any(parts[2]) or _is_any(parts[4])),
        )

    def next_after(self, now: datetime) -> datetime | None:
        """The first time after an aware one, in its zone; None if none comes."""
        day = now.date()
        for _ in range(366 * _YEARS):
            if self._has(day):
                for moment in self._moments(day, now.tzinfo):
                    if moment > now.astimezone(UTC):
                        return moment.astimezone(now.tzinfo)
            day += timedelta(days=1)
        return None

    def _has(self, day: date) -> bool:
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        good = in_month or in_week if self.either_day else in_month and in_week
        return good and day.month in self.months

    def _moments(self, day: date, zone: object) -> Iterator[datetime]:
        """Of a day, in order, by UTC."""
        for hour in self.hours:
            for fold in (0, 1):
                for minute in self.minutes:
                    shown = datetime(day.year, day.month, day.day, hour, minute, fold=fold)
                    moment = shown.replace(tzinfo=zone).astimezone(UTC)  # type: ignore[arg-type]
                    back = moment.astimezone(zone)  # type: ignore[arg-type]
                    if back.replace(tzinfo=None) == shown.replace(fold=0) and back.fold == fold:
                        yield moment


def _is_any(part: str) -> bool:
    """As the library has it: whether a field of the list is `*`, not every few of all."""
    return any(each in ("*", "?", "*/1", "?/1") for each in part.split(","))


class Entry(Protocol):
    """As a spec has it."""

    @property
    def start(self) -> str: ...
    @property
    def end(self) -> str: ...
    @property
    def timezone(self) -> str: ...
    @property
    def replicas(self) -> int: ...


def problems(entry: Entry, now: datetime) -> Iterator[tuple[str, str]]:
    """What is wrong with an entry: the field, and words."""
    try:
        zone = zoneinfo.ZoneInfo(entry.timezone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        yield "timezone", f"there is no time zone {entry.timezone!r}: such as Europe/Berlin, or UTC"
        return
    for field, text in (("start", entry.start), ("end", entry.end)):
        try:
            if Cron.read(text).next_after(now.astimezone(zone)) is None:
                yield field, f"{text!r} never comes"
        except ValueError as error:
            yield field, str(error)
    if entry.start == entry.end:
        yield "end", "is when it starts, too: end it at another time"


def scheduled(entries: Iterable[Entry], now: datetime) -> int:
    """The most replicas of the entries that an aware time lies in; 0 outside of all. Entries must
    have no problems."""
    return max((entry.replicas for entry in entries if _is_on(entry, now)), default=0)


def _is_on(entry: Entry, now: datetime) -> bool:
    """Whether it ends no later than it starts (again)."""
    here = now.astimezone(zoneinfo.ZoneInfo(entry.timezone))
    start, end = (Cron.read(text).next_after(here) for text in (entry.start, entry.end))
    return start is not None and end is not None and end <= start
