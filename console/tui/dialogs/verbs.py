"""The verbs that a queue has; what is not allowed is there too, greyed, with its reason."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from console.catalog import Queue
from console.errors import ConsoleError
from console.monitor import filters
from console.tui.actions.allowed import ON_THE_LAKE, Choice, choices, suggested
from console.tui.board import Key, QueueView
from console.tui.desk import Desk
from console.tui.dialogs.dialog import Dialog
from console.tui.jobs import start
from console.tui.text import plain, said
from console.tui.widgets.choices import Choices
from console.tui.widgets.lines import Lines


def view_of(desk: Desk, key: Key) -> QueueView | None:
    """The queue's figures as the board has them now."""
    queues = desk.board.queues(desk.clock.monotonic())
    return next((view for view in queues if view.key == key), None)


def acting_lines(view: QueueView | None) -> list[str]:
    """Who acts on a queue, and since when."""
    acting = () if view is None else view.snapshot.acting
    return [f"! under {plain(one.words)}" for one in acting]


class VerbsDialog(Dialog[None]):
    """Enter opens the form of the verb under the cursor. It changes nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "close", show=False),
        Binding("j", "move('cursor_down')", "down", show=False),
        Binding("k", "move('cursor_up')", "up", show=False),
        Binding("g", "move('first')", "first", show=False),
        Binding("G", "move('last')", "last", show=False),
    ]

    def __init__(self, desk: Desk, key: Key, words: Sequence[str] = (), state: str = "") -> None:
        """`words` and `state`: as `Ways.open_actions` has them."""
        super().__init__()
        self._desk = desk
        self._key = key
        self._words = tuple(words)
        self._state = state or filters.parse(words).state or ""
        self.choices: tuple[Choice, ...] = ()

    def compose(self) -> ComposeResult:
        """Who is at it on top, then the verbs."""
        with Vertical(id="verbs") as panel:
            panel.border_title = Text(f"Actions on {plain(self._key[1])}.{plain(self._key[2])}")
            panel.border_subtitle = "Enter opens the form   Escape closes"
            yield Lines(id="acting")
            yield Choices(id="choices")

    def on_mount(self) -> None:
        """What can be done is told by the catalog, which may take a moment."""
        self._say(["Looking the queue up ..."])
        place = self._desk.place(self._key)
        if place is None:
            self._say([self._desk.nothing_behind])
            return
        _, schema, name = self._key
        start(self, lambda: place.find(schema, name), self.show, self._failed)

    def show(self, queue: Queue) -> None:
        """Offer what there is for such a queue."""
        place = self._desk.place(self._key)
        if place is None:
            return
        view = view_of(self._desk, self._key)
        stale = ""
        if view is not None and view.unreachable:
            stale = "the connection gives no new figures"
        self.choices = choices(queue, place.rights, stale)
        self._say(acting_lines(view))
        options = self.query_one("#choices", OptionList)
        options.clear_options()
        options.add_options([_option(one) for one in self.choices])
        options.focus()
        options.highlighted = self._first(view)

    def _first(self, view: QueueView | None) -> int | None:
        """Where the cursor begins: at what the queue's figures call for."""
        figures = (None, None) if view is None else (view.snapshot.stuck, view.snapshot.errors)
        wanted = suggested(*figures, self._state)
        free = [at for at, one in enumerate(self.choices) if not one.why_not]
        called_for = [at for at in free if self.choices[at].verb == wanted]
        return next(iter((*called_for, *free)), None)

    def _failed(self, error: ConsoleError) -> None:
        self._say(said(error).splitlines())

    def _say(self, lines: Sequence[str]) -> None:
        words = self.query_one("#acting", Lines)
        words.display = bool(lines)
        words.say(Text("\n".join(plain(line) for line in lines)))

    def action_move(self, way: str) -> None:
        """As the arrows do."""
        getattr(self.query_one("#choices", OptionList), f"action_{way}")()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open the form."""
        verb = event.option.id or ""
        self.app.pop_screen()
        if verb == "smoke":
            self._desk.ways.open_smoke(self._key)
        elif verb in ON_THE_LAKE:
            self._desk.ways.open_pipeline(ON_THE_LAKE[verb], self._key)
        else:
            self._desk.ways.open_action(self._key, verb, self._words)


def _option(choice: Choice) -> Option:
    text = Text(f"{choice.verb:<12}", "bold" if not choice.why_not else "", no_wrap=True)
    text.append(choice.why_not or choice.summary, "not bold")
    return Option(text, id=choice.verb, disabled=bool(choice.why_not))
