"""The formats of figures, the same on every screen and in every table."""

import re
import unicodedata
from contextlib import suppress
from datetime import UTC, datetime, tzinfo

from console.clock import FarTime
from console.errors import UsageError

NOT_APPLICABLE = "·"
UNKNOWN = "?"
ESTIMATE = "≈"
AT_LEAST = "≥"

_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
"""Unicode categories that a terminal would execute or hide instead of showing."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "y": 365 * 86400.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|y)")


def duration(seconds: float) -> str:
    """`250 ms`, `3.1 s`, `4 min 12 s`, `10 min`, `1 h 05 min`."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 3600:
        return _with_rest(rounded // 60, "min", rounded % 60, "s")
    if rounded < 86400:
        return _with_rest(rounded // 3600, "h", rounded % 3600 // 60, "min")
    return _with_rest(rounded // 86400, "d", rounded % 86400 // 3600, "h")


def whole_seconds(seconds: float) -> str:
    """A duration that counts up or down before the reader: without tenths, which would flicker."""
    return f"{seconds:.0f} s" if seconds < 59.5 else duration(round(seconds))


def _with_rest(number: int, unit: str, rest: int, smaller: str) -> str:
    return f"{number} {unit} {rest:02} {smaller}" if rest else f"{number} {unit}"


def duration_between(least: float | None, most: float | None) -> str:
    """A duration with known bounds: `at most 4 min 12 s`, `3.1 s to 4 min 12 s`.

    A single duration if the bounds are within a second.
    """
    if most is None:
        return UNKNOWN if least is None else f"at least {duration(max(least, 0.0))}"
    if least is None or least <= 0:
        return f"at most {duration(max(most, 0.0))}"
    if is_one_duration(least, most):
        return duration(most)
    return f"{duration(least)} to {duration(most)}"


def is_one_duration(least: float | None, most: float | None) -> bool:
    """Whether the bounds of a duration are within a second."""
    return least is not None and most is not None and least > 0 and most - least < 1.0


def megabytes(size: int) -> str:
    """`12.3 MB`, `45.6 kB` of so many bytes."""
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"


def parse_duration(text: str) -> float:
    """Seconds of `500ms`, `5s`, `10m`, `1h30m`, `2d`, `2y` (of 365 days each). UsageError for
    anything else."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UsageError(
            f"{text!r} is not a duration.", next_step="Examples: 500ms, 5s, 10m, 1h30m, 2d, 2y."
        )
    return float(sum(float(number) * _UNITS[unit] for number, unit in parts))


def parse_moment(text: str) -> datetime:
    """The time of `2026-03-29T08:00Z`, in UTC. UsageError for anything without its offset."""
    with suppress(ValueError, OverflowError):
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return at.astimezone(UTC)
    raise UsageError(
        f"{text!r} is not a time in ISO 8601 with its offset from UTC.",
        next_step="Examples: 2026-03-29T08:00Z, 2026-03-29T08:00+02:00.",
    )


def count(number: int, *, estimated: bool = False) -> str:
    """`4,812`; a large estimate in thousands: `≈12 k`, `≈3.4 M`."""
    if not estimated:
        return f"{number:,}"
    if number < 10_000:
        return f"{ESTIMATE}{number:,}"
    if number < 1_000_000:
        return f"{ESTIMATE}{number / 1000:,.0f} k"
    return f"{ESTIMATE}{number / 1_000_000:,.1f} M"


def numbered(number: int, noun: str) -> str:
    """`1 sample`, `4,711 samples`."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def rate(per_second: float) -> str:
    """Messages a second, with one decimal; never zero for a positive rate."""
    if 0 < per_second < 0.05:
        return "<0.1"
    return f"{per_second:,.1f}"


def row_rate(per_second: float) -> str:
    """Rows a second: whole numbers from 10 on; never zero for a positive rate."""
    return f"{per_second:,.0f}" if per_second >= 10 or not per_second else rate(per_second)


def offset(at: datetime, zone: tzinfo | None) -> str:
    """A zone's offset from UTC at a moment: `UTC`, `+01:00`. None is the machine's own zone."""
    if zone is UTC or isinstance(at, FarTime):
        return "UTC"
    digits = f"{at.astimezone(zone):%z}"
    return f"{digits[:3]}:{digits[3:5]}"


def moment(at: datetime, zone: tzinfo | None) -> str:
    """A time with its offset: `2026-03-29 02:14:07 UTC`, `2026-03-29 04:14:07 +02:00`."""
    if isinstance(at, FarTime):
        return at.text
    return f"{bare_moment(at, zone)} {offset(at, zone)}"


def bare_moment(at: datetime, zone: tzinfo | None) -> str:
    """The same without the offset, if a column's head has it, say."""
    return f"{at.astimezone(zone):%Y-%m-%d %H:%M:%S}"


def short_moment(at: datetime, zone: tzinfo | None) -> str:
    """The same without the year: `03-29 02:14:07`."""
    return f"{at.astimezone(zone):%m-%d %H:%M:%S}"


def clock(at: datetime, zone: tzinfo | None) -> str:
    """A time of day in a zone: `02:14:07 UTC`, `04:14:07 +02:00`."""
    return f"{at.astimezone(zone):%H:%M:%S} {offset(at, zone)}"


def plain(text: str) -> str:
    """The text with all control characters made visible."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def first_line(text: str) -> str:
    """The first line of a message of several, safe to show."""
    return plain(text.strip().partition("\n")[0].strip())


def plain_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(plain, text.split("\n")))


def _visible(character: str) -> str:
    code = ord(character)
    if unicodedata.category(character) not in _HIDDEN:
        return character
    if code < 0x20:
        return chr(0x2400 + code)  # the pictures of the control characters: ␀ to ␟
    return f"<{code:02X}>" if code < 0x100 else f"<U+{code:04X}>"
