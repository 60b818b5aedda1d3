"""A verb as a value, what it is used on, its plan and its result; how it is read and written.

Three forms of the same: `texts`, what stands in the fields of a form (of a flag "yes" or nothing);
`words`, the command line's; `values`, what click makes of them, as a plan takes them."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec

import click
from click.core import ParameterSource

from console import audit, catalog, decisions
from console.actions import BATCH
from console.actions.availability import unavailable
from console.actions.execute import CANARY_WAIT_SECONDS, Batching, Control
from console.audit import Ledger, Outcome, Subject
from console.catalog import Queue
from console.decisions import Decision
from console.engines import Database
from console.errors import RefusedError, UsageError
from console.monitor import filters as filtering
from console.monitor.filters import Words, expand, line_of
from console.monitor.limits import ThresholdsOf, defaults_of
from console.monitor.message import Masks, Message
from console.monitor.scan_query import MessageSource
from console.rights import Rights
from console.verbs.parameters import FILTER_TYPE, Parameter, Placement

P = ParamSpec("P")
ParameterValues = Mapping[str, Any]
"""Of the parameters, by their names with `_` for `-`, as their types convert them."""
OnCount = Callable[[int], None]
"""Called while a plan is made, with the messages counted so far."""


@dataclass(frozen=True)
class Target:
    """A queue and its connection: what a verb is used on, and with which rights."""

    database: Database
    queue: Queue
    rights: Rights = Rights.READ_ONLY
    thresholds_of: ThresholdsOf = defaults_of
    masks: Masks = ()
    saved: Words = field(default_factory=dict)
    """The filters that have names."""
    on_count: OnCount = lambda _: None

    def find(self, name: str, schema: str | None = None) -> Queue:
        """Another queue of the database, in any schema where none is named. UsageError."""
        return catalog.look_up(self.database, name, schema)

    def for_subscriber(self, values: ParameterValues) -> "Target":
        """The same, of a ring as the subscriber that was said has it. UsageError."""
        name = values["subscriber"]
        return self if name is None else replace(self, queue=self.queue.of(name))

    def source(self, queue: Queue | None = None) -> MessageSource:
        """The queue (or another one), and what its ids and payloads are."""
        wanted = self.queue if queue is None else queue
        doing = f"look at the queue {wanted.name!r}"
        with self.database.transaction(doing, read_only=True) as connection:
            return MessageSource.of(connection, wanted)

    def filters(self, values: ParameterValues) -> filtering.Filters:
        """What `--filter`, and `--older` beside it, choose. UsageError."""
        words = expand(values.get("filter", ()), self.saved)
        older = values.get("older")
        if older is not None:
            words = (*words, *filtering.Filters(older=older).words)
        return filtering.parse(words)

    @property
    def protection(self) -> Decision | None:
        """Who has protected the queue, if anybody. Asks the database."""
        with self.database.transaction("read the catalog", read_only=True) as connection:
            return decisions.find(connection, "protection", self.queue.schema, self.queue.name)

    @property
    def production(self) -> bool:
        """Whether the connection or the database itself is marked so. Asks the database."""
        if self.database.production:
            return True
        with self.database.transaction("read the catalog", read_only=True) as connection:
            return catalog.is_production(connection)


def batching(values: ParameterValues) -> Batching:
    """How fast, from `--batch`, `--rate`, `--canary` and what goes with it. UsageError."""
    canary = values.get("canary", False)
    wait, share = values.get("canary_wait"), values.get("canary_share")
    if not canary and (wait, share) != (None, None):
        raise UsageError("--canary-wait and --canary-share go with --canary.")
    return Batching(
        values.get("batch") or BATCH,
        values.get("rate"),
        canary,
        CANARY_WAIT_SECONDS if wait is None else wait,
        share or 0.0,
    )


@dataclass(frozen=True)
class Result:
    """How a verb ended."""

    outcome: Outcome
    lines: tuple[str, ...]
    """In words."""
    ledger: Ledger | None = None
    action_id: int | None = None
    """In the audit."""
    done: int = 0
    """Messages, steps, conversations; 1 where the verb is about the queue or a session."""
    queue_removed: bool = False
    """The queue is no longer here: nothing more can be planned for it."""
    stopped_by_canary: bool = False
    """A canary has stopped it: its messages failed, or had no result in time."""
    data: Mapping[str, object] = field(default_factory=dict)
    """For --json."""


@dataclass(frozen=True)
class Progress:
    """How far a verb is that runs."""

    done: int
    total: int | None = None
    """None: not known."""
    text: str = ""
    """What it is doing."""
    ledger: Ledger | None = None
    round: Result | None = None
    """Of a verb that works in rounds: the one that has just ended."""


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Plan:
    """What a verb would do, to be read and confirmed. Nothing runs but by `run`."""

    subject: Subject
    queue: Queue
    lines: tuple[str, ...]
    """In words."""
    requires_name: bool
    """Whether `y` is not enough as a confirmation: the queue's name is wanted."""
    run: Callable[[Control, OnProgress], Result]
    needed: bool = True
    """False: there is nothing to do."""
    count: int | None = None
    """Messages or steps; None: they are not counted."""
    rounds: bool = False
    """Whether it goes on, round after round, until it is stopped; that is then its proper end."""
    stoppable: bool = True
    """Whether it can be stopped between two of its steps; else only cut off."""
    sql: str = ""
    sample: tuple[Message, ...] = ()
    obstacles: tuple[str, ...] = ()
    """Why it cannot be done as it stands."""
    needs_consent: bool = False
    """Whether they are only that the operator has not said enough: told after a confirmation."""
    next_step: str = ""
    """What removes the obstacles."""
    data: Mapping[str, object] = field(default_factory=dict)
    """For --json."""

    @property
    def verb(self) -> str:
        """Its name."""
        return self.subject.verb

    def require_possible(self) -> None:
        """RefusedError, which the local audit keeps, where something stands in its way."""
        if self.obstacles:
            of = f"{self.verb} of {self.queue.name!r}"
            what = f"Nothing was changed: {of} cannot be done as it stands."
            audit.log_locally(self.subject, Outcome.REFUSED, detail=what)
            raise RefusedError(what, why=" ".join(self.obstacles), next_step=self.next_step)

    def run_to_end(self) -> tuple[str, ...]:
        """Run it to its end, unwatched; its result in words. Raises ConsoleError."""
        return self.run(Control(), lambda _: None).lines

    def confirmed_by(self, word: str) -> bool:
        """Whether the word will do: the queue's name always, `y` where little can go wrong."""
        return word == self.queue.name or (
            not self.requires_name and word.strip().lower() in {"y", "yes"}
        )


def queue_plan(
    target: Target,
    verb: str,
    lines: Sequence[str],
    run: Callable[[Control, OnProgress], Result],
    *,
    requires_name: bool = False,
    **more: Any,
) -> Plan:
    """Of a verb on a queue as a whole. PRODUCTION is said, and always wants the name."""
    production = target.production
    shown = (*lines, "  PRODUCTION database") if production else tuple(lines)
    subject = Subject.of(target.database, target.queue, verb)
    return Plan(subject, target.queue, shown, requires_name or production, run, **more)


def single_step(
    do: Callable[P, Result], *given: P.args, **named: P.kwargs
) -> Callable[[Control, OnProgress], Result]:
    """Runs what is one step: nothing can stop it, and there is nothing to tell on the way."""
    return lambda _, __: do(*given, **named)


def operator(_: ParameterValues) -> Rights:
    """The right that most verbs need."""
    return Rights.OPERATOR


def admin(_: ParameterValues) -> Rights:
    """The right that verbs on tables and code need."""
    return Rights.ADMIN


@dataclass(frozen=True)
class Verb:
    """One thing that an operator can do with a queue."""

    name: str
    summary: str
    """One line, as it stands in a sentence: without a capital and a full stop."""
    make_plan: Callable[[Target, ParameterValues], Plan] | None = None
    """Changes nothing; asks the database. None: it runs in a screen or a process of its own."""
    help: str = ""
    """What the summary does not say, and examples."""
    parameters: tuple[Parameter, ...] = ()
    right: Callable[[ParameterValues], Rights] = operator
    confirmed: bool = True
    """Whether the command line wants `--yes`."""
    fixed: tuple[str, ...] = ()
    """Options that it always has on the command line."""

    @property
    def queue_last(self) -> bool:
        """Whether the queue is named behind its argument, and may be left out: then it is every
        one."""
        return any(one.placement is Placement.BEFORE for one in self.parameters)

    def parameters_for(self, queue: Queue) -> tuple[Parameter, ...]:
        """Those that mean something for such a queue."""
        return tuple(one for one in self.parameters if one.applies(queue))

    def plan(self, target: Target, values: ParameterValues) -> Plan:
        """What it would do. Changes nothing; asks the database. ConsoleError where it cannot be."""
        if self.make_plan is None:
            raise UsageError(f"{self.name} is not planned here.")
        wanted = self.right(values)
        if target.rights < wanted:
            raise RefusedError(
                f"{self.name} needs the right {wanted.word}.",
                why=f"This connection has {target.rights.word}.",
            )
        queue = target.queue
        if not queue.design.trusted and (why := self.unavailable(queue)):
            raise RefusedError(f"{self.name} is not for the queue {queue.name!r}.", why=f"{why}.")
        made = self.make_plan(target, values)
        if self.name in decisions.PROTECTED_FROM and (protection := target.protection):
            return replace(
                made,
                obstacles=(*made.obstacles, f"It is {protection.words}."),
                next_step=decisions.revoke_hint("unprotect", target.queue.name),
            )
        return made

    def unavailable(self, queue: Queue) -> str:
        """Why it cannot be for the queue, whatever that holds; empty: it can."""
        return unavailable(queue, self.name)


PROGRAM = "dbq-console"
FILTERS = "filter"


def values_from_texts(verb: Verb, texts: Mapping[str, str]) -> dict[str, Any]:
    """The texts, converted. UsageError."""
    command = _command(verb, required=None)
    try:
        with command.make_context(verb.name, _words_of(verb.parameters, texts)) as context:
            return dict(context.params)
    except click.ClickException as error:
        raise UsageError(error.format_message()) from error


def texts_from_words(
    verb: Verb, words: Sequence[str], saved: Words | None = None
) -> dict[str, str]:
    """What a line says of a verb, checked; a filter may stand in it bare. UsageError.

    `saved`: the filters that have names, which are replaced by what they stand for.
    """
    command = _command(verb, required=False)
    marked = _marked(verb, words)
    try:
        with command.make_context(verb.name, list(marked)) as context:
            raw, _, _ = command.make_parser(context).parse_args(list(marked))
            given = [
                one
                for one in verb.parameters
                if context.get_parameter_source(one.key) is ParameterSource.COMMANDLINE
            ]
    except click.ClickException as error:
        known = ", ".join(f"--{one.name}" for one in verb.parameters) or "no options"
        raise UsageError(error.format_message(), next_step=f"{verb.name} has: {known}.") from error
    if FILTERS in raw and saved is not None:
        filtering.parse(given_filters := expand(raw[FILTERS], saved))
        raw[FILTERS] = given_filters
    return {one.name: _text(one, raw[one.key]) for one in given}


def _marked(verb: Verb, words: Sequence[str]) -> list[str]:
    """The words with `--filter` before each filter that stands bare, and not behind an option."""
    types = [one.type for one in verb.parameters if one.key == FILTERS]
    valued_options = {f"--{one.name}" for one in verb.parameters if not one.is_flag}
    found: list[str] = []
    for word in words:
        is_value = bool(found) and found[-1] in valued_options
        bare = types and not is_value and reads(types[0], word)
        found += ["--filter", word] if bare else [word]
    return found


def is_filter(word: str) -> bool:
    """Whether the word is one of the filter language, or the name of saved ones."""
    return reads(FILTER_TYPE, word)


def reads(type_: click.ParamType[Any], word: str) -> bool:
    """Whether the word can be a value of that type."""
    if word.startswith("-"):
        return False
    try:
        type_.convert(word, None, None)
    except (UsageError, click.BadParameter):
        return False
    return True


def _text(parameter: Parameter, raw: Any) -> str:
    if parameter.is_flag:
        return "yes"
    return line_of(raw) if parameter.multiple else str(raw)


def _command(verb: Verb, *, required: bool | None) -> click.Command:
    parameters = [one.as_click(required=required) for one in verb.parameters]
    return click.Command(verb.name, params=parameters, add_help_option=False)


def _words_of(parameters: Sequence[Parameter], texts: Mapping[str, str]) -> list[str]:
    options: list[str] = []
    arguments: list[str] = []
    for one in parameters:
        text = texts.get(one.name, "")
        if one.placement in {Placement.ARGUMENT, Placement.BEFORE}:
            arguments += one.words_of(text) if text else []
        elif one.placement is Placement.REDIRECTION:
            options += valued(f"--{one.name}", text) if text else []
        else:
            options += option_words(one, text)
    return [*options, "--", *arguments]


def words_from_texts(verb: Verb, texts: Mapping[str, str]) -> list[str]:
    """The verb's options and arguments, as the command line has them."""
    found = _words_of(verb.parameters, texts)
    end = found.index("--")
    # Only before what begins like an option is it needed.
    dashed = any(word.startswith("-") for word in found[end + 1 :])
    return found if dashed else [*found[:end], *found[end + 1 :]]


def option_words(parameter: Parameter, text: str) -> list[str]:
    """What stands in a field, as options; nothing where that is the default."""
    if parameter.placement is not Placement.OPTION or not text or text == parameter.default:
        return []
    option = f"--{parameter.name}"
    if parameter.is_flag:
        return [option]
    return [part for word in parameter.words_of(text) for part in valued(option, word)]


def valued(option: str, value: str) -> list[str]:
    """A value that begins with "-" would be taken for an option of its own."""
    return [f"{option}={value}"] if value.startswith("-") else [option, value]


def equivalent_command(
    verb: Verb,
    connection: Sequence[str],
    schema: str,
    name: str,
    texts: Mapping[str, str],
    yes: str | None = None,
) -> str:
    """To be pasted into a shell. `yes`: its confirmation, empty where any will do; None: not.

    Without a confirmation it prints the plan and changes nothing.
    """
    arguments: list[str] = []
    options = [*verb.fixed]
    for one in verb.parameters:
        options += option_words(one, texts.get(one.name, ""))
        if one.placement is Placement.ARGUMENT and texts.get(one.name):
            arguments += one.words_of(texts[one.name])
    before = [
        word
        for one in verb.parameters
        if one.placement is Placement.BEFORE and texts.get(one.name)
        for word in one.words_of(texts[one.name])
    ]
    arguments = [*before, name, *arguments]
    if yes is not None and verb.confirmed:
        options += valued("--yes", yes) if yes else ["--yes"]
    options += [*connection, *valued("--schema", schema)]
    # Options come before the arguments that only "--" keeps from being taken for options.
    dashed = any(word.startswith("-") for word in arguments)
    words = [*options, "--", *arguments] if dashed else [*arguments, *options]
    # A payload that is "-" alone would mean standard input: so it comes from there.
    piped = "printf %s - | " if texts.get("payload") == "-" else ""
    files = [
        texts[one.name]
        for one in verb.parameters
        if one.placement is Placement.REDIRECTION and texts.get(one.name)
    ]
    line = piped + shlex.join([PROGRAM, verb.name, *words])
    return line + "".join(f" >> {shlex.quote(path)}" for path in files)
