"""What an installation would run, whole; confirmed by typing; then the way to its smoke test."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input

from console.actions import install as installing
from console.actions.audit import Outcome, Subject, note
from console.catalog import Queue
from console.engines import Product
from console.errors import ConsoleError
from console.rights import Rights
from console.tui import jobs
from console.tui.desk import Desk
from console.tui.dialogs.dialog import Dialog
from console.tui.places import Place
from console.tui.text import plain, said
from console.tui.widgets.paragraph import Paragraph
from console.tui.widgets.sql_view import SqlView
from console.tui.widgets.tones import tone


class InstallPlanDialog(Dialog[None]):
    """The queue is the one of the moment in which the dialog opened."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "out", "back", show=False, tooltip="back to the form"),
        Binding("enter", "smoke", "smoke test", show=False, tooltip="once it is installed"),
    ]

    def __init__(
        self,
        desk: Desk,
        place: Place | None,
        product: Product,
        queue: Queue,
        *,
        production: bool = False,
    ) -> None:
        super().__init__()
        self._desk = desk
        self._place = place
        self._product = product
        self._queue = queue
        self._production = production
        self._state = "asking"

    def compose(self) -> ComposeResult:
        """The SQL, and below it what is asked."""
        with Vertical(id="install-plan", classes="dialog tall") as panel:
            panel.border_title = f"Install {plain(self._queue.label)}"
            panel.border_subtitle = "Tab: to the SQL and back · y copies it · Escape: back"
            yield SqlView(installing.script(self._product, self._queue), self._product.name)
            yield Paragraph(id="install-words")
            yield Input(id="confirm", placeholder="type it here", compact=True)

    def on_mount(self) -> None:
        """The question has the keys, where there is one."""
        line = self.query_one(Input)
        line.display = self._may
        self.set_focus(line if self._may else self.query_one(SqlView))
        self._say()

    @property
    def _may(self) -> bool:
        return self._place is not None and self._place.rights >= Rights.ADMIN

    def _say(self, wrong: str = "") -> None:
        words = self.query_one("#install-words", Paragraph)
        text = Text()
        place = self._place
        if place is None:
            text.append(f"For {self._product.title}'s own client, as it is: one transaction.")
        elif not self._may:
            text.append(
                f"{plain(place.name)} is {place.rights.word}: installing wants admin. The SQL can "
                "be copied and run by whoever has it.",
                tone(words, "warning"),
            )
        else:
            where = "PRODUCTION " if self._production else ""
            text.append(
                f"It runs on {where}{plain(place.name)} in one transaction: all of it or nothing. "
                + (
                    f"Type {plain(self._queue.name)} and Enter."
                    if self._production
                    else "Type y and Enter."
                )
            )
        if wrong:
            text.append(f"\n{wrong}", tone(words, "critical"))
        words.say(text)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Only the word that is wanted installs."""
        event.stop()
        if self._state != "asking" or self._place is None or not self._may:
            return
        word = event.value.strip()
        by_name = word == self._queue.name
        if not by_name and (self._production or word.lower() not in {"y", "yes"}):
            self._say(f"{plain(word)!r} is not it: nothing was installed." if word else "")
            return
        self._state = "running"
        event.input.display = False
        self.query_one("#install-words", Paragraph).say(Text("Installing ..."))
        database, queue = self._place.database, self._queue
        jobs.start(
            self,
            lambda: installing.install(database, queue),
            lambda _: self.installed(),
            self.failed,
        )

    def installed(self) -> None:
        """It is there; what comes next."""
        self._state = "done"
        self._desk.look_now()
        words = self.query_one("#install-words", Paragraph)
        text = Text(f"Installed {plain(self._queue.label)}. ", tone(words, "good"))
        text.append(
            "Enter smoke-tests it: a scratch queue of the same design and options beside it."
        )
        words.say(text)
        self.query_one("#install-plan").border_subtitle = "Enter: smoke test · Escape: back"
        self.set_focus(None)

    def failed(self, error: ConsoleError) -> None:
        """Nothing of it is there."""
        self._state = "asking"
        line = self.query_one(Input)
        line.display = True
        self.set_focus(line)
        self._say(said(error))

    def action_smoke(self) -> None:
        """Only once it is installed."""
        if self._state == "done" and self._place is not None:
            key = (self._place.name, self._queue.schema, self._queue.name)
            ways = self._desk.ways
            self.app.pop_screen()
            self.app.pop_screen()
            ways.open_smoke(key)

    def action_out(self) -> None:
        """Back to the form; what is installed stays."""
        if self._state == "running":
            return
        if self._state == "asking" and self._place is not None and not self._may:
            # As the command line does: what was refused is in this machine's audit.
            subject = Subject.of(self._place.database, self._queue, "install")
            note(subject, Outcome.REFUSED, detail=f"This connection has {self._place.rights.word}.")
        self.app.pop_screen()
        if self._state == "done":
            self.app.pop_screen()
