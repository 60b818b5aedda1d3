"""Reads the file's text into values with their lines, and collects all mistakes."""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from console.config.feature_tables import FeatureTables, feature_tables
from console.config.passwords import command_words, output
from console.config.profile import GROUP, KEYS, URL
from console.config.values import (
    KeyLevel,
    Layer,
    Origin,
    Value,
    ValueSource,
    WrongValueError,
    message_filter,
    queue_filter,
    suggestion,
    text,
    type_name,
)
from console.errors import ConsoleError, UsageError
from console.filters import NAME

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class TomlStatement:
    """A table's header, or a key with its value."""

    first: int
    """Its first line, from 1."""
    last: int
    table: KeyPath
    """The table that it begins or is in."""
    paths: tuple[KeyPath, ...]
    """The full paths that it sets, beginning with the outermost."""


def lines(text: str) -> dict[KeyPath, int]:
    """The path of every table and value -> its first line, from 1."""
    found: dict[KeyPath, int] = {}
    for statement in statements(text):
        for path in statement.paths:
            found.setdefault(path, statement.first)
    return found


def statements(text: str) -> Iterator[TomlStatement]:
    """The statements of a text that is valid TOML, without comments.

    A statement ends with the line that makes it parse on its own, so no second parser is needed.
    """
    import tomllib  # noqa: PLC0415  # a verb imports what it uses

    table: KeyPath = ()
    statement, begins = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if not statement:
            begins = number
        statement += line + "\n"
        try:
            read = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        paths = list(_paths(read))
        if statement.lstrip().startswith("["):
            table = paths[-1]
        else:
            paths = [(*table, *path) for path in paths]
        if paths:
            yield TomlStatement(begins, number, table, tuple(paths))
        statement = ""


def _paths(table: Mapping[str, Any], above: KeyPath = ()) -> Iterator[KeyPath]:
    for name, value in table.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from _paths(value, (*above, name))


HOST = "{host}"
"""The placeholder for the host in the URL of a fleet."""

_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_FORMS = '["db1", "db2:5433"], "file:PATH" or "command:PROGRAM ..."'

Hosts = Callable[[Path, Mapping[str, str]], tuple[str, ...]]
"""The hosts of a fleet, from the configuration folder and the environment. ConsoleError."""

PROFILES, QUEUES, GROUPS, FLEETS = "profiles", "queues", "groups", "fleets"
HOSTS = "hosts"
FILTERS, QUEUE_FILTERS = "filters", "queue_filters"
RUNBOOKS = "runbooks"
"""What to do about a finding, by its code: in the layers as `runbooks.CODE`."""
_SEPARATE = (PROFILES, GROUPS, FLEETS)
READERS: Mapping[str, Callable[[Any], Any]] = {FILTERS: message_filter, QUEUE_FILTERS: queue_filter}
"""The tables of saved filters: for a queue's messages, and for the overview."""
NAMED_BY = {key.names_tables: key for key in KEYS.values() if key.names_tables}
"""The words of the tables whose names a key has, with that key."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WHERE_TOML_FAILED = re.compile(r" \(at line (\d+), column (\d+)\)$")


@dataclass(frozen=True)
class Mistake:
    """Something wrong in a file, a variable or an option."""

    location: str
    text: str
    table: KeyPath = ()
    """The profile, fleet, group or table of a feature that alone has it, as in `profiles.orders`;
    empty: it concerns every connection."""

    def __str__(self) -> str:
        return f"{self.location}: {self.text}"


@dataclass(frozen=True)
class ProfileTable:
    """One profile in the file."""

    values: Layer
    queues: Mapping[str, Layer]
    origin: Origin
    filters: Layer = field(default_factory=dict)
    """Of messages, by their names."""


@dataclass(frozen=True)
class FleetTable:
    """One fleet in the file."""

    pattern: ProfileTable
    """The values of its profiles, with {host} in the URL."""
    hosts: Hosts | None
    """None: invalid."""

    def profile(self, host: str) -> ProfileTable:
        """The profile of that host. WrongValueError."""
        url = self.pattern.values[URL.name]
        own = URL.value(url.written.replace(HOST, host), url.origin)
        return replace(self.pattern, values={**self.pattern.values, URL.name: own})


@dataclass(frozen=True)
class Document:
    """The contents of the file."""

    values: Layer
    profiles: Mapping[str, ProfileTable]
    mistakes: tuple[Mistake, ...] = ()
    groups: Mapping[str, Layer] = field(default_factory=dict)
    filters: Layer = field(default_factory=dict)
    """Of messages, by name."""
    queue_filters: Layer = field(default_factory=dict)
    """Of the overview, by name."""
    of_features: Mapping[str, Mapping[str, Layer]] = field(default_factory=dict)
    """The tables [WORD.x] of features, by word and name; empty if the feature is not here."""
    unread: tuple[Mistake, ...] = ()
    """The tables whose feature is not here: nothing is done with them."""
    fleets: Mapping[str, FleetTable] = field(default_factory=dict)

    def tables_of(self, word: str) -> Mapping[str, Layer]:
        """The tables [WORD.x] of a feature, by name."""
        return self.of_features.get(word, {})

    @property
    def tables(self) -> dict[KeyPath, ProfileTable]:
        """The profiles, and the pattern of each fleet, by their paths."""
        found: dict[KeyPath, ProfileTable] = {
            (PROFILES, name): table for name, table in self.profiles.items()
        }
        return found | {(FLEETS, name): fleet.pattern for name, fleet in self.fleets.items()}


def read(path: Path, text: str) -> Document:
    """Read the file's text. Mistakes are collected, not raised."""
    import tomllib  # noqa: PLC0415  # a verb imports what it uses

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return Document({}, {}, (_syntax_error(path, str(error)),))
    return _Reader(path, lines(text)).document(document)


def _syntax_error(path: Path, words: str) -> Mistake:
    where = _WHERE_TOML_FAILED.search(words)
    location = f"{path}:{where[1]}:{where[2]}" if where else str(path)
    return Mistake(location, f"not TOML: {_WHERE_TOML_FAILED.sub('', words)}")


_INNER = {
    KeyLevel.TOP: (PROFILES, FLEETS, GROUPS, FILTERS, QUEUE_FILTERS, RUNBOOKS),
    KeyLevel.PROFILE: (QUEUES, FILTERS, RUNBOOKS),
    KeyLevel.QUEUE: (RUNBOOKS,),
}


def _inner(level: KeyLevel) -> list[str]:
    """The tables of tables with names chosen by the user."""
    of_features = _feature_words() if level is KeyLevel.TOP else []
    return [*_INNER.get(level, ()), *of_features]


_UNREAD = (
    "is not read, for its feature is not in this console: remove the table, or use a console that "
    "has the feature"
)


def _feature_words() -> list[str]:
    """Of the tables of features, also of those that are not here if a key names them."""
    return list(dict.fromkeys((*feature_tables(), *NAMED_BY)))


class _Reader:
    def __init__(self, path: Path, known_lines: Mapping[tuple[str, ...], int]) -> None:
        self._path = path
        self._lines = known_lines
        self._of_features = feature_tables()
        self._mistakes: list[tuple[int, Mistake]] = []
        self._unread: list[Mistake] = []

    def document(self, found: Mapping[str, Any]) -> Document:
        """The contents of the file."""
        values = self._layer(found, (), KeyLevel.TOP)
        profiles = {
            name: self._profile(name, table) for name, table in self._tables(found, (PROFILES,))
        }
        fleets = {name: self._fleet(name, table) for name, table in self._tables(found, (FLEETS,))}
        used = [*profiles.values(), *(fleet.pattern for fleet in fleets.values())]
        groups = {
            name: self._group(name, table, used) for name, table in self._tables(found, (GROUPS,))
        }
        filters = self._filters(found, (FILTERS,))
        queue_filters = self._filters(found, (QUEUE_FILTERS,))
        of_features = {
            word: {
                name: self._feature_table((word, name), table, self._of_features.get(word))
                for name, table in self._tables(found, (word,))
            }
            for word in _feature_words()
        }
        in_order = sorted(self._mistakes, key=lambda found: found[0])
        mistakes = tuple(mistake for _, mistake in in_order)
        return Document(
            values,
            profiles,
            mistakes,
            groups,
            filters,
            queue_filters,
            of_features,
            tuple(self._unread),
            fleets,
        )

    def _fleet(self, name: str, table: Mapping[str, Any]) -> FleetTable:
        path = (FLEETS, name)
        if "/" in name:
            self._mistake(path, "needs a name without /: its profiles are NAME/HOST")
        inner = {word: written for word, written in table.items() if word != HOSTS}
        pattern = self._profile(name, inner, FLEETS)
        written = inner.get(URL.name)
        if isinstance(written, str) and HOST not in written:
            self._mistake((*path, URL.name), f"needs {HOST} in place of the host")
        group = {GROUP.name: GROUP.value(name, self._origin(path))} if name.strip() else {}
        hosts = None
        if HOSTS not in table:
            self._mistake(path, f"has no {HOSTS}")
        else:
            try:
                hosts = read_hosts(table[HOSTS])
            except WrongValueError as error:
                self._mistake((*path, HOSTS), str(error))
        return FleetTable(replace(pattern, values={**group, **pattern.values}), hosts)

    def _profile(self, name: str, table: Mapping[str, Any], within: str = PROFILES) -> ProfileTable:
        path = (within, name)
        values = self._layer(table, path, KeyLevel.PROFILE)
        if URL.name not in table:
            self._mistake(path, "has no url")
        if not name.strip() or not name.isprintable():
            self._mistake(path, "needs a visible name")
        queues = {
            queue: self._layer(inner, (*path, QUEUES, queue), KeyLevel.QUEUE)
            for queue, inner in self._tables(table, (*path, QUEUES))
        }
        filters = self._filters(table, (*path, FILTERS))
        return ProfileTable(values, queues, self._origin(path), filters)

    def _group(
        self, name: str, table: Mapping[str, Any], profiles: Iterable[ProfileTable]
    ) -> Layer:
        if not any(_is_in(profile_table, name) for profile_table in profiles):
            self._mistake((GROUPS, name), "is not the group of any profile")
        return self._layer(table, (GROUPS, name), KeyLevel.GROUP)

    def _feature_table(
        self, path: KeyPath, table: Mapping[str, Any], of: FeatureTables | None
    ) -> Layer:
        if of is None:
            self._unread.append(
                Mistake(str(self._origin(path)), f"{_dotted(path)} {_UNREAD}", path)
            )
            return {}
        if not NAME.fullmatch(path[-1]):
            self._mistake(path, "needs a name of letters, digits, _ and -")
        layer: dict[str, Value] = {}
        for word, written in table.items():
            here = (*path, word)
            try:
                layer[word] = of.keys[word].value(written, self._origin(here))
            except KeyError:
                known = list(of.keys)
                near = difflib.get_close_matches(word, known, n=1)
                advice = f'did you mean "{near[0]}"?' if near else f"known here: {', '.join(known)}"
                self._mistake(here, f"is not a known key; {advice}")
            except WrongValueError as error:
                self._mistake(here, str(error))
        if layer.keys() == table.keys():
            for word, why in of.wrong(layer):
                self._mistake((*path, word) if word in layer else path, why)
        return layer

    def _filters(self, table: Mapping[str, Any], path: tuple[str, ...]) -> Layer:
        """Saved filters, by their names."""
        written = table.get(path[-1], {})
        if not isinstance(written, dict):
            self._mistake(path, f"must be a table of filters, not {type_name(written)}")
            return {}
        filters: dict[str, Value] = {}
        for name, line in written.items():
            here = (*path, name)
            if not NAME.fullmatch(name):
                self._mistake(here, "needs a name of letters, digits, _ and -")
                continue
            try:
                filters[name] = Value(line, READERS[path[-1]](line), self._origin(here))
            except WrongValueError as error:
                self._mistake(here, str(error))
        return filters

    def _tables(
        self, table: Mapping[str, Any], path: tuple[str, ...]
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The inner tables, by the names chosen by the user."""
        outer = table.get(path[-1], {})
        if not isinstance(outer, dict):
            self._mistake(path, f"must have tables [{_dotted(path)}.NAME], not {type_name(outer)}")
            return
        for name, inner in outer.items():
            if isinstance(inner, dict):
                yield name, inner
            else:
                self._mistake((*path, name), f"must be a table, not {type_name(inner)}")

    def _layer(self, table: Mapping[str, Any], path: tuple[str, ...], level: KeyLevel) -> Layer:
        return dict([*self._values(table, path, level), *self._runbooks(table, path, level)])

    def _runbooks(
        self, table: Mapping[str, Any], path: tuple[str, ...], level: KeyLevel
    ) -> Iterator[tuple[str, Value]]:
        written = table.get(RUNBOOKS) if RUNBOOKS in _INNER.get(level, ()) else None
        if written is None:
            return
        if not isinstance(written, dict):
            self._mistake((*path, RUNBOOKS), f"must be a table, not {type_name(written)}")
            return
        from console.doctor.checks import CODES  # noqa: PLC0415  # slow to import

        known = [code.name for code in CODES]
        for code, of in written.items():
            here = (*path, RUNBOOKS, code)
            if code not in known:
                near = suggestion(code, known)
                self._mistake(here, f"is no finding{near if near.startswith(';') else ''}")
                continue
            try:
                yield f"{RUNBOOKS}.{code}", Value(of, text(of), self._origin(here))
            except WrongValueError as error:
                self._mistake(here, str(error))

    def _values(
        self, table: Mapping[str, Any], path: tuple[str, ...], level: KeyLevel, group: str = ""
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
                    inner = (f"{one} = ..." for one in _words(level, f"{name}."))
                    text = f"must be {{ {', '.join(inner)} }}, not {type_name(written)}"
                    self._mistake(here, text)
            elif group or word not in _inner(level):
                self._mistake(here, f"is not a known key{_advice(word, level, group)}")

    def _origin(self, path: tuple[str, ...]) -> Origin:
        return Origin(ValueSource.FILE, str(self._path), self._lines.get(path))

    def _mistake(self, path: tuple[str, ...], text: str) -> None:
        origin = self._origin(path)
        separate = path[1:] and path[0] in (*_SEPARATE, *_feature_words())
        table = path[:2] if separate else ()
        mistake = Mistake(str(origin), f"{_dotted(path)} {text}", table)
        self._mistakes.append((origin.line or 0, mistake))


def _is_in(profile: ProfileTable, group: str) -> bool:
    value = profile.values.get(GROUP.name)
    return value is not None and value.meaning == group


def _words(level: KeyLevel, group: str) -> list[str]:
    """The names allowed at this level: keys and tables of limits; with `group`, those within it."""
    names = [
        key.name.removeprefix(group)
        for key in KEYS.values()
        if level in key.levels and key.name.startswith(group)
    ]
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


def _advice(word: str, level: KeyLevel, group: str) -> str:
    """The end of a message about an unknown key."""
    known = _words(level, group) + ([] if group else _inner(level))
    if near := difflib.get_close_matches(word, known, n=1):
        return f'; did you mean "{near[0]}"?'
    elsewhere = [other.value for other in KeyLevel if not group and word in _words(other, "")]
    if elsewhere:
        return f"; it is allowed only {' or '.join(elsewhere)}"
    return f"; known here: {', '.join(known)}"


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(
        word if _BARE.fullmatch(word) else json.dumps(word, ensure_ascii=False) for word in path
    )


# Fleets: profiles `FLEET/HOST` that differ by host, in the group of the fleet.


def read_hosts(value: Any) -> Hosts:
    """A fleet's `hosts`. WrongValueError."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        if wrong := _wrong(value):
            raise WrongValueError(wrong)
        return lambda _, __: tuple(value)
    if not isinstance(value, str):
        raise WrongValueError(f"must be {_FORMS}, not {type_name(value)}")
    kind, _, rest = value.partition(":")
    if kind == "file" and rest.strip():
        return lambda folder, _: _of_file(folder / Path(rest).expanduser())
    if kind == "command":
        words = command_words(rest)
        return lambda _, environment: _of_command(words, environment)
    raise WrongValueError(f"must be {_FORMS}")


def _of_file(path: Path) -> tuple[str, ...]:
    """One host per line, with # comments."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "It is not UTF-8."
        raise ConsoleError(f"The file of hosts {str(path)!r} cannot be read.", why=why) from None
    return _hosts_of(text, str(path))


def _of_command(words: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str, ...]:
    printed, why = output(words, environment)
    if why:
        raise ConsoleError(
            f"The command {words[0]!r}, which should print hosts, {why}.",
            next_step="Run it by hand to see its output; it gets no input.",
        )
    return _hosts_of(printed, words[0])


def _hosts_of(text: str, where: str) -> tuple[str, ...]:
    words = [line.partition("#")[0].strip() for line in text.splitlines()]
    hosts = tuple(word for word in words if word)
    if wrong := _wrong(hosts):
        raise UsageError(f"The hosts of {where!r} cannot be used.", why=f"The list {wrong}.")
    return hosts


def _wrong(hosts: Iterable[str]) -> str:
    """What is wrong with them, or ""."""
    seen: set[str] = set()
    for host in hosts:
        if not _HOST.fullmatch(host):
            return f"has {host!r}, which is not a host: a name or address, or HOST:PORT"
        if host in seen:
            return f"names {host!r} twice"
        seen.add(host)
    return "" if seen else "names no host"
