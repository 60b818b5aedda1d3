"""The verbs of a queue; those not allowed are greyed out, with the reason."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from console.actions.availability import unavailable
from console.catalog import Queue, look_up
from console.errors import ConsoleError
from console.monitor import filters
from console.tui.command import Command, CommandContext, QueueAction
from console.tui.commands import COMMANDS
from console.tui.context import Context
from console.tui.dialogs.dialog import Dialog, Menu
from console.tui.findings import QueueKey
from console.tui.jobs import start_job
from console.tui.open_connection import OpenConnection, why_not_allowed
from console.tui.text import TextView, describe_error, plain
from console.tui.views import QueueView
from console.verbs import all_verbs
from console.verbs.queues import SMOKE


@dataclass(frozen=True)
class VerbChoice:
    """One verb in the list. `why_not` is empty if it can be chosen."""

    verb: str
    summary: str
    why_not: str = ""


def choices(queue: Queue, conn: OpenConnection, stale: str = "") -> tuple[VerbChoice, ...]:
    """All verbs, those that can be chosen first. `stale`: why none can."""
    every = [*_every(queue, conn, stale)]
    return tuple(sorted(every, key=lambda choice: bool(choice.why_not)))


def _every(queue: Queue, conn: OpenConnection, stale: str) -> Iterator[VerbChoice]:
    # Silences belong to a finding: its dialog has keys for them.
    for verb in (*all_verbs(), SMOKE):
        why = unavailable(queue, verb.name) or why_not_allowed(conn, verb.right({}))
        yield VerbChoice(verb.name, verb.summary, why or stale)
    for name, (_, action) in _offered().items():
        yield VerbChoice(
            name, action.of.summary, why_not_allowed(conn, action.of.right({})) or stale
        )


def _offered() -> dict[str, tuple[Command, QueueAction]]:
    """Name in this list -> its command, and what that does with a queue."""
    return {action.name: (command, action) for command in COMMANDS for action in command.of_queue}


_BY_STATE = {"error": "requeue", "claimed": "release", "done": "archive", "ready": ""}


def suggested(stuck: int | None, errors: int | None, state: str = "") -> str:
    """The verb that the messages' state or the queue's figures suggest, or empty."""
    if state in _BY_STATE:
        return _BY_STATE[state]
    if stuck:
        return "release"
    return "requeue" if errors else ""


def view_of(context: Context, key: QueueKey) -> QueueView | None:
    return context.store.queue(key, context.clock.monotonic())


def acting_lines(view: QueueView | None) -> list[str]:
    """Decisions on a queue, and the actions that are running on it."""
    if view is None:
        return []
    decided = [f"! {plain(decision.shown)}" for decision in view.snapshot.decisions]
    return [*decided, *(f"! under {plain(acting.words)}" for acting in view.snapshot.acting)]


class VerbsDialog(Dialog[None]):
    """Enter opens the form of the verb under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "close", show=False)]

    def __init__(
        self, context: Context, key: QueueKey, words: Sequence[str] = (), state: str = ""
    ) -> None:
        """`words` and `state`: as `Navigator.open_actions` has them."""
        super().__init__()
        self._app_context = context
        self._key = key
        self._words = tuple(words)
        self._state = state or filters.parse(words).state or ""
        self._queue: Queue | None = None
        self.choices: tuple[VerbChoice, ...] = ()

    def compose(self) -> ComposeResult:
        with Vertical(id="verbs") as panel:
            connection, schema, name = map(plain, self._key)
            where = f" on {connection}" if len(self._app_context.feeds) > 1 else ""
            panel.border_title = Text(f"Actions on {schema}.{name}{where}")
            panel.border_subtitle = "Enter opens the form   Escape closes"
            yield TextView(id="acting")
            yield Menu(id="choices")

    def on_mount(self) -> None:
        """Looking up the queue in the catalog may take a moment."""
        self._show_lines(["Looking up the queue ..."])
        conn = self._app_context.conn(self._key)
        if conn is None:
            self._show_lines([self._app_context.why_no_database])
            return
        _, schema, name = self._key
        find = partial(look_up, conn.database, name, schema, any_design=True)
        start_job(self, find, self.show, self._failed)

    def show(self, queue: Queue) -> None:
        conn = self._app_context.conn(self._key)
        if conn is None:
            return
        self._queue = queue
        view = view_of(self._app_context, self._key)
        stale = ""
        if view is not None and view.unreachable:
            stale = "the connection gives no new figures"
        self.choices = choices(queue, conn, stale)
        self._show_lines(acting_lines(view))
        options = self.query_one("#choices", OptionList)
        options.clear_options()
        options.add_options([_option(choice) for choice in self.choices])
        options.focus()
        options.highlighted = self._first(view)

    def _first(self, view: QueueView | None) -> int | None:
        """The initial cursor: at the suggested verb."""
        figures = (None, None) if view is None else (view.snapshot.stuck, view.snapshot.errors)
        wanted = suggested(*figures, self._state)
        enabled = [at for at, choice in enumerate(self.choices) if not choice.why_not]
        suggested_ones = [at for at in enabled if self.choices[at].verb == wanted]
        return next(iter((*suggested_ones, *enabled)), None)

    def _failed(self, error: ConsoleError) -> None:
        self._show_lines(describe_error(error).splitlines())

    def _show_lines(self, lines: Sequence[str]) -> None:
        view = self.query_one("#acting", TextView)
        view.display = bool(lines)
        view.set_text(Text("\n".join(plain(line) for line in lines)))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        if not self.close():
            return
        verb = event.option.id or ""
        if verb == SMOKE.name:
            self._app_context.navigator.open_smoke(self._key)
        elif (found := _offered().get(verb)) is not None:
            command, action = found
            command.do(CommandContext(self._app_context, self._key), [*action.words])
        else:
            self._app_context.navigator.open_action(self._key, verb, self._words, self._queue)


def _option(choice: VerbChoice) -> Option:
    text = Text(f"{choice.verb:<12}", "bold" if not choice.why_not else "", no_wrap=True)
    text.append(choice.why_not or choice.summary, "not bold")
    return Option(text, id=choice.verb, disabled=bool(choice.why_not))
