"""Values of the configuration with their origins, and the functions that parse and check them."""

import difflib
import re
import warnings
import zoneinfo
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from enum import Enum, StrEnum
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from console.errors import UsageError
from console.filters import MARK, words_of
from console.formats import duration, parse_duration
from console.monitor import filters

T = TypeVar("T")


class ValueSource(StrEnum):
    """Where a value can come from. A later one overrides those before it."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Origin:
    """Where one value comes from."""

    source: ValueSource
    name: str = ""
    """The file's path, the variable or the option."""
    line: int | None = None

    def __str__(self) -> str:
        """For display: `default`, `/etc/dbq.toml:12`, `environment DBQ_RIGHTS`."""
        if self.source is ValueSource.DEFAULT:
            return str(self.source)
        if self.source is ValueSource.FILE:
            return self.name if self.line is None else f"{self.name}:{self.line}"
        return f"{self.source} {self.name}"


@dataclass(frozen=True)
class Value:
    """One value with its origin."""

    written: Any
    """As TOML has it; text from the environment or the command line."""
    meaning: Any
    origin: Origin

    def __repr__(self) -> str:
        """Without the value, which may contain a password."""
        return f"Value({self.origin})"


Layer = Mapping[str, Value]
"""The values set at one level, by the names of their keys."""


class WrongValueError(Exception):
    """A value is invalid for its key. The text completes "KEY ..." and never repeats a value that
    may be secret."""


class KeyLevel(Enum):
    """Where in the file a key is allowed."""

    TOP = "at the top, before any [table]"
    PROFILE = "in [profiles.NAME]"
    GROUP = "in [groups.NAME]"
    QUEUE = 'in [profiles.NAME.queues."QUEUE"]'


EVERYWHERE = frozenset({KeyLevel.TOP, KeyLevel.PROFILE, KeyLevel.QUEUE})
TOP_ONLY = frozenset({KeyLevel.TOP})
CONNECTION = frozenset({KeyLevel.TOP, KeyLevel.PROFILE})
PROFILE_ONLY = frozenset({KeyLevel.PROFILE})
PROFILE_OR_GROUP = frozenset({KeyLevel.PROFILE, KeyLevel.GROUP})


@dataclass(frozen=True)
class ConfigKey(Generic[T]):
    """One key of the configuration."""

    name: str
    """Dotted if it is in its own table: `depth.warning`."""
    read: Callable[[Any], T]
    """Parses a value of TOML or of the environment. WrongValueError."""
    default: Any
    """As it would be written; None: the value is None unless set."""
    levels: frozenset[KeyLevel]
    variable: str = ""
    """The environment variable that sets it for every profile."""
    names_tables: str = ""
    """The tables [WORD.x] whose names it has; of a feature, which may not be here."""

    def value(self, written: Any, origin: Origin) -> Value:
        """The value as written at that origin. WrongValueError."""
        return Value(written, self.read(written), origin)

    @property
    def default_value(self) -> Value:
        """The value if nothing is set."""
        meaning = None if self.default is None else self.read(self.default)
        return Value(self.default, meaning, Origin(ValueSource.DEFAULT))


@runtime_checkable
class Redacted(Protocol):
    """A meaning that may contain a secret."""

    @property
    def shown(self) -> str:
        """What `config show` prints of it."""


OFF = "off"
"""Removes a limit that another level sets."""

ALL = "all"

THEMES = ("dark", "light", "contrast")
COLORS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink", "grey")
"""Each exists in every theme."""

_TYPES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "a table",
}


def type_name(value: Any) -> str:
    """The type of a value, for messages."""
    return _TYPES.get(type(value), "a date or time")


def text(value: Any) -> str:
    """A non-empty text of one line."""
    if not isinstance(value, str):
        raise WrongValueError(f"must be a string in quotes, not {type_name(value)}")
    if not value or not value.isprintable():
        raise WrongValueError("must be one line of text, not empty")
    return value


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise WrongValueError(f"must be true or false, not {type_name(value)}")
    return value


def seconds(least: float, most: float) -> Callable[[Any], float]:
    """A duration such as `5s`, with inclusive bounds."""

    def read(value: Any) -> float:
        if not isinstance(value, str):
            raise WrongValueError(f'must be a duration like "5s" or "10m", not {type_name(value)}')
        try:
            found = parse_duration(value)
        except UsageError:
            raise WrongValueError(
                f"must be a duration such as 500ms, 5s, 10m or 1h30m, not {value!r}"
            ) from None
        if not least <= found <= most:
            raise WrongValueError(
                f"must be a duration from {duration(least)} to {duration(most)}, not {value!r}"
            )
        return found

    return read


def amount(value: Any) -> int:
    """A number of messages, 1 or more."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise WrongValueError(f"must be a whole number, not {type_name(value)}")
    if value < 1:
        raise WrongValueError(f"must be 1 or more, not {value}")
    return value


def share(value: Any) -> float:
    """A fraction: more than 0, at most 1."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise WrongValueError(f"must be a number between 0 and 1, not {type_name(value)}")
    if not 0 < value <= 1:
        raise WrongValueError(f"must be a number above 0 and up to 1, not {value}")
    return float(value)


def or_off(read: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """`read`, or None for `off`."""
    return lambda value: None if value == OFF else read(value)


def one_of(known: Sequence[str]) -> Callable[[Any], str]:
    """One of these words."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise WrongValueError(f"must be one of {', '.join(known)}, not {type_name(value)}")
        if value not in known:
            raise WrongValueError(f"must be one of {', '.join(known)}{suggestion(value, [*known])}")
        return value

    return read


def meaning_of(known: Mapping[str, T]) -> Callable[[Any], T]:
    """The value of one of these words."""
    read = one_of(tuple(known))
    return lambda value: known[read(value)]


def message_filter(value: Any) -> tuple[str, ...]:
    """The words of a saved filter of messages, as typed after `/` in their list."""
    line = text(value)
    try:
        words = tuple(words_of(line))
        _require_own(words)
        filters.parse(words)
    except UsageError as error:
        raise WrongValueError(f"is not a filter of messages. {error.what} {error.why}") from None
    return words


def queue_filter(value: Any) -> str:
    """A saved filter of the overview, as typed after `/`; any text is valid there."""
    strip = text(value).strip()
    _require_own(strip.split())
    return strip


def _require_own(words: Sequence[str]) -> None:
    if not words:
        raise WrongValueError("must not be empty")
    if any(word.startswith(MARK) for word in words):
        raise WrongValueError(f"must be written out: {MARK} refers to another filter")


def zone(value: Any) -> tzinfo | None:
    """A time zone by its IANA name or as `UTC`; None for `local`, the machine's own."""
    name = text(value)
    if name == "local":
        return None
    if name == "UTC":
        return UTC  # even if the machine has no time zones
    try:
        return zoneinfo.ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        known = zoneinfo.available_timezones()
        if not known:
            raise WrongValueError(
                "needs time zones, but Python finds none on this machine: pip install tzdata"
            ) from None
        raise WrongValueError(
            "must be local, UTC or a time zone such as Europe/Prague"
            + suggestion(name, sorted(known))
        ) from None


def patterns(value: Any) -> tuple[re.Pattern[str], ...]:
    """A list of regular expressions, none of which matches the empty text."""
    if not isinstance(value, list):
        raise WrongValueError(f"must be a list of regular expressions, not {type_name(value)}")
    if not value:
        return ()
    import regex  # type: ignore[import-untyped]  # noqa: PLC0415  # verbs shall start at once

    found = []
    for number, one in enumerate(value, 1):
        if not isinstance(one, str):
            raise WrongValueError(
                f"must be strings; number {number} of the list is {type_name(one)}"
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # "[[a]" may mean something else one day
                compiled = re.compile(one)
                regex.compile(one)  # which runs it, within a time limit
        except (re.error, regex.error, OverflowError, RecursionError) as error:
            raise WrongValueError(
                f"must be regular expressions; number {number} is not:  {error}"
            ) from None
        if compiled.search(""):
            raise WrongValueError(
                f"must be expressions that match something; number {number} matches only the empty "
                "string"
            )
        found.append(compiled)
    return tuple(found)


def names(value: Any) -> tuple[str, ...]:
    """A list of texts, possibly empty."""
    if not isinstance(value, list):
        raise WrongValueError(f"must be a list of strings, not {type_name(value)}")
    return tuple(map(text, value))


def names_or_all(value: Any) -> tuple[str, ...] | None:
    """A list of texts, or None for `all`."""
    if isinstance(value, str) and value != ALL:
        raise WrongValueError(f'must be a list of strings, or "{ALL}"')
    return None if value == ALL else names(value)


def suggestion(word: str, known: list[str]) -> str:
    """`; did you mean "x"?` if a known word is similar, else `, not 'word'`."""
    found = difflib.get_close_matches(word, known, n=1)
    if not found:  # "europe/prague", "Admin"
        found = [one for one in known if one.casefold() == word.casefold()]
    return f'; did you mean "{found[0]}"?' if found else f", not {word!r}"
