"""The keys of a user's own commands, on lists of messages, a message, queues and findings."""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from textual.screen import Screen

from console.errors import ConsoleError
from console.features.own_commands.command import FINDING, MESSAGE, QUEUE, OwnCommand, run
from console.features.own_commands.configured import own_commands
from console.formats import plain_lines
from console.monitor.message import Message
from console.tui.dialogs.dialog import FactsDialog
from console.tui.findings import QueueKey
from console.tui.jobs import start_job
from console.tui.text import first_line
from console.tui.views import QueueView
from console.views.doctor import FindingView


@cache
def _commands() -> Mapping[tuple[str, str], OwnCommand]:
    """By what they are about, and their keys."""
    return {(one.on, one.key): one for one in own_commands()}


def pressed(screen: Screen[Any], key: str) -> None:
    """Run the command with that key on the row under the cursor, if there is one."""
    on, values = _row_of(screen)
    if not on or not key or key in screen.active_bindings:
        return

    def start(commands: Mapping[tuple[str, str], OwnCommand]) -> None:
        if (command := commands.get((on, key))) is not None:
            _run(screen, command, values)

    # In a job: the first call reads the configuration.
    start_job(screen, _commands, start, partial(_failed, screen))


def _failed(screen: Screen[Any], error: ConsoleError) -> None:
    screen.notify(first_line(str(error)), severity="error", markup=False)


def _row_of(screen: Screen[Any]) -> tuple[str, Mapping[str, Any]]:
    """What the row under the cursor is, with its values; a screen of one thing is its row."""
    key: QueueKey | None = getattr(screen, "key", None)
    row = getattr(screen.focused, "row", None) or getattr(screen, "message", None)
    if isinstance(row, QueueView):
        return QUEUE, _of_queue(row.key)
    if isinstance(row, FindingView):
        of = _of_queue(row.queue_key) if row.queue_key else {}
        return FINDING, {**of, "code": row.code, "summary": row.summary}
    if isinstance(row, Message) and key is not None:
        return MESSAGE, {**vars(row), **_of_queue(key)}
    return (QUEUE, _of_queue(key)) if key is not None else ("", {})


def _of_queue(key: QueueKey) -> dict[str, str]:
    connection, schema, queue = key
    return {"connection": connection, "schema": schema, "queue": queue}


def _run(screen: Screen[Any], command: OwnCommand, values: Mapping[str, Any]) -> None:
    """In a thread of its own; its output is a dialog."""
    try:
        words = command.arguments(values)
    except ConsoleError as error:
        _failed(screen, error)
        return
    subject = (values.get("connection", ""), values.get("schema", ""), values.get("queue", ""))
    screen.notify(f"{command.name} runs ...", markup=False)

    def show(output: str) -> None:
        text = plain_lines(output).strip() or "It printed nothing."
        screen.app.push_screen(FactsDialog(command.name, {}, [text]))

    start_job(screen, lambda: run(command, words, subject), show, partial(_failed, screen))
