"""A verb as a value; its target, plan and result; its parameters in three forms.

`texts` are the fields of a form (a flag is "yes" or empty), `words` the tokens of a command line,
`values` what click makes of them, which plans take."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec

import click
from click.core import ParameterSource

from console import catalog
from console.actions.availability import rows_hidden, unavailable
from console.actions.execute import CANARY_WAIT_SECONDS, Batching
from console.catalog import Queue, decisions
from console.catalog.decisions import Decision
from console.engines import Database
from console.errors import RefusedError, UsageError
from console.filters import Words, expand, line_of
from console.monitor import filters as filtering
from console.monitor.limits import ThresholdsOf, defaults_of
from console.monitor.message import Masks
from console.monitor.scan_query import MessageSource
from console.plan import Control, OnProgress, Plan, Result, queue_plan
from console.rights import Rights
from console.verbs.command import Command, Params, operator
from console.verbs.index import PROGRAM
from console.verbs.parameters import FILTER_TYPE, Parameter, Placement

P = ParamSpec("P")
OnCount = Callable[[int], None]
"""Gets the messages counted so far, while a plan is made."""


@dataclass(frozen=True)
class Target:
    """What a verb is used on: a queue, its connection and the rights there."""

    database: Database
    queue: Queue
    rights: Rights = Rights.READ_ONLY
    thresholds_of: ThresholdsOf = defaults_of
    masks: Masks = ()
    saved: Words = field(default_factory=dict)
    """Saved filters by name."""
    on_count: OnCount = lambda _: None
    on_wait: Callable[[str], None] = lambda _: None
    """Gets a line that says for what a plan waits, before it does."""

    def find(self, name: str, schema: str | None = None) -> Queue:
        """Another queue of the database; without `schema`, in any. UsageError."""
        return catalog.look_up(self.database, name, schema)

    def for_subscriber(self, values: Params) -> "Target":
        """The same, for the subscriber that the values name. UsageError."""
        name = values["subscriber"]
        return self if name is None else replace(self, queue=self.queue.of(name))

    def source(self, queue: Queue | None = None) -> MessageSource:
        """The target's queue, or another one, with the types of its ids and payloads."""
        queue = self.queue if queue is None else queue
        doing = f"read the queue {queue.name!r}"
        with self.database.transaction(doing, read_only=True) as connection:
            return MessageSource.of(connection, queue)

    def planned(
        self,
        verb: str,
        lines: Sequence[str],
        run: Callable[[Control, OnProgress], Result],
        **more: Any,
    ) -> Plan:
        """The plan of a verb on its queue as a whole: see `queue_plan`."""
        return queue_plan(self.database, self.queue, verb, lines, run, **more)

    def filters(self, values: Params) -> filtering.Filters:
        """From `--filter` and `--older`. UsageError."""
        words = expand(values.get("filter", ()), self.saved)
        older = values.get("older")
        if older is not None:
            words = (*words, *filtering.Filters(older=older).words)
        return filtering.parse(words)

    @property
    def protection(self) -> Decision | None:
        """Queries the database."""
        with self.database.transaction("read the catalog", read_only=True) as connection:
            return decisions.find(connection, "protection", self.queue.schema, self.queue.name)


def batching(values: Params) -> Batching:
    """From `--batch`, `--rate` and the `--canary` options. UsageError."""
    canary = values["canary"]
    wait, share = values.get("canary_wait"), values.get("canary_share")
    if not canary and (wait, share) != (None, None):
        raise UsageError("--canary-wait and --canary-share go with --canary.")
    return Batching(
        values["batch"],
        values["rate"],
        canary,
        CANARY_WAIT_SECONDS if wait is None else wait,
        share or 0.0,
    )


@dataclass(frozen=True)
class Instead:
    """What an operator needs of a queue that has nothing for a verb."""

    lines: tuple[str, ...]
    data: Mapping[str, object]
    """For --json."""
    refusal: RefusedError | None = None
    """What to do."""


@dataclass(frozen=True)
class Verb(Command):
    """One thing that an operator can do with a queue, once it is planned."""

    make_plan: Callable[[Target, Params], Plan] = field(kw_only=True)
    """Only reads the database."""
    right: Callable[[Params], Rights] = operator
    confirmed: bool = True
    fixed: tuple[str, ...] = ()
    """Options that it always has on the command line."""
    for_all: bool = False
    """Whether the command line has `--all`, for every queue that is not adopted."""
    any_design: bool = False
    """Whether it is also for a queue whose design this console does not know."""
    repeatable: bool = False
    """Whether one that did not finish does the rest if it is planned again with its filters."""
    archives: bool = False
    """Whether what it takes is in the archive, from which restore brings it back."""
    instead: Callable[[Database, Queue], "Instead | None"] = lambda *_: None
    """What the command line shows of a queue that has nothing for the verb; None: it has."""

    @property
    def queue_last(self) -> bool:
        """Whether the queue's name comes after its argument; left out, it means every queue."""
        return any(parameter.placement is Placement.BEFORE for parameter in self.parameters)

    def parameters_for(self, queue: Queue) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if parameter.applies(queue))

    def plan(self, target: Target, values: Params) -> Plan:
        """What it would do. Only reads the database. ConsoleError where it is not allowed."""
        right = self.right(values)
        if target.rights < right:
            raise RefusedError(
                f"{self.name} needs the right {right.word}.",
                why=f"This connection has {target.rights.word}.",
            )
        queue = target.queue
        what = f"{self.name} is not available for the queue {queue.name!r}."
        if not queue.design.trusted and (why := self.unavailable(queue)):
            raise RefusedError(what, why=f"{why}.")
        if rows_hidden(queue, self.name):
            catalog.require_rows(queue, what)
        plan = self.make_plan(target, values)
        if self.name in decisions.PROTECTED_FROM and (protection := target.protection):
            return replace(
                plan,
                obstacles=(*plan.obstacles, f"It is {protection.words}."),
                next_step=decisions.revoke_hint("unprotect", target.queue.name),
            )
        return plan

    def unavailable(self, queue: Queue) -> str:
        """Why the queue cannot have it, whatever its contents; empty: it can."""
        return unavailable(queue, self.name)


FILTERS = "filter"


def values_from_texts(verb: Command, texts: Mapping[str, str]) -> dict[str, Any]:
    """UsageError."""
    command = _command(verb, required=None)
    try:
        with command.make_context(verb.name, _words_of(verb.parameters, texts)) as context:
            return dict(context.params)
    except click.ClickException as error:
        raise UsageError(error.format_message()) from error


def texts_from_words(
    verb: Command, words: Sequence[str], saved: Words | None = None
) -> dict[str, str]:
    """The parameters in a `:` line, checked; a filter needs no `--filter` there. UsageError.

    `saved`: filters by name, to be expanded.
    """
    command = _command(verb, required=False)
    full = _with_filter_options(verb, words)
    try:
        with command.make_context(verb.name, list(full)) as context:
            raw, _, _ = command.make_parser(context).parse_args(list(full))
            given = [
                parameter
                for parameter in verb.parameters
                if context.get_parameter_source(parameter.key) is ParameterSource.COMMANDLINE
            ]
    except click.ClickException as error:
        known = ", ".join(f"--{parameter.name}" for parameter in verb.parameters) or "no options"
        raise UsageError(error.format_message(), next_step=f"{verb.name} has: {known}.") from error
    if FILTERS in raw and saved is not None:
        filtering.parse(given_filters := expand(raw[FILTERS], saved))
        raw[FILTERS] = given_filters
    return {parameter.name: _text(parameter, raw[parameter.key]) for parameter in given}


def _with_filter_options(verb: Command, words: Sequence[str]) -> list[str]:
    """The words with `--filter` before each bare filter that is not an option's value."""
    types = [parameter.type for parameter in verb.parameters if parameter.name == FILTERS]
    valued_options = {
        f"--{parameter.name}" for parameter in verb.parameters if not parameter.is_flag
    }
    found: list[str] = []
    for word in words:
        is_value = bool(found) and found[-1] in valued_options
        bare = types and not is_value and reads(types[0], word)
        found += ["--filter", word] if bare else [word]
    return found


def is_filter(word: str) -> bool:
    """Whether the word is a filter, or the name of a saved one."""
    return reads(FILTER_TYPE, word)


def reads(type_: click.ParamType[Any], word: str) -> bool:
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


def _command(verb: Command, *, required: bool | None) -> click.Command:
    parameters = [parameter.as_click(required=required) for parameter in verb.parameters]
    return click.Command(verb.name, params=parameters, add_help_option=False)


def _words_of(parameters: Sequence[Parameter], texts: Mapping[str, str]) -> list[str]:
    options: list[str] = []
    arguments: list[str] = []
    for parameter in parameters:
        text = texts.get(parameter.name, "")
        if parameter.placement in {Placement.ARGUMENT, Placement.BEFORE}:
            arguments += parameter.words_of(text) if text else []
        elif parameter.placement is Placement.REDIRECTION:
            options += valued(f"--{parameter.name}", text) if text else []
        else:
            options += option_words(parameter, text)
    return [*options, "--", *arguments]


def words_from_texts(verb: Command, texts: Mapping[str, str]) -> list[str]:
    """The verb's arguments and options on the command line."""
    words_of = _words_of(verb.parameters, texts)
    end = words_of.index("--")
    options, arguments = words_of[:end], words_of[end + 1 :]
    # "--" is needed only before an argument that looks like an option.
    dashed = any(word.startswith("-") for word in arguments)
    return words_of if dashed else [*arguments, *options]


def option_words(parameter: Parameter, text: str) -> list[str]:
    """A field as options; none for the default."""
    if parameter.placement is not Placement.OPTION or not text or text == parameter.default:
        return []
    option = f"--{parameter.name}"
    if parameter.is_flag:
        return [option]
    return [part for word in parameter.words_of(text) for part in valued(option, word)]


def valued(option: str, value: str) -> list[str]:
    """With "=" where the value begins with "-" and would be read as an option."""
    return [f"{option}={value}"] if value.startswith("-") else [option, value]


def equivalent_command(
    verb: Verb,
    connection: Sequence[str],
    schema: str,
    name: str,
    texts: Mapping[str, str],
    yes: str | None = None,
) -> str:
    """To be pasted into a shell. `yes`: the confirmation, empty for a bare `--yes`; None: none.

    Without a confirmation the command prints the plan and changes nothing.
    """
    arguments: list[str] = []
    options = [*verb.fixed]
    for parameter in verb.parameters:
        options += option_words(parameter, texts.get(parameter.name, ""))
        if parameter.placement is Placement.ARGUMENT and texts.get(parameter.name):
            arguments += parameter.words_of(texts[parameter.name])
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
    # Options come first where "--" must precede the arguments.
    dashed = any(word.startswith("-") for word in arguments)
    words = [*options, "--", *arguments] if dashed else [*arguments, *options]
    # A payload "-" means standard input, so it is piped in.
    piped = "printf %s - | " if texts.get("payload") == "-" else ""
    files = [
        texts[one.name]
        for one in verb.parameters
        if one.placement is Placement.REDIRECTION and texts.get(one.name)
    ]
    line = piped + shlex.join([PROGRAM, verb.name, *words])
    return line + "".join(f" >> {shlex.quote(path)}" for path in files)
