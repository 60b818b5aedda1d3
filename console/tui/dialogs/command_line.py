"""Commands by name: the line behind `:`, at the bottom of the screen, and the palette."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import ClassVar, Protocol, cast

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.command import CommandList, CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.containers import Vertical
from textual.screen import Screen
from textual.widgets import Input

from console.designs import DESIGNS
from console.designs.model import ANY_QUEUE_VERBS
from console.errors import ConsoleError, UsageError
from console.filters import MARK
from console.monitor import filters as filtering
from console.tui import commands
from console.tui.command import Command, CommandContext, Entry, names_of, quoted
from console.tui.commands import COMMANDS, TABS, command_named
from console.tui.context import Closable
from console.tui.dialogs.dialog import Dialog
from console.tui.findings import QueueKey
from console.tui.text import Paragraph, describe_error, plain, style_of
from console.verbs import all_verbs
from console.verbs import command as values
from console.verbs.parameters import FILTER, Placement
from console.verbs.queues import SMOKE


class Palette(Closable, CommandPalette):
    """Textual's own crashes if its list has no size yet, or no longer exists."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The list ignores keys until it is laid out."""
        if action == "command_list" and self.is_mounted:
            return bool(self.query_one(CommandList).scrollable_content_region)
        return super().check_action(action, parameters)

    def on_input_changed(self, event: Input.Changed) -> None:
        """No search after it was closed: the list no longer exists."""
        if not self.is_current:
            event.prevent_default()


class _HasCommands(Protocol):
    """The app, as far as its palette needs it."""

    def command_context(self, screen: Screen[object]) -> CommandContext: ...


class ConsoleCommands(Provider):
    """The verbs of the queue under the cursor, the screens, the queues, the themes."""

    @property
    def _ctx(self) -> CommandContext:
        return cast("_HasCommands", self.app).command_context(self.screen)

    async def discover(self) -> Hits:
        """Before anything is typed: first what applies to the queue under the cursor."""
        for name, summary, line in entries(self._ctx):
            yield DiscoveryHit(name, partial(self._run, line), help=summary)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, summary, line in entries(self._ctx):
            score = max(matcher.match(name), matcher.match(summary) * 0.5)
            if score > 0:
                yield Hit(score, matcher.highlight(name), partial(self._run, line), help=summary)

    def _run(self, line: str) -> None:
        try:
            commands.run(self._ctx, line)
        except ConsoleError as error:
            self.app.notify(plain(str(error)), severity="error", markup=False)


def entries(ctx: CommandContext) -> Iterator[Entry]:
    if ctx.key is not None:
        yield from _of_the_queue(ctx)
    for command in COMMANDS:
        if command.in_palette:
            yield command.name, command.summary, command.name
        yield from command.entries(ctx)
    for key in ctx.keys:
        name = f"{key[0]}/{key[1]}.{key[2]}"
        yield f"queue {plain(name)}", "its screen", f"queue {quoted(name)}"
    for theme in ctx.themes:
        yield f"theme {theme}", "change the colours", f"theme {theme}"


def _of_the_queue(ctx: CommandContext) -> Iterator[Entry]:
    key = ctx.key
    if key is None:
        return
    name = quoted(f"{key[0]}/{key[1]}.{key[2]}")
    shown = plain(key[2])
    for verb in _verbs(ctx):
        yield f"{verb.name} {shown}", verb.summary, f"{verb.name} {name}"
    for other in ("messages", "errors", "audit"):
        yield f"{other} {shown}", commands.BY_NAME[other].summary, f"{other} {name}"


def _verbs(ctx: CommandContext) -> list[values.Command]:
    """Those of its design, with any option; the form says why one is not available."""
    now = ctx.context.clock.monotonic()
    view = None if ctx.key is None else ctx.context.store.queue(ctx.key, now)
    design = None if view is None else DESIGNS.get(view.snapshot.design)
    if design is None:
        return []
    known = {
        *design.verbs,
        *(v for verbs in design.option_verbs.values() for v in verbs),
        *ANY_QUEUE_VERBS,
    }
    return [verb for verb in (*all_verbs(), SMOKE) if verb.name in known]


def completions(ctx: CommandContext, line: str) -> list[str]:
    """The lines that complete the last word."""
    head, _, last = line.rpartition(" ")
    before = head.split()
    if not before:
        return sorted(c.name for c in COMMANDS if c.name.startswith(last))
    try:
        command = command_named(before[0])
    except UsageError:
        return []
    words = [word for word in _next_words(ctx, command, before) if word.startswith(last)]
    return [f"{head} {word}" for word in dict.fromkeys(words)]


def _next_words(ctx: CommandContext, command: Command, before: Sequence[str]) -> Iterator[str]:
    if len(before) == 1:
        yield from _arguments(ctx, command.completes)
        yield from command.subcommands
    if command.completes == "theme" and len(before) == 2:
        yield "--save"
    if command.name == "queue" and len(before) == 2:
        yield from TABS
    if len(before) == 2 and before[1] in command.about_queue:
        yield from _unambiguous(ctx.keys)
    form = command.subcommands.get(before[1], command.form) if before[1:] else command.form
    parameters = () if form is None else form.parameters
    takes_filters = command.name in {"messages", "actions"} or FILTER in parameters
    if takes_filters and before:
        yield from ("state=ready", "state=claimed", "state=error", "state=done")
        yield from (re.split("(?<=[=~.])", one)[0] for one in filtering.FORMS)
        yield from (f"{MARK}{name}" for name in ctx.filters)
    options = (parameter for parameter in parameters if parameter.placement is Placement.OPTION)
    yield from (f"--{parameter.name}" for parameter in options)


def _arguments(ctx: CommandContext, what: str) -> Iterator[str]:
    if what in {"queue", "both"}:
        yield from _unambiguous(ctx.keys)
    if what in {"connection", "both"}:
        yield from map(quoted, ctx.context.connections)
    if what == "theme":
        yield from ctx.themes


def _unambiguous(keys: Iterable[QueueKey]) -> list[str]:
    """The shortest unambiguous name of each queue."""
    every = list(keys)
    names = []
    for key in every:
        alone = next(
            (n for n in names_of(key) if sum(n in names_of(other) for other in every) == 1), key[2]
        )
        names.append(quoted(alone))
    return names


_SHOWN = 12


class CommandLineDialog(Dialog[None]):
    """The command line at the bottom of the screen; errors are shown above it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "leave", show=False),
        Binding("tab", "complete(1)", "complete", show=False, priority=True),
        Binding("shift+tab", "complete(-1)", "previous", show=False, priority=True),
        Binding("up", "remember(-1)", "previous line", show=False),
        Binding("down", "remember(1)", "next line", show=False),
    ]

    def __init__(self, ctx: CommandContext, text: str = "") -> None:
        super().__init__()
        self._ctx = ctx
        self._text = text
        self._offered: list[str] = []
        self._selected = -1
        self._history_index = len(ctx.context.history)

    def compose(self) -> ComposeResult:
        with Vertical(id="command-line"):
            yield Paragraph(id="command-hints")
            yield Input(self._text, id="command-input", compact=True, select_on_focus=False)

    def on_mount(self) -> None:
        line = self.query_one(Input)
        self.set_focus(line)
        line.cursor_position = len(line.value)
        self._offer()

    def on_key(self, event: events.Key) -> None:
        """Keys typed ahead go into the line too."""
        line = self.query_one(Input)
        if self.focused is not line and event.is_printable and event.character:
            event.stop()
            line.insert_text_at_cursor(event.character)

    def _offer(self) -> None:
        line = self.query_one(Input).value
        self._offered, self._selected = completions(self._ctx, line), -1
        self._draw()

    def _draw(self) -> None:
        hints = self.query_one("#command-hints", Paragraph)
        line = self.query_one(Input).value
        text = Text()
        names = [one.rpartition(" ")[2] for one in self._offered]
        first = max(0, self._selected - _SHOWN + 1)
        for at, name in enumerate(names[first : first + _SHOWN], start=first):
            text.append(plain(name), style_of(hints, "sorted" if at == self._selected else "quiet"))
            text.append("  ")
        if len(names) > first + _SHOWN:
            text.append(f"+ {len(names) - first - _SHOWN}", style_of(hints, "quiet"))
        command = commands.BY_NAME.get(line.split(" ")[0])
        if command is not None:
            text.append("\n" if text else "")
            text.append(f":{command.name} {command.usage}", style_of(hints, "strong"))
            text.append(f"   {command.summary}", style_of(hints, "quiet"))
        hints.set_text(text)

    def on_input_changed(self) -> None:
        self._offer()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        line = event.value.strip()
        # Close this first, or it would cover the screen that the command opens.
        if not self.close() or not line:
            return
        history = self._ctx.context.history
        if not history or history[-1] != line:
            history.append(line)
        try:
            commands.run(self._ctx, line)
        except ConsoleError as error:
            dialog = CommandLineDialog(self._ctx, line)
            self.app.push_screen(dialog)
            dialog.after_refresh(dialog.show_error, error)

    def show_error(self, error: ConsoleError) -> None:
        hints = self.query_one("#command-hints", Paragraph)
        hints.set_text(
            Text(" ".join(describe_error(error).splitlines()), style_of(hints, "critical"))
        )

    def action_complete(self, step: int) -> None:
        if not self._offered:
            return
        self._selected = (
            (self._selected + step) % len(self._offered)
            if self._selected >= 0
            else min(0, step - 1)
        )
        self._selected %= len(self._offered)
        alone = len(self._offered) == 1
        self._set_line(self._offered[self._selected] + (" " if alone else ""))
        if alone:
            self._offer()
        else:
            self._draw()

    def _set_line(self, text: str) -> None:
        line = self.query_one(Input)
        with line.prevent(Input.Changed):
            line.value = text
        line.cursor_position = len(text)

    def action_remember(self, step: int) -> None:
        history = self._ctx.context.history
        self._history_index = max(0, min(len(history), self._history_index + step))
        self._set_line(history[self._history_index] if self._history_index < len(history) else "")
        self._offer()
