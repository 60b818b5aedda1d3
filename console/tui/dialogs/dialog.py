"""The base of all dialogs, and the small ones."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, TypeVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from console.config.passwords import Secret
from console.tui.context import Closable, Context
from console.tui.findings import QueueKey
from console.tui.open_connection import OpenConnection
from console.tui.text import Paragraph, plain, style_of


class Menu(OptionList):
    """An OptionList that does not crash on page keys while it has no size."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "down", show=False),
        Binding("k", "cursor_up", "up", show=False),
        Binding("g", "first", "first", show=False),
        Binding("G", "last", "last", show=False),
    ]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in {"page_up", "page_down"}:
            return bool(self.scrollable_content_region)
        return super().check_action(action, parameters)

    def scroll_to_highlight(self, top: bool = False) -> None:  # noqa: FBT001, FBT002  # Textual's
        """At the last enabled option also show the disabled ones below it."""
        super().scroll_to_highlight(top)
        enabled = [at for at, option in enumerate(self.options) if not option.disabled]
        below = len(self.options) - 1 - enabled[-1] if enabled else 0
        if (
            enabled
            and self.highlighted == enabled[-1]
            and below < self.scrollable_content_region.height
        ):
            self.scroll_end(animate=False)


Answer = TypeVar("Answer")


class Dialog(Closable, ModalScreen[Answer]):
    """A modal screen, never changed by a refresh."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "app.help", "help", show=False, tooltip="this page")
    ]


class FactsDialog(Dialog[None]):
    """Details of one item as of when it was opened; they scroll if they do not fit."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "close", show=False, tooltip="close"),
        Binding("y", "copy", "copy", show=False, tooltip="copy the text"),
        Binding("down,j", "scroll(1)", "down", show=False),
        Binding("up,k", "scroll(-1)", "up", show=False),
        Binding("pagedown", "scroll(10)", "page down", show=False),
        Binding("pageup", "scroll(-10)", "page up", show=False),
    ]
    PANEL: ClassVar[str] = "facts"
    """The panel's id."""

    def __init__(
        self,
        title: str,
        facts: Mapping[str, str],
        parts: Sequence[str] = (),
        *,
        note: str = "",
        keys: str = "y copies · Escape closes",
    ) -> None:
        """All of it safe to show. Below the facts come `parts` and then a `note`, which is not
        copied; `keys`: the line at the bottom."""
        super().__init__()
        self._heading, self._facts, self._parts = title, facts, tuple(parts)
        self._note, self._subtitle = note, keys

    def compose(self) -> ComposeResult:
        with VerticalScroll(id=self.PANEL, classes="dialog") as panel:
            panel.border_title = self._heading
            panel.border_subtitle = self._subtitle
            table = Table.grid(padding=(0, 2))
            table.add_column(no_wrap=True, style="bold")
            table.add_column(overflow="fold")
            for name, text in self._facts.items():
                table.add_row(Text(name), Text(text))
            yield Static(table)
            for part in (*self._parts, *([self._note] if self._note else [])):
                yield Static(Text(f"\n{part}", overflow="fold"))

    def action_copy(self) -> None:
        facts = (f"{name}: {text}" for name, text in self._facts.items())
        self.app.copy_to_clipboard("\n".join([*facts, *self._parts]))
        self.notify("Copied.")

    def action_scroll(self, lines: int) -> None:
        # At once: each of several quick key presses starts where the last one ended.
        self.query_one(f"#{self.PANEL}").scroll_relative(y=lines, animate=False, immediate=True)


class ConfirmDialog(Dialog[bool]):
    """True if `y` or the name was typed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "no", "back", show=False, tooltip="cancel; nothing is done")
    ]

    def __init__(self, title: str, lines: Sequence[str], name: str) -> None:
        super().__init__()
        self._about = title
        self._lines = lines
        self._word = name

    def compose(self) -> ComposeResult:
        with Vertical(id="confirming", classes="dialog") as panel:
            panel.border_title = plain(self._about)
            panel.border_subtitle = "Escape: nothing is done"
            yield Paragraph(Text("\n".join(map(plain, self._lines))))
            yield Paragraph(Text("\nType y and press Enter."), id="confirm-prompt")
            yield Input(id="confirm", compact=True)

    def on_mount(self) -> None:
        self.set_focus(self.query_one(Input))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        word = event.value.strip()
        if word == self._word or word.lower() in {"y", "yes"}:
            self.dismiss(result=True)
            return
        prompt = self.query_one("#confirm-prompt", Paragraph)
        prompt.set_text(
            Text(
                f"\n{plain(word)!r} is not the name: nothing was done.",
                style_of(prompt, "critical"),
            )
        )

    def action_no(self) -> None:
        self.dismiss(result=False)


class RevealDialog(Dialog[bool]):
    """True: show it. Only `y` confirms."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "show it", tooltip="show it; the audit records that"),
        Binding("n,escape,q,enter", "answer(False)", "keep it hidden"),
    ]

    def __init__(self, queue: str, message: str) -> None:
        super().__init__()
        self._queue = queue
        self._message = message

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as panel:
            panel.border_title = "Reveal"
            panel.border_subtitle = "y shows it · Escape keeps it hidden"
            text = (
                f"Show the message {plain(self._message)} of {plain(self._queue)} without its "
                "masks?\n\nThe audit records who did that, when, and for which message."
            )
            yield Static(Text(text))

    def action_answer(self, answer: bool) -> None:  # noqa: FBT001  # from the key map
        self.dismiss(answer)


class PasswordDialog(Dialog[None]):
    """Asks for one connection's password. Escape: do without."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "not now", show=False, tooltip="continue without a password")
    ]

    def __init__(self, context: Context, conn: OpenConnection) -> None:
        super().__init__()
        self._app_context = context
        self._conn = conn

    def compose(self) -> ComposeResult:
        with Vertical(id="password", classes="dialog") as panel:
            panel.border_title = f"Log in to {plain(self._conn.name)}"
            panel.border_subtitle = "Enter: log in · Escape: not now"
            if self._conn.url:
                yield Paragraph(Text(plain(self._conn.url)))
            yield Input(password=True, compact=True, placeholder="password")
            yield Paragraph(Text("It is kept in this console's memory until it quits."))

    def on_mount(self) -> None:
        self.set_focus(self.query_one(Input))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        credentials = self._conn.credentials
        if credentials is not None and event.value:
            credentials.set_password(Secret(event.value))
            for feed in self._app_context.feeds:
                if feed.name == self._conn.name:
                    feed.sample_now()
        event.input.clear()
        self.dismiss()


class RunningDialog(Dialog[None]):
    """The running actions; Enter opens one."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "close", show=False)]

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._app_context = context

    def compose(self) -> ComposeResult:
        with Vertical(id="verbs") as panel:
            panel.border_title = "Actions running here"
            panel.border_subtitle = "Enter opens one   Escape closes"
            runs = self._app_context.action_runs.all
            yield Menu(*(Option(Text(run.summary), id=str(run.number)) for run in runs))

    def on_mount(self) -> None:
        self.every(1.0, self._draw)

    def _draw(self) -> None:
        options = self.query_one(OptionList)
        for run in self._app_context.action_runs.all:
            if options.get_option_index(str(run.number)) is not None:
                options.replace_option_prompt(str(run.number), Text(run.summary))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        if self.close():
            self._app_context.navigator.open_running(int(event.option.id or 0))


def equivalent_command(
    conn: OpenConnection | None, verb: str, key: QueueKey | None = None, words: Iterable[str] = ()
) -> str:
    """`dbq-console messages orders --schema public --profile prod --filter state=error`."""
    name = [] if key is None else ["--schema", key[1]]
    # After "--" a name may start with a dash.
    last = [] if key is None else (["--", key[2]] if key[2].startswith("-") else [key[2]])
    where = () if conn is None else conn.cli_options
    return shlex.join(["dbq-console", verb, *name, *where, *words, *last])


def show_equivalent_command(
    owner: Widget,
    conn: OpenConnection | None,
    verb: str,
    key: QueueKey | None = None,
    words: Iterable[str] = (),
) -> None:
    """Show and copy the command line that is equivalent to what `owner` does or shows."""
    owner.app.push_screen(CommandDialog(equivalent_command(conn, verb, key, words)))


class CommandDialog(Dialog[None]):
    """A command line, copied when the dialog opens, and again by y."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,o,enter", "dismiss", "close", show=False),
        Binding("y", "copy", "copy", tooltip="copy the command again"),
    ]

    def __init__(self, command: str, note: str = "") -> None:
        """`note`: a remark below it."""
        super().__init__()
        self.command = command
        self._note = note

    def compose(self) -> ComposeResult:
        with Vertical(id="command") as panel:
            panel.border_title = "The same on the command line"
            panel.border_subtitle = "copied   Escape closes"
            yield Static(Text(plain(self.command), overflow="fold"))
            if self._note:
                yield Static(Text(self._note), classes="quiet")

    def on_mount(self) -> None:
        self.action_copy()

    def action_copy(self) -> None:
        """To the terminal's clipboard (OSC 52)."""
        self.app.copy_to_clipboard(self.command)
