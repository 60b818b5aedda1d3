"""What all verbs share: connection, schema, rights, output, confirmation."""

import functools
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import cached_property
from typing import Any, TypeVar

import click

from console import catalog, config
from console.actions import audit
from console.actions.audit import Outcome
from console.actions.execute import Control
from console.catalog import Queue
from console.cli.interrupts import heard
from console.cli.streams import json_line, narrate, put
from console.config import RIGHTS, Configuration, Profile, Said
from console.engines import Database, Product
from console.errors import ConsoleError, RefusedError, UsageError
from console.formats import parse_duration, plain
from console.monitor import filters, saved
from console.monitor.limits import DEFAULTS, Thresholds
from console.monitor.message import Masks
from console.rights import Rights

__all__ = [
    "BARE_YES",
    "DURATION",
    "Call",
    "ConfirmedVerb",
    "DurationType",
    "Rights",
    "confirm_by_name",
    "confirmation",
    "confirms",
    "group_option",
    "place",
    "require_confirmation",
    "stopping",
    "verb_options",
]

Verb = TypeVar("Verb", bound=Callable[..., Any])

BARE_YES = "\0"
"""What `--yes` without a word is: no queue can be named so."""
_WRITTEN_OUT = "\0="
HEARD = "console.cli.heard"
"""Under this name of a click context's meta: whoever hears what a verb answers."""


@dataclass(frozen=True)
class Call:
    """One call of a verb: where it goes, what it may, and how it answers."""

    said: Said
    schema: str | None
    json: bool

    @cached_property
    def configuration(self) -> Configuration:
        """What is configured, read at the first use: not every verb needs it."""
        return config.load()

    @cached_property
    def profile(self) -> Profile | None:
        """The connection that is meant; None where none is named."""
        # Whoever typed the URL typed the verb.
        return self.configuration.chosen(self.said, url_rights=Rights.ADMIN)

    def several(self, group: str | None, said: Said) -> list[Profile]:
        """The connections of the group, or the one that is named, or all that are configured."""
        if group is not None:
            if said.url or said.profile:
                raise UsageError("--group does not go with --url or --profile.")
            return self.configuration.in_group(group, said)
        named = self.configuration.chosen(said, url_rights=Rights.ADMIN)
        profiles = self.configuration.profiles(said) if named is None else [named]
        if not profiles:
            raise self.configuration.none_named()
        return profiles

    def filter_words(self, given: Sequence[str]) -> tuple[str, ...]:
        """The words of `--filter`, with what stands for `@NAME`. UsageError."""
        if not any(word.startswith(saved.MARK) for word in given):
            return tuple(given)  # the configuration is not wanted for them
        profile = self.profile
        known = self.configuration.saved.messages if profile is None else profile.saved_words
        return saved.expand(given, known)

    @property
    def product(self) -> Product | None:
        """The engine of the connection that is meant; None where none is named."""
        return None if self.profile is None else self.profile.product

    @property
    def rights(self) -> Rights:
        """What the connection may do."""
        return Rights.READ_ONLY if self.profile is None else self.profile.rights

    @property
    def zone(self) -> tzinfo | None:
        """In which times of day are written, for `console.formats`."""
        return UTC if self.profile is None else self.profile.display_zone

    @property
    def masks(self) -> Masks:
        """What is hidden of payloads, titles and errors."""
        return () if self.profile is None else self.profile.masks

    def thresholds(self, queue: str) -> Thresholds:
        """What is too much for the queue of that name."""
        return DEFAULTS if self.profile is None else self.profile.thresholds(queue)

    def database(self, needs: Rights, verb: str) -> Database:
        """The database that the call names. RefusedError where its rights do not reach."""
        if self.profile is None:
            raise self.configuration.none_named()
        rights, origin = self.profile.rights, self.profile.settings.value(RIGHTS).origin
        if rights < needs:
            why = f"This connection has {rights.word} ({origin})."
            subject = audit.Subject(verb, self.schema or "", "", self.profile.name or "")
            audit.note(subject, Outcome.REFUSED, detail=why)
            raise RefusedError(
                f"{verb} needs the right {needs.word}.",
                why=why,
                next_step="Use a connection with more rights, or --rights, if that is meant.",
            )
        database = self.profile.open()
        click.get_current_context().call_on_close(database.close)
        return database

    def find(self, database: Database, name: str) -> Queue:
        """The queue of that name, in --schema or in any."""
        with database.transaction("read the catalog", read_only=True) as connection:
            return catalog.find(connection, database.product, name, self.schema)

    def production(self, database: Database) -> bool:
        """Whether the connection or the database itself is marked so."""
        if database.production:
            return True
        with database.transaction("read the catalog", read_only=True) as connection:
            return catalog.is_production(connection, database.product)

    def confirmed(
        self,
        plan: Mapping[str, object],
        lines: Sequence[str],
        yes: str | None,
        *,
        dry_run: bool,
        by_name: bool,
    ) -> bool:
        """Whether to go on with a plan of one queue. Where not, it is the answer.

        False: only the plan was wanted. RefusedError where `yes` does not do.
        """
        name = str(plan["queue"])
        if dry_run or not confirms(yes, name, by_name=by_name):
            where = {"queue": name, "schema": plan["schema"]}
            self.answer({**where, "plan": plan, "done": False}, lines)
        if not dry_run:
            require_confirmation(yes, name, by_name=by_name)
        return not dry_run

    def acted(
        self, plan: Mapping[str, object], result: Mapping[str, object], lines: Sequence[str]
    ) -> None:
        """What came of a plan that was confirmed, as the answer."""
        where = {"queue": plan["queue"], "schema": plan["schema"]}
        self.answer({**where, "plan": plan, "done": True, "result": result}, lines)

    def schema_for(self, database: Database) -> str:
        """Where new queues go."""
        return database.product.default_schema if self.schema is None else self.schema

    def answer(self, value: object, lines: Sequence[str]) -> None:
        """The result on stdout: one JSON object with --json, else the lines, each of which is one
        line whatever names are in it."""
        context = click.get_current_context(silent=True)
        if context is not None and (heard := context.meta.get(HEARD)):
            heard(value, lines)
        if self.json:
            put(json_line(value).encode() + b"\n")
        else:
            put("".join(f"{plain(line)}\n" for line in lines))


class DurationType(click.ParamType[float]):
    """`0s`, `500ms`, `5s`, `10m`; the value is in seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds of the text."""
        if isinstance(value, float):
            return value
        try:
            return parse_duration(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)


DURATION = DurationType()


def _profile_names(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """For the shell: nothing is connected, and mistakes of the file are told by the verbs."""
    try:
        return [name for name in config.load().names if name.startswith(begun)]
    except ConsoleError:
        return []


def place(verb: Verb) -> Verb:
    """`--url` and `--profile`, which may stand before the verb and after it."""
    for option in (
        click.option(
            "--profile",
            metavar="NAME",
            help="A connection of the configuration.",
            shell_complete=_profile_names,
        ),
        click.option("--url", metavar="URL", help=_URL_HELP),
    ):
        verb = option(verb)
    return verb


_URL_HELP = (
    "The database; also from DBQ_URL. Others on this machine can see a command line: leave the "
    "password to ~/.pgpass or a profile, or write '${env:NAME}' for it."
)


def complete_filters(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """For the shell: the forms up to their values, and the saved ones."""
    names = [re.split("(?<=[=~.])", form)[0] for form in filters.FORMS]
    try:
        found = config.load()
        layers = [found.document.filters, *(one.filters for one in found.profiles())]
        names += sorted({f"{saved.MARK}{name}" for layer in layers for name in layer})
    except ConsoleError:
        pass  # the verbs tell of mistakes
    return [name for name in names if name.startswith(begun)]


def group_option(verb: Verb) -> Verb:
    """`--group`, for verbs that work on several connections."""
    words = "All connections of this group of the configuration."
    return click.option("--group", metavar="G", help=words)(verb)


def verb_options(verb: Verb) -> Callable[..., Any]:
    """The options that every verb takes; the verb gets them as one `Call`, its first argument."""

    @place
    @click.option("--schema", metavar="S", help="Look or install there; else: every schema.")
    @click.option(
        "--rights",
        type=click.Choice([rights.word for rights in Rights]),
        help="What this call may do. Else: what the profile says; with a URL, admin.",
    )
    @click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
    @click.pass_context
    @functools.wraps(verb)
    def with_call(
        context: click.Context,
        /,
        *arguments: Any,
        url: str | None,
        profile: str | None,
        schema: str | None,
        rights: str | None,
        as_json: bool,
        **more: Any,
    ) -> Any:
        before: Said = context.obj or Said()
        said = Said(url or before.url, profile or before.profile, rights)
        return verb(Call(said, schema, as_json), *arguments, **more)

    return with_call


class ConfirmedVerb(click.Command):
    """A verb with `--yes`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let the word of `--yes=WORD` begin with "-": click would take it for an option."""
        end = args.index("--") if "--" in args else len(args)
        options = [re.sub("^--yes=", f"--yes={_WRITTEN_OUT}", word) for word in args[:end]]
        return super().parse_args(ctx, options + args[end:])


def confirmation(verb: Verb) -> Verb:
    """`--yes [NAME]` and `--dry-run`, for verbs that only plan without them."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Show the plan and change nothing (exit 0)."),
        click.option(
            "--yes",
            is_flag=False,
            flag_value=BARE_YES,
            default=None,
            callback=lambda _, __, word: None if word is None else word.removeprefix(_WRITTEN_OUT),
            metavar="[NAME]",
            help="Do it. Where the name is wanted: --yes NAME.",
        ),
    ):
        verb = option(verb)
    return verb


def confirm_by_name(yes: str | None, dry_run: bool, name: str) -> bool:
    """Whether to go on; False: only the plan was wanted. RefusedError for a wrong confirmation."""
    if dry_run:
        return False
    if yes is None:
        raise RefusedError(
            "Nothing was changed: this was only the plan.",
            next_step="To do it, confirm with: " + _yes(name),
        )
    if yes == BARE_YES:
        raise RefusedError(
            "Nothing was changed: this wants the queue's name as confirmation.",
            next_step="Confirm with: " + _yes(name),
        )
    if yes != name:
        raise RefusedError(
            f"Nothing was changed: {yes!r} is not the queue's name.",
            next_step="Confirm with: " + _yes(name),
        )
    return True


def confirms(yes: str | None, name: str, *, by_name: bool) -> bool:
    """Whether the word of `--yes` will do; `by_name`: only the queue's name will."""
    return yes == name or (yes == BARE_YES and not by_name)


def require_confirmation(yes: str | None, name: str, *, by_name: bool) -> None:
    """RefusedError, with the word that is wanted, where `--yes` will not do."""
    if confirms(yes, name, by_name=by_name):
        return
    if by_name or yes is not None:
        confirm_by_name(yes, dry_run=False, name=name)
    raise RefusedError(
        "Nothing was changed: this was only the plan.", next_step="To do it, confirm with: --yes"
    )


def _yes(name: str) -> str:
    return f"--yes{'=' if name.startswith('-') else ' '}{shlex.quote(name)}"


@contextmanager
def stopping() -> Iterator[Control]:
    """The first Ctrl-C (or SIGTERM) stops after the batch that runs; the next one cuts it off."""
    control = Control()

    def stop(_: int) -> None:
        control.stop()
        on_a_line_of_its_own = "\n" if sys.stderr is not None and sys.stderr.isatty() else ""
        narrate(f"{on_a_line_of_its_own}Stopping after this batch; once more cuts it off.")

    with heard(stop, once=True):
        yield control
