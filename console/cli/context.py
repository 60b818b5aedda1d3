"""What all verbs share: connection, schema, rights, output, confirmation."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import click

from console.cli.streams import Answers, put
from console.errors import ConsoleError, RefusedError
from console.formats import plain
from console.rights import Rights
from console.verbs.parameters import Placement

if TYPE_CHECKING:
    from console.catalog import Queue
    from console.config import CommandLineValues, Configuration, Profile
    from console.engines import Database, Product
    from console.monitor.filters import Words
    from console.monitor.limits import Thresholds
    from console.monitor.message import Masks
    from console.verbs import verb as verbs

__all__ = [
    "BARE_YES",
    "Call",
    "ConfirmedVerb",
    "Rights",
    "aligned",
    "as_command",
    "call_of",
    "call_options",
    "complete_queues",
    "confirm_by_name",
    "confirmation",
    "confirms",
    "place",
    "queue_name",
    "queue_names",
    "require_confirmation",
    "rights_option",
    "verb_options",
]

Verb = TypeVar("Verb", bound=Callable[..., Any])

BARE_YES = "\0"
"""What `--yes` without a word is: no queue can be named so."""
_WRITTEN_OUT = "\0="
SAID = "console.cli.said"
"""Under this name of a click context's meta: what is said before the verb."""
HEARD = "console.cli.heard"
"""Under this name of a click context's meta: whoever hears what a verb answers."""


@dataclass(frozen=True)
class Call:
    """One call of a verb: where it goes, what it may, and how it answers."""

    said: CommandLineValues
    schema: str | None
    json: bool

    @property
    def connection_words(self) -> tuple[str, ...]:
        """What a command that is printed has to say of the connection; nothing where one was asked,
        which whoever asked has named."""
        return ()

    @cached_property
    def configuration(self) -> Configuration:
        """What is configured, read at the first use: not every verb needs it."""
        from console import config  # noqa: PLC0415  # a verb imports what it uses

        return config.load()

    @cached_property
    def profile(self) -> Profile | None:
        """The connection that is meant; None where none is named."""
        # Whoever typed the URL typed the verb.
        return self.configuration.chosen(self.said, url_rights=Rights.ADMIN)

    def saved_filters(self, given: Sequence[str]) -> Words:
        """The filters that have names, where one of these words is such a name."""
        from console.monitor import filters  # noqa: PLC0415  # a verb imports what it uses

        if not any(word.startswith(filters.MARK) for word in given):
            return {}  # the configuration is not wanted for them
        profile = self.profile
        return self.configuration.saved.messages if profile is None else profile.saved_words

    def filter_words(self, given: Sequence[str]) -> tuple[str, ...]:
        """The words of `--filter`, with what stands for `@NAME`. UsageError."""
        from console.monitor import filters  # noqa: PLC0415  # a verb imports what it uses

        return filters.expand(given, self.saved_filters(given))

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
        from console.monitor.limits import DEFAULTS  # noqa: PLC0415  # a verb imports what it uses

        return DEFAULTS if self.profile is None else self.profile.thresholds(queue)

    def database(self, needs: Rights, verb: str) -> Database:
        """The database that the call names. RefusedError where its rights do not reach."""
        from console.config import RIGHTS  # noqa: PLC0415  # a verb imports what it uses

        if self.profile is None:
            raise self.configuration.none_named()
        rights, origin = self.profile.rights, self.profile.settings.value(RIGHTS).origin
        if rights < needs:
            why = f"This connection has {rights.word} ({origin})."
            from console import audit  # noqa: PLC0415  # a verb imports what it uses

            subject = audit.Subject(verb, self.schema or "", "", self.profile.name or "")
            audit.note(subject, audit.Outcome.REFUSED, detail=why)
            raise RefusedError(
                f"{verb} needs the right {needs.word}.",
                why=why,
                next_step="Use a connection with more rights, or --rights.",
            )
        database = self.profile.open()
        click.get_current_context().call_on_close(database.close)
        return database

    def find(self, database: Database, name: str, *, any_design: bool = False) -> Queue:
        """The queue of that name, in --schema or in any. `any_design`: as `catalog.find`."""
        from console import catalog  # noqa: PLC0415  # a verb imports what it uses

        return catalog.look_up(database, name, self.schema, any_design=any_design)

    def queues(self, database: Database) -> list[Queue]:
        """All that are in use, in --schema or in any."""
        from console import catalog  # noqa: PLC0415  # a verb imports what it uses

        return [one for one in catalog.in_use(database) if self.schema in (None, one.schema)]

    def production(self, database: Database) -> bool:
        """Whether the connection or the database itself is marked so."""
        if database.production:
            return True
        from console import catalog  # noqa: PLC0415  # a verb imports what it uses

        with database.transaction("read the catalog", read_only=True) as connection:
            return catalog.is_production(connection)

    def confirmed(
        self,
        plan: Mapping[str, object],
        lines: Sequence[str],
        yes: str | None,
        *,
        dry_run: bool,
        requires_name: bool,
        needed: bool = True,
    ) -> bool:
        """Whether to go on with a plan of one queue. Where not, it is the answer.

        False: only the plan was wanted, or nothing is needed. RefusedError where `yes` does not do.
        """
        name = str(plan["queue"])
        if dry_run or not confirms(yes, name, requires_name=requires_name):
            self.planned({"queue": name, "schema": plan["schema"], "plan": plan}, lines)
        if dry_run or (yes is None and not needed):
            return False
        require_confirmation(yes, name, requires_name=requires_name)
        return True

    def acted(
        self,
        plan: Mapping[str, object],
        result: Mapping[str, object],
        lines: Sequence[str],
        *,
        done: int,
    ) -> None:
        """What came of a plan that was confirmed, as the answer. `done`: how many of the things
        that the verb works on: messages, steps; 1 where it is the queue or a session."""
        where = {"queue": plan["queue"], "schema": plan["schema"]}
        self.answer({**where, "plan": plan, "done": done, "result": result}, lines)

    def planned(self, value: Mapping[str, object], lines: Sequence[str]) -> None:
        """A plan that is not carried out, as the answer: nothing was done. With --json, the error
        that says why not comes into the same object."""
        whole = {**value, "done": 0}
        self._tell_hearer(whole, lines)
        if self.json:
            self.answers.hold(whole)
        else:
            _print(lines)

    @property
    def answers(self) -> Answers:
        """What this call has answered so far."""
        found = click.get_current_context().find_object(Answers)
        assert found is not None  # noqa: S101  # every call has it
        return found

    @staticmethod
    def _tell_hearer(value: object, lines: Sequence[str]) -> None:
        if heard := click.get_current_context().meta.get(HEARD):
            heard(value, lines)

    def schema_for(self, database: Database) -> str:
        """Where new queues go."""
        return database.product.default_schema if self.schema is None else self.schema

    def answer(self, value: object, lines: Sequence[str]) -> None:
        """The result on stdout: one JSON object with --json, else the lines, each of which is one
        line whatever names are in it."""
        self._tell_hearer(value, lines)
        if self.json:
            self.answers.give(value)
        else:
            _print(lines)


def _print(lines: Sequence[str]) -> None:
    put("".join(f"{plain(line)}\n" for line in lines))


def aligned(rows: Sequence[Sequence[str]], left: int = 0, gap: str = "  ") -> list[str]:
    """In columns: the first `left` of them begin in line, the others end so."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(
            f"{cell:{'<' if at < left else '>'}{widths[at]}}" for at, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


def _profile_names(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """For the shell: nothing is connected, and mistakes of the file are told by the verbs."""
    from console import config  # noqa: PLC0415  # a verb imports what it uses

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
    "The database; also from DBQ_URL. A command line is visible to others on this machine: leave "
    "the password to ~/.pgpass or a profile, or write '${env:NAME}' for it."
)


def complete_queues(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """For the shell: the queues that the connection had when it was last sampled. Nothing is
    connected; where no connection is named, those of all."""
    from console import config  # noqa: PLC0415  # a verb imports what it uses
    from console.monitor import known_queues  # noqa: PLC0415

    try:
        profile = config.load().chosen(_said_so_far(context), url_rights=Rights.ADMIN)
    except ConsoleError:
        return []
    known = known_queues.names(None if profile is None else profile.label)
    return [name for name in known if name.startswith(begun)]


def _said_so_far(context: click.Context) -> CommandLineValues:
    """The connection as the words name it that are typed already, the last ones first."""
    from console.config import CommandLineValues  # noqa: PLC0415  # a verb imports what it uses

    params = [one.params for one in (context, context.parent) if one is not None]

    def first(name: str) -> str | None:
        return next((str(one[name]) for one in params if one.get(name)), None)

    return CommandLineValues(first("url"), first("profile"))


queue_name = click.argument("name", shell_complete=complete_queues)
"""The queue that a verb is about."""
queue_names = click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_queues)


def rights_option(words: str) -> Callable[[Verb], Verb]:
    """`--rights`, which may stand before the verb too: there it is the console's."""
    return click.option("--rights", type=click.Choice([one.word for one in Rights]), help=words)


def call_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The options that every verb takes, from which `call_of` makes its `Call`; the verb gets them
    after click's context."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout."),
        rights_option(
            "What this call may do. By default what the profile says; with a URL, admin."
        ),
        click.option("--schema", metavar="S", help="Look up or install there; else: every schema."),
    ):
        verb = option(verb)
    return click.pass_context(place(verb))


def call_of(context: click.Context, given: dict[str, Any]) -> Call:
    """The call that these values are of; they are taken out."""
    from console.config import CommandLineValues  # noqa: PLC0415  # a verb imports what it uses

    before: CommandLineValues = context.meta.get(SAID) or CommandLineValues()
    as_json = given.pop("as_json")
    if (answers := context.find_object(Answers)) is not None:
        answers.json = as_json
    said = CommandLineValues(
        given.pop("url") or before.url,
        given.pop("profile") or before.profile,
        given.pop("rights") or before.rights,
    )
    return Call(said, given.pop("schema"), as_json)


def verb_options(verb: Verb) -> Callable[..., Any]:
    """The options that every verb takes; the verb gets them as one `Call`, its first argument."""

    @call_options
    @functools.wraps(verb)
    def with_call(context: click.Context, /, *arguments: Any, **given: Any) -> Any:
        return verb(call_of(context, given), *arguments, **given)

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
            help="Do it. Where the plan asks for the name: --yes NAME.",
        ),
    ):
        verb = option(verb)
    return verb


def as_command(
    verb: verbs.Verb, run: Callable[..., Any], *before: click.Parameter
) -> click.Command:
    """The verb on the command line: its parameters, and those of `run`, which has the options of
    every verb. `before`: what else it is told first."""
    of_verb = [one for one in verb.parameters if one.placement is not Placement.REDIRECTION]
    first = [one.as_click() for one in of_verb if one.placement is Placement.BEFORE]
    arguments = [one.as_click() for one in of_verb if one.placement is Placement.ARGUMENT]
    options = [one.as_click() for one in of_verb if one.placement is Placement.OPTION]
    command = ConfirmedVerb(
        verb.name,
        params=[*first, *before, *arguments, *options],
        callback=confirmation(run) if verb.confirmed else run,
        help=verb.help,
    )
    shared: list[click.Parameter] = getattr(command.callback, "__click_params__", [])
    command.params += reversed(shared)
    return command


def confirm_by_name(yes: str | None, dry_run: bool, name: str) -> bool:
    """Whether to go on; False: only the plan was wanted. RefusedError for a wrong confirmation."""
    if dry_run or yes == name:
        return not dry_run
    what, how = f"{yes!r} is not the queue's name", "Confirm"
    if yes is None:
        what, how = "this was only the plan", "To do it, confirm"
    elif yes == BARE_YES:
        what = "this needs the queue's name as confirmation"
    quoted = f"--yes{'=' if name.startswith('-') else ' '}{shlex.quote(name)}"
    raise RefusedError(f"Nothing was changed: {what}.", next_step=f"{how} with: {quoted}")


def confirms(yes: str | None, name: str, *, requires_name: bool) -> bool:
    """Whether the word of `--yes` will do; `requires_name`: only the queue's name will."""
    return yes == name or (yes == BARE_YES and not requires_name)


def require_confirmation(yes: str | None, name: str, *, requires_name: bool) -> None:
    """RefusedError, with the word that is wanted, where `--yes` will not do."""
    if confirms(yes, name, requires_name=requires_name):
        return
    if requires_name or yes is not None:
        confirm_by_name(yes, dry_run=False, name=name)
    raise RefusedError(
        "Nothing was changed: this was only the plan.", next_step="To do it, confirm with: --yes"
    )
