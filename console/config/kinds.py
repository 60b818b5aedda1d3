"""What values can be: from what TOML or the environment gives to what the console works with."""

import difflib
import re
import warnings
import zoneinfo
from collections.abc import Callable, Sequence
from datetime import UTC, tzinfo
from typing import Any, TypeVar

from console.config.values import WrongValueError
from console.errors import UsageError
from console.formats import duration, parse_duration
from console.monitor import filters
from console.monitor.filter_line import words_of
from console.monitor.saved import MARK
from console.rights import BY_WORD, Rights

T = TypeVar("T")

OFF = "off"
"""How a limit that another level sets is taken away."""

LOG_LEVELS = ("debug", "info", "warning", "error")
THEMES = ("dark", "light", "contrast")
COLORS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink", "grey")
"""Each of them is one in every theme."""

_TYPES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a table",
}


def named(value: Any) -> str:
    """What kind of thing a value is, in words."""
    return _TYPES.get(type(value), "a date or time")


def text(value: Any) -> str:
    """A text of one line that is not empty."""
    if not isinstance(value, str):
        raise WrongValueError(f"wants a text in quotes, not {named(value)}")
    if not value or not value.isprintable():
        raise WrongValueError("wants a text of one line that is not empty")
    return value


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise WrongValueError(f"wants true or false, not {named(value)}")
    return value


def seconds(least: float, most: float) -> Callable[[Any], float]:
    """A duration in a text, such as `5s`; both bounds are allowed."""

    def read(value: Any) -> float:
        if not isinstance(value, str):
            raise WrongValueError(f'wants a duration such as "5s" or "10m", not {named(value)}')
        try:
            found = parse_duration(value)
        except UsageError:
            raise WrongValueError(
                f"wants a duration such as 500ms, 5s, 10m or 1h30m, not {value!r}"
            ) from None
        if not least <= found <= most:
            raise WrongValueError(
                f"wants a duration from {duration(least)} to {duration(most)}, not {value!r}"
            )
        return found

    return read


def amount(value: Any) -> int:
    """A number of messages, 1 or more."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise WrongValueError(f"wants a whole number, not {named(value)}")
    if value < 1:
        raise WrongValueError(f"wants 1 or more, not {value}")
    return value


def share(value: Any) -> float:
    """A part of a whole: more than 0, at most 1."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise WrongValueError(f"wants a number between 0 and 1, not {named(value)}")
    if not 0 < value <= 1:
        raise WrongValueError(f"wants a number above 0 and up to 1, not {value}")
    return float(value)


def or_off(read: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """The same, or `off`, which is None."""
    return lambda value: None if value == OFF else read(value)


def rights(value: Any) -> Rights:
    """read-only, operator or admin."""
    if not isinstance(value, str):
        raise WrongValueError(f"wants one of {', '.join(BY_WORD)}, not {named(value)}")
    if value not in BY_WORD:
        raise WrongValueError(f"wants one of {', '.join(BY_WORD)}{near(value, list(BY_WORD))}")
    return BY_WORD[value]


def one_of(known: Sequence[str]) -> Callable[[Any], str]:
    """One of these words."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise WrongValueError(f"wants one of {', '.join(known)}, not {named(value)}")
        if value not in known:
            raise WrongValueError(f"wants one of {', '.join(known)}{near(value, [*known])}")
        return value

    return read


def message_filter(value: Any) -> tuple[str, ...]:
    """A saved filter of messages, as `/` takes it in their list: its words."""
    line = text(value)
    try:
        words = tuple(words_of(line))
        _require_own(words)
        filters.parse(words)
    except UsageError as error:
        raise WrongValueError(f"is no filter of messages. {error.what} {error.why}") from None
    return words


def queue_filter(value: Any) -> str:
    """A saved filter of the overview, as `/` takes it there. Whatever is typed there is one."""
    found = text(value).strip()
    _require_own(found.split())
    return found


def _require_own(words: Sequence[str]) -> None:
    if not words:
        raise WrongValueError("wants a filter, and says nothing")
    if any(word.startswith(MARK) for word in words):
        raise WrongValueError(f"wants its own words: {MARK} names another filter")


def zone(value: Any) -> tzinfo | None:
    """A time zone by its IANA name or as `UTC`; None for `local`, the machine's own."""
    name = text(value)
    if name == "local":
        return None
    if name == "UTC":
        return UTC  # also where the machine has no time zones
    try:
        return zoneinfo.ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        known = zoneinfo.available_timezones()
        if not known:
            raise WrongValueError(
                "wants a time zone, but Python finds none on this machine: pip install tzdata"
            ) from None
        raise WrongValueError(
            "wants local, UTC or a time zone such as Europe/Prague" + near(name, sorted(known))
        ) from None


def patterns(value: Any) -> tuple[re.Pattern[str], ...]:
    """A list of regular expressions, none of which matches the empty text."""
    if not isinstance(value, list):
        raise WrongValueError(f"wants a list of regular expressions, not {named(value)}")
    found = []
    for number, one in enumerate(value, 1):
        if not isinstance(one, str):
            raise WrongValueError(f"wants texts; number {number} of the list is {named(one)}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # "[[a]" may mean something else one day
                compiled = re.compile(one)
        except (re.error, OverflowError, RecursionError) as error:
            raise WrongValueError(
                f"wants regular expressions; number {number} is none: {error}"
            ) from None
        if compiled.search(""):
            raise WrongValueError(
                f"wants expressions that match something; number {number} matches nothing at all"
            )
        found.append(compiled)
    return tuple(found)


def near(word: str, known: list[str]) -> str:
    """`; did you mean "x"?` where something known is near, else what was said."""
    found = difflib.get_close_matches(word, known, n=1)
    if not found:  # "europe/prague", "Admin"
        found = [one for one in known if one.casefold() == word.casefold()]
    return f'; did you mean "{found[0]}"?' if found else f", not {word!r}"
