"""The clock for ages and rates; the time axis of charts; times that Python lacks."""

import math
import sys
import threading
import time
from datetime import UTC, datetime, timedelta, tzinfo

_CELLS_OF_TICK = 9
_DAY = 86_400
_STEPS = (60, 300, 900, 3600, 4 * 3600, 12 * 3600, _DAY, 2 * _DAY, 7 * _DAY)
"""Possible steps of ticks in seconds; from a day on, ticks are dates."""
_MOST_TICKS = 6


def ticks(
    seconds: float, width: int, utc: datetime, zone: tzinfo | None
) -> tuple[list[float], list[str]]:
    """Round times in the last `seconds` before `utc`, as many as fit.

    Returns their offsets in seconds (negative) and their labels.
    """
    most = max(1, min(_MOST_TICKS, width // _CELLS_OF_TICK))
    step = next((one for one in _STEPS if seconds / one <= most), _STEPS[-1])
    wall = utc.astimezone(zone)
    since = wall.hour * 3600 + wall.minute * 60 + wall.second + wall.microsecond / 1e6
    last = since % step
    backs = [last + step * count for count in range(int((seconds - last) // step) + 1)]
    form = "%m-%d" if step >= _DAY else "%H:%M"
    return [-back for back in backs], [f"{wall - timedelta(seconds=back):{form}}" for back in backs]


def short_count(value: float) -> str:
    """`0`, `0.5`, `812`, `4.8 k`, `1.2 M`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def short_seconds(value: float) -> str:
    """`0`, `5 ms`, `2.5 s`, `4 min`, `3 h`."""
    if value == 0:
        return "0"
    unit, letter = _unit(value)
    return f"{value / unit:.3g} {letter}"


_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms"))


def _unit(seconds: float) -> tuple[float, str]:
    return next((one for one in _UNITS if seconds >= one[0]), _UNITS[-1])


def scale(highest: float) -> float:
    """A round number not below the highest."""
    if highest <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(highest))
    return next(
        (size * step for step in (1, 2, 3, 4, 5, 6, 8) if size * step >= highest), 10 * size
    )


def scale_count(highest: float) -> float:
    """The same for counts, so that its half is an integer too."""
    found = max(2.0, scale(highest))
    return found + found % 2 if found < 10 else found


def scale_seconds(highest: float) -> float:
    """The same in the unit of the highest."""
    unit, _ = _unit(highest)
    return scale(highest / unit) * unit if highest > 0 else 0.001


def _clock_including_sleep() -> int | None:
    """A clock that continues while the machine is suspended; None: there is none.

    Linux stops its monotonic clock then, and so does Python's on macOS: after a night in a bag,
    figures would look a second old.
    """
    if sys.platform == "darwin":
        return time.CLOCK_MONOTONIC
    return getattr(time, "CLOCK_BOOTTIME", None)


_CLOCK = _clock_including_sleep()
_PART_SECONDS = 0.1


def elapsed() -> float:
    """Seconds since some moment, including sleep of this machine. Never decreases."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


def sleep(seconds: float, stop: threading.Event | None = None) -> bool:
    """For as long, or until `stop` is set; whether it is. For a main thread, which handles signals.

    A signal that comes right before a sleep of the kernel begins is handled after it, so its parts
    are short; and a handler that sets an event may wait for ever for this thread's own wait().
    """
    ends_at = time.monotonic() + seconds
    while not (stopped := stop is not None and stop.is_set()):
        if (left := ends_at - time.monotonic()) <= 0:
            break
        time.sleep(min(left, _PART_SECONDS))
    return stopped


def utc() -> datetime:
    """Now, by this machine's clock."""
    return datetime.now(UTC)


class FarTime(datetime):
    """A time before the year 1, after 9999, or infinite: as the server writes it.

    It compares as the first or the last day that there is.
    """

    text: str

    def __new__(cls, text: str) -> "FarTime":
        early = text.startswith("-") or text.endswith("BC")
        time = super().__new__(cls, *((1, 1, 2) if early else (9999, 12, 30)), tzinfo=UTC)
        time.text = text
        return time

    def __reduce_ex__(self, protocol: object) -> tuple[type["FarTime"], tuple[str]]:
        return FarTime, (self.text,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FarTime) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __add__(self, _: timedelta) -> "FarTime":
        return self

    def __format__(self, form: str) -> str:
        return self.text

    def astimezone(self, tz: tzinfo | None = None) -> "FarTime":
        """The same: the server wrote its offset."""
        del tz
        return self

    def isoformat(self, sep: str = "T", timespec: str = "auto") -> str:
        del sep, timespec
        return self.text

    __str__ = isoformat
