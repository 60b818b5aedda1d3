"""What can be typed behind `:`: read, and answered in words where it is wrong.

A command goes somewhere, or opens a form with its fields filled. None changes data by itself.
"""

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from console.config import writing
from console.config.reading import FILTERS
from console.errors import UsageError
from console.monitor import filters as filtering
from console.monitor.filter_line import line_of, words_of
from console.monitor.saved import MARK, Words, expand
from console.tui.actions import bench
from console.tui.actions import pipeline as jobs
from console.tui.actions.fields import BY_VERB, Field, Form, Kind, Put
from console.tui.actions.fields import line_of as field_line
from console.tui.board import Key
from console.tui.desk import Desk
from console.tui.text import plain

TABS = ("findings", "messages", "errors", "stuck", "waits", "slots", "sql", "audit")


class Shell(Protocol):
    """What commands need of the application, beside the ways."""

    def open_messages(self, key: Key, words: Sequence[str] = ()) -> None:
        """A queue's messages, with a filter."""

    def choose_theme(self, name: str) -> None:
        """Other colours."""

    def tell(self, words: str) -> None:
        """Something that was done."""

    def action_help(self) -> None:
        """The help."""

    def exit(self) -> None:
        """Quit."""


@dataclass(frozen=True)
class InSight:
    """The filter of what is on the screen, as the configuration would have it."""

    kind: str
    """FILTERS, of messages; or QUEUE_FILTERS, of the overview."""
    line: str


@dataclass(frozen=True)
class Site:
    """Where a command is typed."""

    desk: Desk
    shell: Shell
    key: Key | None = None
    """The queue under the cursor."""
    themes: tuple[str, ...] = ()
    in_sight: InSight | None = None
    """The filter that could be saved."""

    @property
    def connection(self) -> str:
        """Where new things go unless said otherwise."""
        if self.key is not None:
            return self.key[0]
        return next(iter(self.desk.places), "")

    @property
    def keys(self) -> list[Key]:
        """Every queue that is known now."""
        return [view.key for view in self.desk.board.queues(self.desk.clock.monotonic())]

    @property
    def filters(self) -> Words:
        """The saved filters of messages of the queue under the cursor, or of every queue."""
        return self.desk.saved.messages if self.key is None else self.desk.filters(self.key)

    def is_saved(self, word: str) -> bool:
        """Whether it means a saved filter, and no queue."""
        return word.startswith(MARK) and not any(word in names_of(key) for key in self.keys)


Do = Callable[[Site, list[str]], None]


@dataclass(frozen=True)
class Command:
    """One of them. `wants`: what its words are, for the completion."""

    name: str
    usage: str
    summary: str
    do: Do
    wants: str = ""
    """queue, connection, theme; empty: nothing."""
    also: tuple[str, ...] = ()
    """Other names that it has."""


def run(site: Site, line: str) -> None:
    """Do what the line says. UsageError, with what would be right."""
    words = words_of(line.strip().removeprefix(":"))
    if not words:
        return
    command = command_named(words[0])
    command.do(site, words[1:])


def command_named(name: str) -> Command:
    """The command of a name, or of what only one begins with. UsageError."""
    if name in BY_NAME:
        return BY_NAME[name]
    begins = sorted({c.name for n, c in BY_NAME.items() if n.startswith(name)})
    if len(begins) == 1:
        return BY_NAME[begins[0]]
    near = begins or difflib.get_close_matches(name, BY_NAME, n=3, cutoff=0.5)
    raise UsageError(
        f"There is no command {plain(name)!r}.",
        next_step=f"Did you mean: {', '.join(near)}?" if near else "? lists them.",
    )


def queue_named(site: Site, name: str) -> Key:
    """The queue of a name, of schema.name or of connection/schema.name. UsageError."""
    keys = site.keys
    found = [key for key in keys if name in names_of(key)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(plain("/".join((key[0], f"{key[1]}.{key[2]}"))) for key in found[:5])
        raise UsageError(f"There are {len(found)} queues {plain(name)!r}.", next_step=f"{names}")
    near = difflib.get_close_matches(name, [key[2] for key in keys], n=3, cutoff=0.5)
    raise UsageError(
        f"There is no queue {plain(name)!r} here.",
        next_step=f"Did you mean: {', '.join(map(plain, near))}?" if near else "",
    )


def names_of(key: Key) -> tuple[str, ...]:
    """All that a queue may be called, the shortest first."""
    connection, schema, name = key
    return (name, f"{schema}.{name}", f"{connection}/{name}", f"{connection}/{schema}.{name}")


def quoted(word: str) -> str:
    """The word as it has to be typed."""
    return line_of([word])


def _queue_and_rest(site: Site, words: list[str]) -> tuple[Key, list[str]]:
    """The queue that is named, or else the one under the cursor; and the other words."""
    if words and not _is_option(words[0]) and not site.is_saved(words[0]):
        return queue_named(site, words[0]), words[1:]
    if site.key is None:
        raise UsageError("Which queue?", next_step="Name it, or put the cursor on it.")
    return site.key, words


def _is_option(word: str) -> bool:
    return word.startswith("--") or _is_filter(word)


def _is_filter(word: str) -> bool:
    try:
        filtering.parse([word])
    except UsageError:
        return False
    return True


def _nothing_else(words: Sequence[str]) -> None:
    if words:
        raise UsageError(f"{plain(words[0])!r} has no meaning here.")


# What they do.


def _messages(site: Site, words: list[str]) -> None:
    key, rest = _queue_and_rest(site, words)
    site.shell.open_messages(key, _filters(site, key, rest))


def _queue(site: Site, words: list[str]) -> None:
    key, rest = _queue_and_rest(site, words)
    tab = rest[0] if rest else ""
    if tab and tab not in TABS:
        raise UsageError(
            f"A queue has no tab {plain(tab)!r}.", next_step=f"Tabs: {', '.join(TABS)}"
        )
    _nothing_else(rest[1:])
    site.desk.ways.open_queue(key, tab)


def _errors(site: Site, words: list[str]) -> None:
    key, rest = _queue_and_rest(site, words)
    _nothing_else(rest)
    site.desk.ways.open_queue(key, "errors")


def _actions(site: Site, words: list[str]) -> None:
    key, rest = _queue_and_rest(site, words)
    site.desk.ways.open_actions(key, _filters(site, key, rest))


def _filters(site: Site, key: Key, words: list[str]) -> list[str]:
    given = (word for word in words if word != "--filter")
    found = [*expand(given, site.desk.filters(key))]
    filtering.parse(found)
    return found


def _verb(form: Form) -> Do:
    def do(site: Site, words: list[str]) -> None:
        key, rest = _queue_and_rest(site, words)
        filters, options = read_options(form, rest, site.desk.filters(key))
        site.desk.ways.open_action(key, form.verb, filters, **options)

    return do


def read_options(
    form: Form, words: list[str], saved: Words | None = None
) -> tuple[list[str], dict[str, str]]:
    """The filters and the fields that the words of a verb say, as the command line has them."""
    fields = {field.name: field for field in form.fields}
    filters: list[str] = []
    options: dict[str, str] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            field = fields.get(name)
            if field is None:
                known = ", ".join(f"--{name}" for name in fields) or "no options"
                raise UsageError(
                    f"{form.verb} has no {plain(word)}.", next_step=f"It has: {known}."
                )
            if field.kind is Kind.FLAG:
                options[name] = "yes"
                continue
            if not equals:
                if not left:
                    raise UsageError(f"{plain(word)} wants a value: {field.summary}.")
                value = left.pop(0)
            if field.kind is Kind.FILTERS:
                filters += expand([value], saved or {})
            else:
                _check(field, value)
                options[name] = value
        elif "filter" in fields and (_is_filter(word) or word.startswith(MARK)):
            filters += expand([word], saved or {})
        else:
            _argument(form, word, options)
    filtering.parse(filters)
    return filters, options


def _check(field: Field, value: str) -> None:
    try:
        field.check(value)
    except UsageError as error:
        raise UsageError(f"{field.name}: {error.what}", next_step=error.next_step) from None


def _argument(form: Form, word: str, options: dict[str, str]) -> None:
    for field in form.fields:
        if field.put is Put.ARGUMENT and field.name not in options:
            _check(field, word)
            options[field.name] = word
            return
    raise UsageError(f"{plain(word)!r} has no meaning for {form.verb}.")


def _smoke(site: Site, words: list[str]) -> None:
    key, rest = _queue_and_rest(site, words)
    _nothing_else(rest)
    site.desk.ways.open_smoke(key)


def _pipeline(site: Site, words: list[str]) -> None:
    verb = words[0] if words else ""
    form = jobs.BY_VERB.get(verb)
    if form is None:
        known = ", ".join(jobs.BY_VERB)
        raise UsageError(
            "Which job?" if not verb else f"There is no job {plain(verb)!r}.",
            next_step=f"There are: {known}.",
        )
    key, rest = None, words[1:]
    if verb in jobs.ABOUT_A_QUEUE:
        key, rest = _queue_and_rest(site, rest)
    filters, rest = _replays_filters(rest) if verb == "replay" else ([], rest)
    _, options = read_options(form, rest)
    if filters:
        options["filter"] = field_line(tuple(filters))
    site.desk.ways.open_pipeline(verb, key, **options)


def _replays_filters(words: list[str]) -> tuple[list[str], list[str]]:
    """Filters of a replay, which are others than those of messages here; and the other words."""
    filters, rest, left = [], [], list(words)
    while left:
        word = left.pop(0)
        if word == "--filter" and left:
            filters.append(left.pop(0))
        elif word.startswith("--filter="):
            filters.append(word.removeprefix("--filter="))
        elif _OF_A_REPLAY.match(word):
            filters.append(word)
        else:
            rest.append(word)
    return filters, rest


_OF_A_REPLAY = re.compile(r"(id|state|error|reason|title|since|until)[=~]")


def _audit(site: Site, words: list[str]) -> None:
    if not words:
        site.desk.ways.open_audit()
    elif words[0] in site.desk.places:
        site.desk.ways.open_audit(words[0])
    else:
        site.desk.ways.open_audit(key=queue_named(site, words[0]))


def _doctor(site: Site, words: list[str]) -> None:
    site.desk.ways.examine(queue_named(site, words[0]) if words else None)


def _at_connection(way: Callable[[Site], Callable[[str], None]]) -> Do:
    def do(site: Site, words: list[str]) -> None:
        name = _connection(site, words[:1])
        _nothing_else(words[1:])
        way(site)(name)

    return do


def _connection(site: Site, words: list[str]) -> str:
    """The connection that is named, or else the one where the cursor is."""
    if not words:
        return site.connection
    if words[0] not in site.desk.places:
        known = ", ".join(map(plain, site.desk.places)) or "none"
        raise UsageError(
            f"There is no connection {plain(words[0])!r}.", next_step=f"There are: {known}"
        )
    return words[0]


def _bench(site: Site, words: list[str]) -> None:
    named = [word for word in words[:1] if not word.startswith("--")]
    name = _connection(site, named)
    _, options = read_options(bench.FORM, words[len(named) :])
    site.desk.ways.open_bench(name, **options)


def _theme(site: Site, words: list[str]) -> None:
    if not words or words[0] not in site.themes:
        raise UsageError("Which theme?", next_step=f"There are: {', '.join(site.themes)}")
    keep = words[1:2] == ["--save"]
    _nothing_else(words[2:] if keep else words[1:])
    site.shell.choose_theme(words[0])
    if keep:
        path = _file(site)
        writing.save_theme(path, words[0])
        site.shell.tell(f"The theme is {words[0]} from now on, by {path}.")


def _file(site: Site) -> Path:
    """The configuration. UsageError where this console has none."""
    if site.desk.config_path is None:
        raise UsageError(
            "Nothing can be saved from here.", why="This console has no configuration file."
        )
    return site.desk.config_path


def _save(site: Site, words: list[str]) -> None:
    """Keep the filter that is in sight."""
    if not words:
        raise UsageError("Under which name?", next_step="Example: :save late")
    _nothing_else(words[1:])
    name, one, path = words[0].removeprefix(MARK), site.in_sight, _file(site)
    if one is None:
        raise UsageError(
            "There is no filter in sight.",
            next_step="Filter the overview, or a list of messages, with / first.",
        )
    writing.save_filter(path, one.kind, name, one.line)
    saved = site.desk.saved
    if one.kind == FILTERS:
        messages = {**saved.messages, name: tuple(words_of(one.line))}
        site.desk.saved = replace(saved, messages=messages)
    else:
        site.desk.saved = replace(saved, queues={**saved.queues, name: one.line})
    where = "in lists of messages" if one.kind == FILTERS else "on the overview"
    site.shell.tell(f"Saved in {path}: {MARK}{name} behind / {where}.")


def _simply(way: Callable[[Site], Callable[[], None]]) -> Do:
    def do(site: Site, words: list[str]) -> None:
        _nothing_else(words)
        way(site)()

    return do


COMMANDS: tuple[Command, ...] = (
    Command(
        "messages", "[QUEUE] [FILTER...]", "its messages: q orders state=error", _messages,
        "queue", ("q",),
    ),
    Command("queue", "[QUEUE] [TAB]", "its screen, on a tab", _queue, "queue"),
    Command("errors", "[QUEUE]", "its errors, by kind", _errors, "queue"),
    Command("actions", "[QUEUE] [FILTER...]", "what can be done with it", _actions, "queue"),
    *(
        Command(form.verb, "[QUEUE] ...", f"the form: {form.summary}", _verb(form), "queue")
        for form in BY_VERB.values()
        if form.verb != "doctor"
    ),
    Command("smoke", "[QUEUE]", "try its design out", _smoke, "queue"),
    Command("doctor", "[QUEUE]", "let the doctor look now", _doctor, "queue"),
    Command(
        "waits", "[CONNECTION]", "what the sessions wait for",
        _at_connection(lambda site: site.desk.ways.open_waits), "connection",
    ),
    Command("runs", "", "the runs of the pipeline", _simply(lambda site: site.desk.ways.open_runs)),
    Command(
        "pipeline", "JOB [QUEUE] ...", f"the form: {', '.join(jobs.BY_VERB)}", _pipeline, "job",
    ),
    Command(
        "bench", "[CONNECTION] ...", f"the form: {bench.FORM.summary}", _bench, "connection",
    ),
    Command("audit", "[QUEUE | CONNECTION]", "who did what", _audit, "both"),
    Command(
        "install", "[CONNECTION]", "a new queue",
        _at_connection(lambda site: site.desk.ways.open_install), "connection",
    ),
    Command(
        "adopt", "[CONNECTION]", "a table that is a queue already",
        _at_connection(lambda site: site.desk.ways.open_adopt), "connection",
    ),
    Command(
        "connections", "", "how they are; a new one",
        _simply(lambda site: site.desk.ways.open_connections),
    ),
    Command(
        "running", "", "the actions that run here",
        _simply(lambda site: site.desk.ways.open_running),
    ),
    Command(
        "save", "NAME", "keep the filter in sight, for / and --filter: @NAME", _save,
    ),
    Command("theme", "NAME [--save]", "other colours, for now or for good", _theme, "theme"),
    Command("help", "", "the keys", _simply(lambda site: site.shell.action_help)),
    Command("quit", "", "quit", _simply(lambda site: site.shell.exit), "", ("q!",)),
)  # fmt: skip

BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.also)}
