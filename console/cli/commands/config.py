"""Show the configuration, validate it, or print its path.

show: every value and its origin, secrets as ***; with --profile or --url, the values for that
connection. validate: exit 0, or 2 with every mistake. path: where the file belongs.

\b
Examples:
  dbq-console config show --example
  dbq-console config show --profile orders
  dbq-console config validate
  dbq-console config path
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from console.cli.context import Call
from console.config import KEYS, KeyLevel, Profile, Settings, Value, file_path, load
from console.config.feature_tables import example_file, feature_tables
from console.config.passwords import PasswordSource
from console.config.urls import HIDDEN
from console.config.values import Redacted
from console.errors import ConsoleError, UsageError
from console.filters import MARK
from console.formats import numbered
from console.verbs.command import Command
from console.verbs.parameters import Parameter, argument

Shown = Mapping[str, Value]
"""Key -> its value in force."""


def _run(call: Call, action: str, example: bool) -> None:
    if example and action != "show":
        raise UsageError("--example goes with show.")
    if example:
        text = example_file()
        call.answer_script({"example": text}, text)
    else:
        {"show": _show, "validate": _validate, "path": _path}[action](call)


def _path(call: Call) -> None:
    path = file_path()
    if path is None:
        raise ConsoleError(
            "There is no path for a configuration file.",
            why="This user has no home directory.",
            next_step="Name a file in DBQ_CONFIG.",
        )
    there = path.exists()
    call.answer({"path": str(path), "exists": there}, [f"{path}{'' if there else _MISSING}"])


_MISSING = "  (does not exist)"


def _validate(call: Call) -> None:
    configuration = load()
    configuration.require_all()
    where = f"{configuration.path}{'' if configuration.exists else _MISSING}"
    messages, queues = configuration.document.filters, configuration.document.queue_filters
    own = sum(len(table.filters) for table in configuration.document.profiles.values())
    kept = len(messages) + len(queues) + own
    filters = f", {numbered(kept, 'saved filter')}" if kept else ""
    of_features = {word: list(configuration.document.tables_of(word)) for word in feature_tables()}
    profiles = configuration.profiles(call.command_line)
    protections = {profile.label: profile.protection for profile in profiles}
    counts = "".join(
        f", {numbered(len(of_features[word]), table.noun)} of {word}"
        for word, table in feature_tables().items()
        if of_features[word]
    )
    call.answer(
        {
            "path": _text(configuration.path),
            "exists": configuration.exists,
            "profiles": configuration.names,
            "filters": list(messages),
            "queue_filters": list(queues),
            **of_features,
            "transport": protections,
        },
        [
            f"{where}: valid; {numbered(len(configuration.names), 'profile')}{filters}{counts}",
            *(f"  {name}: {words}" for name, words in protections.items()),
        ],
    )


def _show(call: Call) -> None:
    configuration = call.configuration
    meant = call.profile
    profiles = [] if meant is None else [meant]
    if not (call.command_line.url or call.command_line.profile):
        profiles += [
            p
            for p in configuration.profiles(call.command_line)
            if meant is None or p.name != meant.name
        ]
    defaults = {
        k: v for k, v in _all(configuration.defaults).items() if KeyLevel.TOP in KEYS[k].levels
    }
    of_features = {
        word: {
            name: {key: Settings((layer,)).value(of) for key, of in table.keys.items()}
            for name, layer in configuration.document.tables_of(word).items()
        }
        for word, table in feature_tables().items()
    }
    answer = {
        "path": _text(configuration.path),
        "exists": configuration.exists,
        "defaults": _as_json(defaults),
        "profiles": [
            {
                "profile": profile.name,
                "meant": profile is meant,
                "settings": _as_json(_all(profile.settings)),
                "queues": {name: _as_json(own) for name, own in _queues(profile)},
                "filters": _as_json(profile.filters),
            }
            for profile in profiles
        ],
        "filters": _as_json(configuration.document.filters),
        "queue_filters": _as_json(configuration.document.queue_filters),
        **{
            word: {name: _as_json(values) for name, values in tables.items()}
            for word, tables in of_features.items()
        },
    }
    lines = [f"{configuration.path}{'' if configuration.exists else _MISSING}", "", "defaults"]
    lines += _table(defaults)
    shared = configuration.document.filters
    lines += _filters("filters of messages", shared)
    lines += _filters("filters of the overview", configuration.document.queue_filters)
    for word, tables in of_features.items():
        for name, values in tables.items():
            lines += ["", f"{word} {name}", *_table(values)]
    for profile in profiles:
        lines += ["", *_profile_lines(profile, shared, meant=profile is meant)]
    call.answer(answer, lines)


def _profile_lines(profile: Profile, shared: Shown, *, meant: bool) -> Iterator[str]:
    """`shared`: the filters of every connection, which are listed once."""
    head = "no profile, a URL" if profile.name is None else f"profile {profile.name}"
    yield head + ("  (used by verbs without --url or --profile)" if meant else "")
    yield from _table(_all(profile.settings))
    for name, own in _queues(profile):
        yield f"  queue {json.dumps(name, ensure_ascii=False)}"
        yield from (f"  {line}" for line in _table(own))
    own_filters = {k: v for k, v in profile.filters.items() if v is not shared.get(k)}
    yield from _table(_marked(own_filters))


def _filters(title: str, filters: Mapping[str, Value]) -> list[str]:
    return ["", title, *_table(_marked(filters))] if filters else []


def _marked(filters: Mapping[str, Value]) -> Shown:
    """With the mark that they are typed with."""
    return {f"{MARK}{name}": value for name, value in filters.items()}


def _all(settings: Settings) -> Shown:
    return {name: settings.value(key) for name, key in KEYS.items()}


def _queues(profile: Profile) -> Iterator[tuple[str, Shown]]:
    """The thresholds of each queue that differ from its profile's."""
    general = _all(profile.settings)
    for name, settings in profile.queues.items():
        yield name, {k: v for k, v in _all(settings).items() if v != general[k]}


def _as_json(values: Mapping[str, Value]) -> dict[str, object]:
    return {
        name: {
            "value": _plain(value),
            "source": str(value.origin.source),
            "name": value.origin.name or None,
            "line": value.origin.line,
        }
        for name, value in values.items()
    }


def _table(values: Mapping[str, Value]) -> Iterator[str]:
    rows = [(name, _in_words(value), str(value.origin)) for name, value in values.items()]
    names = max((len(name) for name, _, _ in rows), default=0)
    widest = min(max((len(words) for _, words, _ in rows), default=0), 40)
    for name, words, origin in rows:
        yield f"  {name:<{names}}  {words:<{widest}}  {origin}"


def _plain(value: Value) -> Any:
    """The value as it was written, without secrets."""
    if isinstance(value.meaning, Redacted):
        return value.meaning.shown
    return HIDDEN if isinstance(value.meaning, PasswordSource) else value.written


def _in_words(value: Value) -> str:
    if value.written is None:
        return "-"
    if isinstance(value.meaning, PasswordSource):
        return f"{HIDDEN} ({value.meaning.kind})"
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _text(path: object) -> str | None:
    return None if path is None else str(path)


_PARAMETERS = (
    argument("action", type=click.Choice(["show", "validate", "path"])),
    Parameter("example", "With show: a commented file to start from.", is_flag=True),
)
COMMAND = Command("config", _run, __doc__, _PARAMETERS)
