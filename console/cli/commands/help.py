"""Print the page of a TOPIC, or list the topics.

A page is rendered on a terminal, else printed as Markdown. For a single verb see its own
--help.

\b
Examples:
  dbq-console help
  dbq-console help connections
  dbq-console help designs > designs.md
"""

import sys

import click

from console.cli.context import Call
from console.cli.streams import put
from console.errors import UsageError
from console.help import topic, topics
from console.verbs.command import Command
from console.verbs.parameters import Parameter, Placement

_WIDTH = 100
"""Longer lines are hard to read, however wide the terminal is."""


def complete_topics(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """For the shell: all topics."""
    return [name for name in topics() if name.startswith(begun)]


def _run(call: Call, name: str | None) -> None:
    if name is None:
        values = topics().values()
        width = max(len(one.name) for one in values)
        call.answer(
            {"topics": [{"topic": one.name, "summary": one.summary} for one in values]},
            [
                *(f"{one.name:<{width}}  {one.summary}" for one in values),
                "",
                "dbq-console help TOPIC prints a page; dbq-console VERB --help explains a verb.",
            ],
        )
        return
    verbs = click.get_current_context().find_root().command
    if name not in topics() and isinstance(verbs, click.Group) and name in verbs.commands:
        raise UsageError(
            f"{name!r} is a verb, not a help topic.", next_step=f"dbq-console {name} --help"
        )
    page = topic(name)
    if call.json:
        call.answer({"topic": page.name, "summary": page.summary, "text": page.text}, [])
    else:
        put(rendered(page.text) if sys.stdout is not None and sys.stdout.isatty() else page.text)


def rendered(text: str) -> str:
    """The page for a terminal."""
    from rich.console import Console  # noqa: PLC0415  # a verb imports what it uses
    from rich.markdown import Markdown  # noqa: PLC0415
    from rich.theme import Theme  # noqa: PLC0415

    terminal = Console(theme=Theme({"markdown.code": "bold"}))
    page = Markdown(text, code_theme="ansi_dark")  # which has no background of its own
    with terminal.capture() as captured:
        terminal.print(page, width=min(terminal.width, _WIDTH))
    return captured.get()


_NAME = Parameter("name", placement=Placement.ARGUMENT, metavar="[TOPIC]", complete=complete_topics)
COMMAND = Command("help", _run, __doc__, (_NAME,))
