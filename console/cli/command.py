"""Commands of the command line from their values: what all of them have, and their `Call`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from console.cli.context import (
    COMMAND_LINE,
    WORDS,
    Call,
    complete_filters,
    complete_profiles,
    complete_queues,
)
from console.cli.several import over_connections
from console.cli.streams import Answers
from console.command_line import CommandLineValues
from console.rights import Rights
from console.verbs.parameters import FILTER_TYPE, Parameter, Placement, argument

if TYPE_CHECKING:
    from console.verbs.command import Command

BARE_YES = "\0"
"""The value of `--yes` without a word; no queue can have this name."""
_EXPLICIT = "\0="

NAME = argument("name", "A queue.", complete=complete_queues)
OPTIONAL_NAME = replace(NAME, required=False)
NAMES = replace(OPTIONAL_NAME, dest="names", multiple=True, metavar="[NAME]...")
GROUP = Parameter("group", "All connections of this configured group.", metavar="G")
FLEET = Parameter("fleet", "All connections of this configured fleet.", metavar="F")
RIGHTS = Parameter(
    "rights",
    "What this call may do. Default: as in the profile; with a URL, admin.",
    click.Choice([one.word for one in Rights]),
)
CONNECTION = (
    Parameter(
        "url",
        "The database; also from DBQ_URL. Other users of the machine can see a command line: put "
        "the password into ~/.pgpass or a profile, or write '${env:NAME}' for it.",
        metavar="URL",
    ),
    Parameter("profile", "A configured connection.", metavar="NAME", complete=complete_profiles),
)
"""Accepted before and after the verb."""
_OF_EVERY_COMMAND = (
    *CONNECTION,
    Parameter("schema", "The schema; default: search all of them.", metavar="S"),
    RIGHTS,
    Parameter("json", "One JSON object on stdout.", is_flag=True, dest="as_json"),
)
_DRY_RUN = Parameter("dry-run", "Show the plan and change nothing (exit 0).", is_flag=True)


def _confirmation() -> list[click.Parameter]:
    """`--yes [NAME]` and `--dry-run`, for what only plans without them."""
    yes = click.Option(
        ["--yes"],
        is_flag=False,
        flag_value=BARE_YES,
        default=None,
        callback=lambda _, __, word: None if word is None else word.removeprefix(_EXPLICIT),
        metavar="[NAME]",
        help="Run the plan; with the queue's name if the plan requires it.",
    )
    return [yes, _DRY_RUN.as_click()]


class CallCommand(click.Command):
    """A command from its value."""

    def __init__(self, of: Command, run: Callable[..., None], **more: Any) -> None:
        super().__init__(of.name, help=of.help or run.__doc__, **more)
        self.of = of
        self._run = run

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of its value."""
        del ctx
        if self.of.table is not None:
            title, rows = self.of.table
            with formatter.section(title):
                formatter.write_dl(rows())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let the word of `--yes=WORD` begin with "-", which click would take for an option."""
        ctx.meta[WORDS] = tuple(args)
        end = args.index("--") if "--" in args else len(args)
        options = [re.sub("^--yes=", f"--yes={_EXPLICIT}", word) for word in args[:end]]
        return super().parse_args(ctx, options + args[end:])

    def invoke(self, ctx: click.Context) -> Any:
        return ctx.invoke(self._run, _call(ctx, self.of), **ctx.params)


def as_command(of: Command, *, kind: type[CallCommand] = CallCommand, **more: Any) -> CallCommand:
    """With its parameters and those of every command."""
    run, alone = of.run, of.alone
    assert run is not None  # noqa: S101  # or it has no command of its own
    own = [
        replace(parameter, complete=complete_filters)
        if parameter.type is FILTER_TYPE
        else parameter
        for parameter in of.parameters
        if parameter.placement is not Placement.REDIRECTION
    ]
    params = [
        *(parameter.as_click() for parameter in own),
        *(_confirmation() if of.confirmed else ()),
        *(parameter.as_click() for parameter in _OF_EVERY_COMMAND),
        *(parameter.as_click() for parameter in (() if alone is None else (GROUP, FLEET))),
    ]
    return kind(of, run if alone is None else over_connections(run, alone), params=params, **more)


def _call(context: click.Context, of: Command) -> Call:
    """Make the `Call`, and remove its options from the values."""

    given = context.params
    before: CommandLineValues = context.meta.get(COMMAND_LINE) or CommandLineValues()
    as_json = given.pop("as_json")
    if (answers := context.find_object(Answers)) is not None:
        answers.json = as_json
    command_line = CommandLineValues(
        given.pop("url") or before.url,
        given.pop("profile") or before.profile,
        given.pop("rights") or before.rights,
    )
    return Call(command_line, given.pop("schema"), as_json, of.name, of.right(given))
