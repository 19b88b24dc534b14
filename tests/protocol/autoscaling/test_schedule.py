import datetime
import zoneinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.protocol.autoscaling.schedule import Cron, problems, scheduled
from pagelet.protocol.inference_service.autoscaling import ScheduleEntry

NOW = datetime.datetime(2026, 3, 4, 12, 0, tzinfo=datetime.UTC)  # a Wednesday


def at(text, zone="Europe/Berlin"):
    return datetime.datetime.fromisoformat(text).replace(tzinfo=zoneinfo.ZoneInfo(zone))


@pytest.mark.parametrize(
    ("expression", "now", "following"),
    [
        ("0 8 * * *", "2026-03-04 07:59:59", "2026-03-04 08:00"),
        ("0 8 * * *", "2026-03-04 08:00", "2026-03-05 08:00"),
        ("*/15 9-17/4 * * *", "2026-03-04 09:46", "2026-03-04 13:00"),
        ("50/5 * * * *", "2026-03-04 09:56", "2026-03-04 10:50"),
        ("0 8 * * 1-5", "2026-03-06 09:00", "2026-03-09 08:00"),
        ("0 8 * * mon-FRI", "2026-03-06 09:00", "2026-03-09 08:00"),
        ("0 0 ? feb,dec ?", "2026-03-04 09:00", "2026-12-01 00:00"),
        ("0 0 29 2 *", "2026-03-04 09:00", "2028-02-29 00:00"),
        ("0 0 13 * 5", "2026-03-04 09:00", "2026-03-06 00:00"),  # a Friday or a 13th
        ("0 0 13 * *", "2026-03-04 09:00", "2026-03-13 00:00"),
        ("0 0 */2 * 5", "2026-03-04 09:00", "2026-03-05 00:00"),  # every other day is no *
        ("0 0 * * 0", "2026-03-04 09:00", "2026-03-08 00:00"),
        # Clocks skip an hour, and show another one twice.
        ("30 2 * * *", "2026-03-28 12:00", "2026-03-30 02:30"),
        ("30 2 * * *", "2026-10-24 12:00", "2026-10-25 02:30"),
        ("0 3 * * *", "2026-03-28 12:00", "2026-03-29 03:00"),
    ],
)
def test_the_next_time_of_an_expression(expression, now, following):
    assert Cron.read(expression).next_after(at(now)) == at(following)


def test_a_time_that_clocks_show_twice_comes_twice():
    cron, first = Cron.read("30 2 * * *"), at("2026-10-25 02:30")
    second = cron.next_after(first)
    assert second.astimezone(datetime.UTC) - first.astimezone(datetime.UTC) == datetime.timedelta(
        hours=1
    )
    assert cron.next_after(second) == at("2026-10-26 02:30")


@given(
    st.tuples(
        st.sampled_from(["*", "0", "5-20", "*/7", "59", "1,30"]),
        st.sampled_from(["*", "0", "23", "8-17", "*/5"]),
        st.sampled_from(["*", "1", "31", "10-20", "*/9"]),
        st.sampled_from(["*", "2", "6-8", "dec"]),
        st.sampled_from(["*", "0", "1-5", "sat"]),
    ),
    st.datetimes(datetime.datetime(2025, 1, 1), datetime.datetime(2027, 1, 1)),
    st.sampled_from(["UTC", "Asia/Kolkata", "America/St_Johns"]),
)
def test_no_time_between_now_and_the_next_is_one_of_the_expression(fields, now, zone):
    cron = Cron.read(" ".join(fields))
    here = now.replace(second=0, microsecond=0, tzinfo=zoneinfo.ZoneInfo(zone))
    following = cron.next_after(here)
    if following is None:  # the 31st of February, or of June
        assert fields[2] == "31"
        return
    minute = here.astimezone(datetime.UTC)
    for _ in range(2000):
        minute += datetime.timedelta(minutes=1)
        shown = minute.astimezone(here.tzinfo)
        if minute == following.astimezone(datetime.UTC):
            return
        assert not (
            shown.minute in cron.minutes and shown.hour in cron.hours and cron._has(shown.date())
        ), shown


def entry(start="0 8 * * 1-5", end="0 18 * * 1-5", timezone="Europe/Berlin", replicas=3):
    return ScheduleEntry(start=start, end=end, timezone=timezone, replicas=replicas)


@pytest.mark.parametrize(
    ("now", "replicas"),
    [
        ("2026-03-04 07:59", 0),
        ("2026-03-04 08:00", 3),
        ("2026-03-04 17:59", 3),
        ("2026-03-04 18:00", 0),
        ("2026-03-07 12:00", 0),  # a Saturday
    ],
)
def test_an_entry_is_on_from_its_start_to_its_end(now, replicas):
    assert scheduled([entry()], at(now)) == replicas
    assert scheduled([entry()], at(now).astimezone(datetime.UTC)) == replicas


def test_a_night_and_a_weekend_are_one_time():
    night = entry(start="0 20 * * *", end="0 6 * * *")
    hours = ("05", "06", "19", "20")
    assert [scheduled([night], at(f"2026-03-04 {hour}:30")) for hour in hours] == [3, 0, 0, 3]
    weekend = entry(start="0 18 * * 5", end="0 8 * * 1")
    days = ("06 12", "06 19", "07 12", "08 12", "09 07", "09 09")
    assert [scheduled([weekend], at(f"2026-03-{day}:00")) for day in days] == [0, 3, 3, 3, 3, 0]


def test_of_several_entries_the_most_counts_and_zones_are_their_own():
    entries = [entry(), entry(timezone="Asia/Tokyo", replicas=5)]
    times = ["2026-03-04 00:30", "2026-03-04 08:30", "2026-03-04 12:00", "2026-03-04 20:00"]
    assert [scheduled(entries, at(time)) for time in times] == [5, 5, 3, 0]
    assert scheduled([], NOW) == 0


@pytest.mark.parametrize(
    ("changed", "field", "words"),
    [
        ({"start": "60 8 * * *"}, "start", "'60' is no minute: 0 to 59"),
        ({"end": "0 8-25 * * *"}, "end", "'8-25' is no hour: 0 to 23"),
        ({"end": "0 8 0 * *"}, "end", "'0' is no day of the month: 1 to 31"),
        ({"end": "0 8 * Foo *"}, "end", "'Foo' is no month: 1 to 12, or jan to dec"),
        ({"end": "0 8 * * 7"}, "end", "'7' is no day of the week: 0 to 6, or sun to sat"),
        ({"start": "0 17-8 * * *"}, "start", "'17-8' ends before it begins"),
        ({"start": "*/0 * * * *"}, "start", "'*/0' has no number above 0 behind its /"),
        ({"start": "0 0 30 2 *"}, "start", "'0 0 30 2 *' never comes"),
        ({"timezone": "Mars/Base"}, "timezone", "there is no time zone 'Mars/Base'"),
        ({"timezone": "../etc"}, "timezone", "there is no time zone '../etc'"),
        ({"start": "0 18 * * 1-5"}, "end", "is when it starts, too"),
    ],
)
def test_what_is_wrong_with_an_entry_is_said(changed, field, words):
    ((told, found),) = problems(entry(**changed), NOW)
    assert told == field
    assert words in found


def test_a_sound_entry_has_no_problems():
    assert list(problems(entry(), NOW)) == []
