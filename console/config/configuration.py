"""The whole configuration: the file, overridden by the environment and the command line."""

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from console.command_line import CommandLineValues
from console.config import profile as keys
from console.config.file_reader import (
    FLEETS,
    GROUPS,
    NAMED_BY,
    PROFILES,
    Document,
    KeyPath,
    Mistake,
    ProfileTable,
    read,
)
from console.config.profile import Profile, Settings
from console.config.urls import ConnectionUrl
from console.config.values import Layer, Origin, Value, ValueSource, WrongValueError
from console.errors import ConsoleError, UsageError
from console.filters import Saved
from console.rights import Rights
from console.state import configuration_folder

_EXAMPLE_URL = "postgresql+psycopg://user@host:5432/database"


class ConfigurationError(UsageError):
    """The configuration has mistakes; the message lists all of them."""


NO_VALUES = CommandLineValues()


@dataclass(frozen=True, repr=False)
class Configuration:
    """The configuration, before a connection is selected."""

    path: Path | None
    """Where the file is or would be; None: the user has no home directory."""
    exists: bool
    document: Document
    environment: Mapping[str, str]
    variables: Layer
    """The values that the environment sets."""
    mistakes: tuple[Mistake, ...] = ()
    """Of single profiles, fleets, groups and tables of features: only who uses one is refused."""

    def require(self, *tables: KeyPath) -> None:
        """ConfigurationError with the mistakes of these tables."""
        if mistakes := [mistake for mistake in self.mistakes if mistake.table in tables]:
            raise _error(mistakes)

    def require_all(self) -> None:
        """ConfigurationError with every mistake of the file."""
        self.require(*(mistake.table for mistake in self.mistakes))

    @property
    def names(self) -> list[str]:
        """The profiles' names in the file's order, then those of the fleets."""
        wrong = {mistake.table for mistake in self.mistakes}
        fleets = [one for one in self.document.fleets if (FLEETS, one) not in wrong]
        of_fleets = (name for fleet in fleets for name in self._of_fleet(fleet))
        return [*self.document.profiles, *of_fleets]

    @cached_property
    def _looked_up(self) -> dict[str, Mapping[str, ProfileTable]]:
        """The profiles of each fleet, looked up once."""
        return {}

    def _of_fleet(self, name: str) -> Mapping[str, ProfileTable]:
        """UsageError if its hosts cannot be determined."""
        if name not in self._looked_up:
            self._looked_up[name] = self._look_up(name)
        return self._looked_up[name]

    def _look_up(self, name: str) -> Mapping[str, ProfileTable]:
        fleet = self.document.fleets[name]
        folder = Path() if self.path is None else self.path.parent
        hosts = () if fleet.hosts is None else fleet.hosts(folder, self.environment)
        try:
            return {f"{name}/{host}": fleet.profile(host) for host in hosts}
        except WrongValueError as error:
            raise UsageError(
                f"The fleet {name!r} cannot be used.", why=f"Its url {error}"
            ) from None

    @property
    def saved(self) -> Saved:
        """The filters of every connection."""
        messages, queues = self.document.filters, self.document.queue_filters
        return Saved(
            {name: value.meaning for name, value in messages.items()},
            {name: value.meaning for name, value in queues.items()},
        )

    @property
    def defaults(self) -> Settings:
        """The settings of a profile without its own values."""
        return Settings((self.variables, self.document.values))

    def profiles(self, command_line: CommandLineValues = NO_VALUES) -> list[Profile]:
        """Every profile of the file, and of its fleets."""
        self.require(*((FLEETS, fleet) for fleet in self.document.fleets))
        return [self.profile(name, command_line) for name in self.names]

    def in_fleet(self, fleet: str, command_line: CommandLineValues = NO_VALUES) -> list[Profile]:
        """The profiles of that fleet, in the order of its hosts. UsageError if it is unknown."""
        if fleet not in self.document.fleets:
            raise UsageError(
                f"There is no fleet {fleet!r}.",
                why=f"Configured fleets: {', '.join(self.document.fleets) or 'none'}.",
                next_step='A fleet is a table [fleets.NAME] with url = "...{host}..." and hosts.',
            )
        self.require((FLEETS, fleet))
        return [self.profile(name, command_line) for name in self._of_fleet(fleet)]

    def in_group(self, group: str, command_line: CommandLineValues = NO_VALUES) -> list[Profile]:
        """The profiles of that group, in the file's order. UsageError if there are none."""
        self.require((FLEETS, group), (GROUPS, group))
        groups = {
            name: _settings(self, self._table(name), {})[0].value(keys.GROUP).meaning
            for name in self.names
        }
        found = [name for name, of in groups.items() if of == group]
        if not found:
            known = sorted({of for of in groups.values() if of is not None})
            raise UsageError(
                f"No profile is in a group {group!r}.",
                why=f"Configured groups: {', '.join(known) or 'none'}.",
                next_step='Put a profile into a group with: group = "..."',
            )
        return [self.profile(name, command_line) for name in found]

    def selected_profile(
        self, command_line: CommandLineValues, *, url_rights: Rights
    ) -> Profile | None:
        """The connection given, or None. UsageError. `url_rights`: the rights of a plain URL."""
        if command_line.url and command_line.profile:
            raise UsageError(
                "--url and --profile exclude each other.",
                next_step="A profile has its own URL: use only one of them.",
            )
        if command_line.profile:
            return self.profile(command_line.profile, command_line)
        if command_line.url:
            return self._of_url(
                command_line.url,
                Origin(ValueSource.COMMAND_LINE, "--url"),
                command_line,
                url_rights,
            )
        url, name = (self.environment.get(v) for v in ("DBQ_URL", "DBQ_PROFILE"))
        if url and name:
            raise UsageError(
                "DBQ_URL and DBQ_PROFILE are both set.",
                next_step="Unset one of them, or choose with --url or --profile.",
            )
        if name:
            return self.profile(name, command_line)
        if url:
            return self._of_url(
                url, Origin(ValueSource.ENVIRONMENT, "DBQ_URL"), command_line, url_rights
            )
        return None

    def no_database_error(self) -> UsageError:
        """The error for a verb that needs a database."""
        profiles = "--profile"
        if self.names:
            profiles += f" ({', '.join(self.names[:10])}{', ...' if self.names[10:] else ''})"
        return UsageError(
            "No database is named.",
            next_step=f"Name one with {profiles}, --url or in DBQ_URL, for example {_EXAMPLE_URL}",
        )

    def _table(self, name: str) -> ProfileTable:
        table = self.document.profiles.get(name)
        fleet, slash, _ = name.partition("/")
        if table is None and slash and fleet in self.document.fleets:
            self.require((FLEETS, fleet))
            table = self._of_fleet(fleet).get(name)
        if table is None:
            raise self._no_profile(name)
        return table

    def profile(self, name: str, command_line: CommandLineValues = NO_VALUES) -> Profile:
        """The profile of that name, which may be of a fleet. UsageError."""
        self.require((PROFILES, name))
        table = self._table(name)
        settings, queues = _settings(self, table, _layer_of(command_line))
        self.require((GROUPS, settings.value(keys.GROUP).meaning or ""))
        filters = {**self.document.filters, **table.filters}
        return Profile(name, settings, queues, self.environment, filters)

    def _of_url(
        self, text: str, origin: Origin, command_line: CommandLineValues, rights: Rights
    ) -> Profile:
        url = Value(text, ConnectionUrl.read(text), origin)
        given = Value(rights.word, rights, Origin(ValueSource.DEFAULT))
        table = ProfileTable({keys.URL.name: url}, {}, origin)
        settings, queues = _settings(
            self, table, _layer_of(command_line), {keys.RIGHTS.name: given}
        )
        return Profile(None, settings, queues, self.environment, self.document.filters)

    def _no_profile(self, name: str) -> UsageError:
        if "://" in name:  # not repeated: it may contain a password
            return UsageError(
                "A profile is given by its name, not by a URL.",
                next_step="Use --url or DBQ_URL for a URL.",
            )
        if not self.exists:
            return UsageError(
                f"There is no profile {name!r}.",
                why=f"There is no configuration file{f': {self.path}' if self.path else ''}.",
                next_step="See an example with: dbq-console config show --example",
            )
        near = difflib.get_close_matches(name, self.names, n=3)
        known = ", ".join(self.names) or "none"
        return UsageError(
            f"There is no profile {name!r}.",
            why=f"The profiles of {self.path}: {known}.",
            next_step=f"Did you mean: {', '.join(near)}?" if near else "",
        )


def load(environment: Mapping[str, str] | None = None) -> Configuration:
    """Read the file and the environment. ConfigurationError with the mistakes that concern every
    connection."""
    environment = dict(os.environ if environment is None else environment)
    path = file_path(environment)
    text = None if path is None else _text(path, must_exist=bool(environment.get("DBQ_CONFIG")))
    document = Document({}, {}) if path is None or text is None else read(path, text)
    mistakes = [*document.mistakes, *document.unread]
    variables = dict(_variables(environment, mistakes))
    configuration = Configuration(path, text is not None, document, environment, variables)
    mistakes += _inverted_limits(configuration)
    mistakes += _unknown_tables(configuration)
    if any(not mistake.table for mistake in mistakes):
        raise _error(mistakes)
    return replace(configuration, mistakes=tuple(mistakes))


def _error(mistakes: Sequence[Mistake]) -> ConfigurationError:
    texts = [*dict.fromkeys(map(str, mistakes))]  # one that several inherit only once
    return ConfigurationError(
        "The configuration has an error."
        if len(texts) == 1
        else f"The configuration has {len(texts)} errors.",
        why="\n".join(texts),
        next_step="Correct it, then check it with: dbq-console config validate",
    )


def file_path(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The path of the configuration file: DBQ_CONFIG, else by the XDG rule."""
    if given := environment.get("DBQ_CONFIG"):
        return Path(given)
    folder = configuration_folder(environment)
    return None if folder is None else folder / "config.toml"


def _text(path: Path, *, must_exist: bool) -> str | None:
    """The file's text, or None if it does not exist."""
    try:
        return path.read_bytes().decode()
    except (FileNotFoundError, NotADirectoryError) as error:
        if not must_exist:
            return None
        what = f"The configuration file {str(path)!r} cannot be read."
        raise ConfigurationError(what, why=error.strerror or "") from error
    except OSError as error:
        why = error.strerror or ""
    except UnicodeDecodeError as error:
        why = f"Byte {error.start + 1:,} is not UTF-8."
    raise ConsoleError(f"The configuration file {str(path)!r} cannot be read.", why=why)


def _variables(
    environment: Mapping[str, str], mistakes: list[Mistake]
) -> Iterator[tuple[str, Value]]:
    for key in keys.KEYS.values():
        if key.variable and (written := environment.get(key.variable)):
            try:
                yield key.name, key.value(written, Origin(ValueSource.ENVIRONMENT, key.variable))
            except WrongValueError as error:
                mistakes.append(Mistake(f"environment {key.variable}", str(error)))


def _layer_of(command_line: CommandLineValues) -> Layer:
    if not command_line.rights:
        return {}
    origin = Origin(ValueSource.COMMAND_LINE, "--rights")
    return {keys.RIGHTS.name: keys.RIGHTS.value(command_line.rights, origin)}


def _settings(
    configuration: Configuration,
    table: ProfileTable,
    command_line: Layer,
    defaults: Layer | None = None,
) -> tuple[Settings, dict[str, Settings]]:
    """The settings of a connection, and of each of its queues with its own thresholds."""
    over = (command_line, configuration.variables)
    group = table.values.get(keys.GROUP.name)
    shared = {} if group is None else configuration.document.groups.get(group.meaning, {})
    under = (table.values, shared, configuration.document.values, defaults or {})
    queues = {name: Settings((*over, layer, *under)) for name, layer in table.queues.items()}
    return Settings((*over, *under)), queues


def _inverted_limits(configuration: Configuration) -> list[Mistake]:
    """Limits that would be critical before they are a warning."""
    mistakes: dict[Mistake, None] = {}
    everywhere: list[tuple[KeyPath, Settings]] = [((), configuration.defaults)]
    for path, table in configuration.document.tables.items():
        own, queues = _settings(configuration, table, {})
        everywhere += [(path, one) for one in (own, *queues.values())]
    for path, settings in everywhere:
        for warning, critical in keys.LIMITS.values():
            low, high = settings.value(warning), settings.value(critical)
            if None in {low.meaning, high.meaning} or low.meaning <= high.meaning:
                continue
            text = (
                f"{critical.name} = {high.written} is below "
                f"{warning.name} = {low.written} ({low.origin})"
            )
            mistakes[Mistake(str(high.origin), text, path)] = None
    return list(mistakes)


def _unknown_tables(configuration: Configuration) -> list[Mistake]:
    """Names, in a key, of tables of a feature that do not exist."""
    mistakes: dict[Mistake, None] = {}
    own = [
        (path, _settings(configuration, table, {})[0])
        for path, table in configuration.document.tables.items()
    ]
    for path, settings in ((), configuration.defaults), *own:
        for word, key in NAMED_BY.items():
            value, known = settings.value(key), configuration.document.tables_of(word)
            for name in value.meaning or ():
                if name not in known:
                    near = difflib.get_close_matches(name, known, n=1)
                    advice = (
                        f'did you mean "{near[0]}"?'
                        if near
                        else f"known: {', '.join(known) or '-'}"
                    )
                    text = f"{key.name} names {name!r}, but there is no [{word}.{name}]; {advice}"
                    mistakes[Mistake(str(value.origin), text, path)] = None
    return list(mistakes)
