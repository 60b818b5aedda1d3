"""How figures are written."""

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.errors import UsageError
from console.formats import (
    bare_moment,
    clock,
    count,
    duration,
    moment,
    offset,
    parse_duration,
    rate,
    row_rate,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.25, "250 ms"),
        (0.9996, "1.0 s"),
        (3.14, "3.1 s"),
        (59.96, "1 min"),
        (252, "4 min 12 s"),
        (3599.6, "1 h"),
        (3900, "1 h 05 min"),
        (273_600, "3 d 04 h"),
        (-3.1, "-3.1 s"),
    ],
)
def test_durations_have_one_form(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(min_value=0, max_value=59 * 86400))
def test_a_duration_never_shows_60_or_1000_of_a_unit(seconds: float) -> None:
    assert not any(part in {"60", "60.0", "1000"} for part in duration(seconds).split())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        ("500ms", 0.5),
        ("5s", 5),
        ("1.5s", 1.5),
        ("10m", 600),
        ("1h30m", 5400),
        ("2d", 172_800),
    ],
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 s", "5sx", "x5s", "1e3s", "٣s"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a duration"):
        parse_duration(text)


def test_counts_and_rates_have_one_form() -> None:
    assert count(4812) == "4,812"
    assert count(10_000, estimated=True) == "≈10 k"
    assert count(12_400, estimated=True) == "≈12 k"
    assert count(3_400_000, estimated=True) == "≈3.4 M"
    assert rate(812) == "812.0"
    assert [row_rate(one) for one in (0.0, 0.01, 0.4, 3.0, 12.6, 59_000)] == [
        *("0", "<0.1", "0.4", "3.0", "13", "59,000")
    ]


PRAGUE = ZoneInfo("Europe/Prague")
NEPAL = timezone(timedelta(hours=5, minutes=45))
WEST = timezone(-timedelta(hours=3, minutes=30))
BEFORE, AFTER = datetime(2026, 3, 29, 0, 59, 59, tzinfo=UTC), datetime(2026, 3, 29, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("at", "zone", "text"),
    [
        (BEFORE, UTC, "2026-03-29 00:59:59 UTC"),
        (BEFORE, PRAGUE, "2026-03-29 01:59:59 +01:00"),
        (AFTER, PRAGUE, "2026-03-29 03:00:00 +02:00"),
        (AFTER, NEPAL, "2026-03-29 06:45:00 +05:45"),
        (AFTER, WEST, "2026-03-28 21:30:00 -03:30"),
        (AFTER.astimezone(NEPAL), UTC, "2026-03-29 01:00:00 UTC"),
    ],
)
def test_a_time_is_written_with_its_zone(at: datetime, zone: tzinfo, text: str) -> None:
    assert moment(at, zone) == text
    assert clock(at, zone) == text.partition(" ")[2]
    assert f"{bare_moment(at, zone)} {offset(at, zone)}" == text


SINCE = datetime(1980, 1, 1)  # noqa: DTZ001  # before, some offsets had seconds
UNTIL = datetime(2100, 1, 1)  # noqa: DTZ001


@given(st.datetimes(SINCE, UNTIL, timezones=st.just(UTC)), st.timezones())
def test_a_written_time_can_be_parsed(at: datetime, zone: tzinfo) -> None:
    assert datetime.fromisoformat(moment(at, zone).replace(" UTC", "+00:00")) == at.replace(
        microsecond=0
    )


def test_without_a_zone_that_of_the_machine_is_used() -> None:
    own = AFTER.astimezone().tzinfo
    assert moment(AFTER, None) == moment(AFTER, own)
