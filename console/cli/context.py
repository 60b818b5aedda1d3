"""One call of a verb: its connection, schema, rights and output; completions for the shell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import cached_property
from typing import TYPE_CHECKING

import click

from console.cli.streams import Answers, put, put_script
from console.command_line import CommandLineValues
from console.errors import ConsoleError, RefusedError, UsageError
from console.formats import plain
from console.rights import Rights

if TYPE_CHECKING:
    from console.catalog import Queue
    from console.config import Configuration, Profile, Settings
    from console.engines import Database, Product
    from console.engines.standby import Standby
    from console.filters import Words
    from console.monitor.limits import Thresholds
    from console.monitor.message import Masks

COMMAND_LINE = "console.cli.command_line"
"""Key of a click context's meta: the options given before the verb."""
WORDS = "console.cli.words"
"""Key of a click context's meta: the words after the verb, as typed."""
ON_RESULT = "console.cli.on_result"
"""Key of a click context's meta: a callback that also receives the result of the verb."""
ON_ONLY_PLANNED = "console.cli.on_only_planned"
"""Key of a click context's meta: a callback where a plan was shown and not confirmed."""


@dataclass(frozen=True)
class Call:
    """One call of a verb: its connection, rights and output."""

    command_line: CommandLineValues
    schema: str | None
    json: bool
    verb: str = ""
    needs: Rights = Rights.READ_ONLY
    """The right that the verb needs with these options."""

    @property
    def connection_words(self) -> tuple[str, ...]:
        """Options that printed commands need to name the connection; none if there is only one."""
        return ()

    @property
    def of_several(self) -> bool:
        """Whether others run beside it, so that the terminal is not its own."""
        return bool(self.connection_words)

    @cached_property
    def configuration(self) -> Configuration:
        """The configuration, read at the first use."""
        from console import config  # noqa: PLC0415  # a verb imports what it uses

        return config.load()

    @cached_property
    def profile(self) -> Profile | None:
        """The connection of the call; None if none is given."""
        return self.configuration.selected_profile(self.command_line, url_rights=Rights.ADMIN)

    def saved_filters(self, given: Sequence[str]) -> Words:
        """The saved filters, if one of these words refers to one."""
        from console.filters import MARK  # noqa: PLC0415  # a verb imports what it uses

        if not any(word.startswith(MARK) for word in given):
            return {}  # without reading the configuration
        profile = self.profile
        return self.configuration.saved.messages if profile is None else profile.saved_words

    def filter_words(self, given: Sequence[str]) -> tuple[str, ...]:
        """The words of `--filter`, with `@NAME` expanded. UsageError."""
        from console.filters import expand  # noqa: PLC0415  # a verb imports what it uses

        return expand(given, self.saved_filters(given))

    @property
    def product(self) -> Product | None:
        """The engine of the connection; None if none is given."""
        return None if self.profile is None else self.profile.product

    def engine_named(self, name: str | None) -> Product:
        """The engine of that name, else that of the connection."""
        from console import engines  # noqa: PLC0415  # a verb imports what it uses

        if name is not None:
            return engines.product(name)
        if self.product is None:
            raise UsageError(
                "No engine was named.",
                next_step=f"Name one with --engine: {', '.join(sorted(engines.PRODUCTS))}.",
            )
        return self.product

    @property
    def rights(self) -> Rights:
        """What the connection may do."""
        return Rights.READ_ONLY if self.profile is None else self.profile.rights

    @property
    def zone(self) -> tzinfo | None:
        """The time zone for `console.formats`."""
        return UTC if self.profile is None else self.profile.display_zone

    @property
    def masks(self) -> Masks:
        """Patterns to hide in payloads, titles and errors."""
        return () if self.profile is None else self.profile.masks

    def thresholds(self, queue: str) -> Thresholds:
        """The limits of the queue of that name."""
        from console.monitor.limits import DEFAULTS  # noqa: PLC0415  # a verb imports what it uses

        return DEFAULTS if self.profile is None else self.profile.thresholds(queue)

    def settings_of(self, queue: str) -> Settings:
        """Of the queue of that name; without a connection those of every profile."""
        if self.profile is None:
            return self.configuration.defaults
        return self.profile.settings_of(queue)

    def archived_after(self, queue: str) -> float | None:
        """As its profile's."""
        return 0.0 if self.profile is None else self.profile.archived_after(queue)

    def expires_after(self, queue: str) -> float | None:
        """As its profile's."""
        return None if self.profile is None else self.profile.expires_after(queue)

    def database(self, verb: str = "") -> Database:
        """The database of the call. RefusedError if its rights are insufficient. `verb`: with the
        option that needs the right."""
        from console.config import RIGHTS  # noqa: PLC0415  # a verb imports what it uses

        verb, needs = verb or self.verb, self.needs
        if self.profile is None:
            raise self.configuration.no_database_error()
        rights, origin = self.profile.rights, self.profile.settings.value(RIGHTS).origin
        if rights < needs:
            why = f"This connection has {rights.word} ({origin})."
            from console.catalog import audit  # noqa: PLC0415  # a verb imports what it uses

            subject = audit.Subject(verb, self.schema or "", "", self.profile.name or "")
            audit.log_locally(subject, audit.Outcome.REFUSED, detail=why)
            raise RefusedError(
                f"{verb} needs the right {needs.word}.",
                why=why,
                next_step="Use a connection with more rights, or --rights.",
            )
        database = self.profile.open()
        click.get_current_context().call_on_close(database.close)
        if needs > Rights.READ_ONLY:
            database.require_primary(verb)
        else:
            self._read_from.append(database)
        return database

    @cached_property
    def _read_from(self) -> list[Database]:
        """The database that a verb only reads from, if there is one."""
        return []

    def standby(self) -> Standby | None:
        """What the database that the verb has read is, if it is a standby."""
        with suppress(ConsoleError):  # whatever was read is the result
            return next(
                (database.standby() for database in self._read_from if database.connected), None
            )
        return None

    def _as_of_standby(
        self, value: object, lines: Sequence[str], *, in_words: bool
    ) -> tuple[object, Sequence[str]]:
        """The result of a verb that reads, which says of a standby that it is one."""
        if not self._read_from or not isinstance(value, dict):
            return value, lines
        standby = self.standby()
        result = value | {"standby": None if standby is None else standby.as_json()}
        if standby is None or not in_words:
            return result, lines
        return result, [standby.sentence(self.zone), *lines]

    def find(
        self,
        database: Database,
        name: str,
        *,
        any_design: bool = False,
        subscriber: str | None = None,
    ) -> Queue:
        """The queue of that name, in --schema or in any; or what its subscriber has of it.
        `any_design`: as `catalog.find`."""
        from console import catalog  # noqa: PLC0415  # a verb imports what it uses

        queue = catalog.look_up(database, name, self.schema, any_design=any_design)
        return queue if subscriber is None else queue.of(subscriber)

    def queues(self, database: Database) -> list[Queue]:
        """All queues in use, in --schema or in any."""
        from console import catalog  # noqa: PLC0415  # a verb imports what it uses

        return [queue for queue in catalog.in_use(database) if self.schema in (None, queue.schema)]

    def production(self, database: Database) -> bool:
        """Whether the connection or the database itself is marked as production."""
        if database.production:
            return True
        from console import catalog  # noqa: PLC0415  # a verb imports what it uses

        with database.transaction("read the catalog", read_only=True) as connection:
            return catalog.is_production(connection)

    def planned(self, value: Mapping[str, object], lines: Sequence[str]) -> None:
        """Print a plan that is not run as the result. With --json, the error that says why not is
        added to the same object."""
        plan = {**value, "done": 0}
        self._report(plan, lines)
        if self.json:
            self.answers.hold(plan)
        else:
            _print(lines)

    @property
    def answers(self) -> Answers:
        """The JSON result of this call."""
        found = click.get_current_context().find_object(Answers)
        assert found is not None  # noqa: S101  # every call has it
        return found

    @staticmethod
    def _report(value: object, lines: Sequence[str]) -> None:
        if on_result := click.get_current_context().meta.get(ON_RESULT):
            on_result(value, lines)

    def schema_for(self, database: Database) -> str:
        """The schema of new queues."""
        return database.product.default_schema if self.schema is None else self.schema

    def answer(self, value: object, lines: Sequence[str], *, says_standby: bool = True) -> None:
        """Print the result on stdout: one JSON object with --json, else the lines, without control
        characters. `says_standby`: that a standby was read is said before them, not in them."""
        value, lines = self._as_of_standby(value, lines, in_words=says_standby)
        self._report(value, lines)
        if self.json:
            self.answers.give(value)
        else:
            _print(lines)

    def answer_script(self, value: object, script: str) -> None:
        """Print the script on stdout as it is, for a file or an editor; the value with --json."""
        if self.json:
            self.answer(value, [])
        else:
            put_script(script)


def _print(lines: Sequence[str]) -> None:
    put("".join(f"{plain(line)}\n" for line in lines))


def aligned(rows: Sequence[Sequence[str]], left: int = 0, gap: str = "  ") -> list[str]:
    """In columns: the first `left` are aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(
            f"{cell:{'<' if at < left else '>'}{widths[at]}}" for at, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


def complete_profiles(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """For shell completion; mistakes in the file are left to the verbs to report."""
    from console import config  # noqa: PLC0415  # a verb imports what it uses

    try:
        return [name for name in config.load().names if name.startswith(begun)]
    except ConsoleError:
        return []


def complete_queues(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """For shell completion: the queues of the connection, or of all, when last sampled. It does
    not connect."""
    from console import config  # noqa: PLC0415  # a verb imports what it uses
    from console.monitor import known_queues  # noqa: PLC0415

    try:
        profile = config.load().selected_profile(_typed(context), url_rights=Rights.ADMIN)
    except ConsoleError:
        return []
    known = known_queues.names(None if profile is None else profile.label)
    return [name for name in known if name.startswith(begun)]


def complete_filters(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion: the forms of filters up to their values, and saved filters."""
    from console import config  # noqa: PLC0415  # a verb imports what it uses
    from console.filters import MARK  # noqa: PLC0415
    from console.monitor.filters import FORMS  # noqa: PLC0415

    names = [re.split("(?<=[=~.])", form)[0] for form in FORMS]
    with suppress(ConsoleError):  # verbs report errors in the configuration
        configuration = config.load()
        layers = [
            configuration.document.filters,
            *(profile.filters for profile in configuration.profiles()),
        ]
        names += sorted({f"{MARK}{name}" for layer in layers for name in layer})
    return [name for name in names if name.startswith(incomplete)]


def _typed(context: click.Context) -> CommandLineValues:
    """The connection options typed so far; those after the verb take precedence."""

    params = [one.params for one in (context, context.parent) if one is not None]

    def first(name: str) -> str | None:
        return next((str(param[name]) for param in params if param.get(name)), None)

    return CommandLineValues(first("url"), first("profile"))
