"""A value of the configuration: what was written, what it means, and where it comes from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Source(StrEnum):
    """Where a value can come from. A later one wins over those before it."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Origin:
    """Where one value comes from."""

    source: Source
    name: str = ""
    """The file's path, the variable or the option."""
    line: int | None = None

    def __str__(self) -> str:
        """For people: `default`, `/etc/dbq.toml:12`, `environment DBQ_RIGHTS`."""
        if self.source is Source.DEFAULT:
            return str(self.source)
        if self.source is Source.FILE:
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
        """Without the value, which may be a URL with a password in it."""
        return f"Value({self.origin})"


Layer = Mapping[str, Value]
"""The values that were set in one place, by the names of their keys."""


class WrongValueError(Exception):
    """A value cannot be what its key wants. The text completes "KEY ..." and never repeats a
    value that may be secret."""


class Level(Enum):
    """Where in the file a key may stand."""

    TOP = "at the top, before any [table]"
    PROFILE = "in [profiles.NAME]"
    GROUP = "in [groups.NAME]"
    QUEUE = 'in [profiles.NAME.queues."QUEUE"]'


EVERYWHERE = frozenset({Level.TOP, Level.PROFILE, Level.QUEUE})
TOP_ONLY = frozenset({Level.TOP})
CONNECTION = frozenset({Level.TOP, Level.PROFILE})
PROFILE_ONLY = frozenset({Level.PROFILE})
PROFILE_OR_GROUP = frozenset({Level.PROFILE, Level.GROUP})


@dataclass(frozen=True)
class Key(Generic[T]):
    """What one key of the configuration is."""

    name: str
    """Dotted where it stands in a table of its own: `depth.warning`."""
    read: Callable[[Any], T]
    """From what TOML or the environment gives. Raises WrongValueError."""
    default: Any
    """As it would be written; None: the value is None unless something is set."""
    levels: frozenset[Level]
    variable: str = ""
    """The environment variable that sets it for every profile."""

    def value(self, written: Any, origin: Origin) -> Value:
        """The value that was written there. Raises WrongValueError."""
        return Value(written, self.read(written), origin)

    @property
    def default_value(self) -> Value:
        """What holds where nothing is set."""
        meaning = None if self.default is None else self.read(self.default)
        return Value(self.default, meaning, Origin(Source.DEFAULT))
