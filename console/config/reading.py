"""From the file's text to its values, each with its line; every mistake in it is found at once."""

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from console.config.keys import GROUP, KEYS, URL
from console.config.kinds import message_filter, named, queue_filter
from console.config.lines import lines
from console.config.values import Layer, Level, Origin, Source, Value, WrongValueError
from console.monitor.saved import NAME

PROFILES, QUEUES, GROUPS = "profiles", "queues", "groups"
FILTERS, QUEUE_FILTERS = "filters", "queue_filters"
READERS: Mapping[str, Callable[[Any], Any]] = {
    FILTERS: message_filter,
    QUEUE_FILTERS: queue_filter,
}
"""The tables of saved filters: of the messages of a queue, and of the overview."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WHERE_TOML_FAILED = re.compile(r" \(at line (\d+), column (\d+)\)$")


@dataclass(frozen=True)
class Mistake:
    """Something wrong in a file, a variable or an option."""

    place: str
    text: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.place}: {self.text}"


@dataclass(frozen=True)
class ProfileTable:
    """What the file says of one profile."""

    values: Layer
    queues: Mapping[str, Layer]
    origin: Origin
    filters: Layer = field(default_factory=dict)
    """Of messages, by their names."""


@dataclass(frozen=True)
class Document:
    """What the file says."""

    values: Layer
    profiles: Mapping[str, ProfileTable]
    mistakes: tuple[Mistake, ...] = ()
    groups: Mapping[str, Layer] = field(default_factory=dict)
    filters: Layer = field(default_factory=dict)
    """Of messages, by their names."""
    queue_filters: Layer = field(default_factory=dict)
    """Of the overview."""


def read(path: Path, text: str) -> Document:
    """Read the file's text. Mistakes are collected, never raised."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return Document({}, {}, (_not_toml(path, str(error)),))
    return _Reader(path, lines(text)).document(found)


def _not_toml(path: Path, words: str) -> Mistake:
    where = _WHERE_TOML_FAILED.search(words)
    place = f"{path}:{where[1]}:{where[2]}" if where else str(path)
    return Mistake(place, f"not TOML: {_WHERE_TOML_FAILED.sub('', words)}")


_INNER = {
    Level.TOP: (PROFILES, GROUPS, FILTERS, QUEUE_FILTERS),
    Level.PROFILE: (QUEUES, FILTERS),
}
"""The tables in which the user's own names stand."""


class _Reader:
    def __init__(self, path: Path, known_lines: Mapping[tuple[str, ...], int]) -> None:
        self._path = path
        self._lines = known_lines
        self._mistakes: list[tuple[int, Mistake]] = []

    def document(self, found: Mapping[str, Any]) -> Document:
        """Everything that the file says."""
        values = self._layer(found, (), Level.TOP)
        profiles = {
            name: self._profile(name, table) for name, table in self._tables(found, (PROFILES,))
        }
        groups = {
            name: self._group(name, table, profiles)
            for name, table in self._tables(found, (GROUPS,))
        }
        filters = self._filters(found, (FILTERS,))
        queue_filters = self._filters(found, (QUEUE_FILTERS,))
        in_order = sorted(self._mistakes, key=lambda found: found[0])
        mistakes = tuple(mistake for _, mistake in in_order)
        return Document(values, profiles, mistakes, groups, filters, queue_filters)

    def _profile(self, name: str, table: Mapping[str, Any]) -> ProfileTable:
        path = (PROFILES, name)
        values = self._layer(table, path, Level.PROFILE)
        if URL.name not in table:
            self._mistake(path, "has no url")
        if not name.strip() or not name.isprintable():
            self._mistake(path, "wants a name that can be seen")
        queues = {
            queue: self._layer(inner, (*path, QUEUES, queue), Level.QUEUE)
            for queue, inner in self._tables(table, (*path, QUEUES))
        }
        filters = self._filters(table, (*path, FILTERS))
        return ProfileTable(values, queues, self._origin(path), filters)

    def _group(
        self, name: str, table: Mapping[str, Any], profiles: Mapping[str, ProfileTable]
    ) -> Layer:
        if not any(_is_in(one, name) for one in profiles.values()):
            self._mistake((GROUPS, name), "is the group of no profile")
        return self._layer(table, (GROUPS, name), Level.GROUP)

    def _filters(self, table: Mapping[str, Any], path: tuple[str, ...]) -> Layer:
        """Saved filters, by their names."""
        written = table.get(path[-1], {})
        if not isinstance(written, dict):
            self._mistake(path, f"wants a table of filters, not {named(written)}")
            return {}
        found: dict[str, Value] = {}
        for name, line in written.items():
            here = (*path, name)
            if not NAME.fullmatch(name):
                self._mistake(here, "wants a name of letters, digits, _ and -")
                continue
            try:
                found[name] = Value(line, READERS[path[-1]](line), self._origin(here))
            except WrongValueError as error:
                self._mistake(here, str(error))
        return found

    def _tables(
        self, table: Mapping[str, Any], path: tuple[str, ...]
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The tables of which each has a name of the user's own."""
        outer = table.get(path[-1], {})
        if not isinstance(outer, dict):
            self._mistake(path, f"wants tables [{_dotted(path)}.NAME], not {named(outer)}")
            return
        for name, inner in outer.items():
            if isinstance(inner, dict):
                yield name, inner
            else:
                self._mistake((*path, name), f"wants a table, not {named(inner)}")

    def _layer(self, table: Mapping[str, Any], path: tuple[str, ...], level: Level) -> Layer:
        return dict(self._values(table, path, level))

    def _values(
        self, table: Mapping[str, Any], path: tuple[str, ...], level: Level, group: str = ""
    ) -> Iterator[tuple[str, Value]]:
        for word, written in table.items():
            here, name = (*path, word), group + word
            if word in _words(level, group) and name in KEYS:
                try:
                    yield name, KEYS[name].value(written, self._origin(here))
                except WrongValueError as error:
                    self._mistake(here, str(error))
            elif word in _words(level, group):
                if isinstance(written, dict):
                    yield from self._values(written, here, level, f"{name}.")
                else:
                    self._mistake(here, f"wants {_LIMITS}, not {named(written)}")
            elif group or word not in _INNER.get(level, ()):
                self._mistake(here, f"is not known{_advice(word, level, group)}")

    def _origin(self, path: tuple[str, ...]) -> Origin:
        return Origin(Source.FILE, str(self._path), self._lines.get(path))

    def _mistake(self, path: tuple[str, ...], text: str) -> None:
        origin = self._origin(path)
        mistake = Mistake(str(origin), f"{_dotted(path)} {text}")
        self._mistakes.append((origin.line or 0, mistake))


def _is_in(profile: ProfileTable, group: str) -> bool:
    value = profile.values.get(GROUP.name)
    return value is not None and value.meaning == group


_LIMITS = "{ warning = ..., critical = ... }"


def _words(level: Level, group: str) -> list[str]:
    """What may stand at this level: keys, and the tables of limits; or what is in such a table."""
    names = [
        key.name.removeprefix(group)
        for key in KEYS.values()
        if level in key.levels and key.name.startswith(group)
    ]
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


def _advice(word: str, level: Level, group: str) -> str:
    """What may have been meant."""
    known = _words(level, group) + ([] if group else [*_INNER.get(level, ())])
    if near := difflib.get_close_matches(word, known, n=1):
        return f'; did you mean "{near[0]}"?'
    elsewhere = [other.value for other in Level if not group and word in _words(other, "")]
    if elsewhere:
        return f"; it may stand only {' or '.join(elsewhere)}"
    return f"; known here: {', '.join(known)}"


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(
        word if _BARE.fullmatch(word) else json.dumps(word, ensure_ascii=False) for word in path
    )
