"""Who did what: everywhere, on one connection, or to one queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from console.actions import audit
from console.actions.audit import Entry, Wanted
from console.errors import ConsoleError, UsageError
from console.formats import numbered, parse_duration
from console.tui.board import Key
from console.tui.desk import Desk
from console.tui.dialogs.audit_entry import AuditEntryDialog
from console.tui.dialogs.command import show_twin
from console.tui.jobs import Question
from console.tui.places import Place
from console.tui.screens.live import LiveScreen
from console.tui.text import first_line, plain, said, whole_seconds
from console.tui.widgets.audit_table import AuditTable, Line
from console.tui.widgets.paragraph import Paragraph
from console.tui.widgets.screen_head import ScreenHead
from console.tui.widgets.tones import tone

_LIMIT = 500
"""Of one connection; the newest."""
_EVERY_SECONDS = 5.0
_FORMS = "verb:purge  operator:ann  since:1d  running, or any words"


@dataclass(frozen=True)
class Sought:
    """What a line of the filter means: a part is asked of the database, the words are looked for
    in what came."""

    verb: str | None = None
    operator: str | None = None
    since: float | None = None
    running: bool = False
    words: tuple[str, ...] = ()

    def wanted(self, key: Key | None) -> Wanted:
        """For the audit of a connection, or of a queue."""
        schema, name = (None, None) if key is None else key[1:]
        return Wanted(schema, name, self.verb, self.operator, self.since, self.running)

    def matches(self, line: Line) -> bool:
        """Whether all its words are in what is shown of the action."""
        entry = line.entry
        told = f"{line.place} {line.outcome} {entry.verb} {entry.schema}.{entry.queue} "
        told += f"{entry.operator} {entry.database_user} {entry.filters} {entry.detail} "
        told = (told + str(entry.action_id)).casefold()
        return all(word in told for word in self.words)


def read(text: str) -> Sought:
    """The filter that a line means. UsageError for a duration that is none."""
    verb = operator = since = None
    running = False
    words = []
    for word in text.split():
        name, colon, value = word.partition(":")
        if colon and not value:
            continue  # it is being typed
        if colon and name == "verb":
            verb = value
        elif colon and name == "operator":
            operator = value
        elif colon and name == "since":
            since = parse_duration(value)
        elif word == "running":
            running = True
        else:
            words.append(word.casefold())
    return Sought(verb, operator, since, running, tuple(words))


@dataclass(frozen=True)
class Found:
    """What the audits of the connections hold; of some there may be an error instead."""

    lines: tuple[Line, ...] = ()
    errors: tuple[tuple[str, ConsoleError], ...] = ()
    full: bool = False
    """Whether there are older ones that were not asked for."""


def look(places: Sequence[Place], sought: Sought, key: Key | None = None) -> Found:
    """Ask each connection's audit. Waits. One that fails is told beside what the others have."""
    lines: list[Line] = []
    errors = []
    full = False
    for place in places:
        try:
            found = _ask(place, sought.wanted(key))
        except ConsoleError as error:
            errors.append((place.name, error))
            continue
        full = full or len(found) >= _LIMIT
        name = place.name if len(places) > 1 else ""
        lines += [Line(entry, alive, name) for entry, alive in found]
    lines.sort(key=lambda line: line.entry.started_at, reverse=True)
    return Found(tuple(lines), tuple(errors), full)


def _ask(place: Place, wanted: Wanted) -> list[tuple[Entry, bool | None]]:
    database = place.database
    with database.transaction("read the audit", read_only=True) as connection:
        entries = audit.entries(connection, database.product, wanted, _LIMIT)
        alive = audit.alive(connection, database.product, entries)
    return [(entry, alive.get(entry.action_id)) for entry in entries]


class AuditScreen(LiveScreen):
    """The newest first; Enter shows one whole, with what undoes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/", priority=True, tooltip=_FORMS),
        Binding("enter", "keep_filter", "keep it", priority=True),
        Binding("escape", "clear_filter", "all", priority=True),
        Binding("escape,q", "out", "out", show=False, tooltip="one level out; never quits"),
        Binding("enter", "open", "whole", tooltip="show the action whole, and what undoes it"),
        Binding(
            "o", "command_line", "command line", show=False, tooltip="the same on the command line"
        ),
    ]

    FILTERS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("/ verb:purge", "also operator:ann since:1d running"),
        ("/ words", "that are in what is shown"),
    )

    def __init__(self, desk: Desk, connection: str = "", key: Key | None = None) -> None:
        super().__init__(desk)
        self._key = key
        name = connection or (key[0] if key is not None else "")
        self._places = [one for one in desk.places.values() if name in {"", one.name}]
        self._sought = Sought()
        self._wrong = ""
        self._found: Found | None = None
        self._found_at = 0.0
        self._question: Question[Found] = Question(self, self.show, self._failed)

    def body(self) -> ComposeResult:
        """What is shown, the actions, what is wrong."""
        yield ScreenHead(id="audit-head", classes="head")
        yield AuditTable(id="audit", queues=self._key is None)
        yield Paragraph(id="audit-words", classes="empty")
        yield Input(id="filter", placeholder=_FORMS)

    def on_mount(self) -> None:
        """The table has the keys; it is asked for at once."""
        self.query_one("#filter").display = False
        self.query_one("#audit-words").display = False
        self.set_focus(self.query_one(AuditTable))
        super().on_mount()
        self.look()
        self.set_interval(_EVERY_SECONDS, self._look_again)

    def look(self) -> None:
        """Ask, in a thread."""
        places, sought, key = list(self._places), self._sought, self._key
        self._question.ask(lambda: look(places, sought, key))

    def _look_again(self) -> None:
        if self.is_seen and self.paused_at is None:
            self.look()

    def show(self, found: Found) -> None:
        """What came of it."""
        if self.paused_at is not None and self._found is not None:
            return
        # Of a connection that does not answer now, what it said before stays.
        silent = {name for name, _ in found.errors}
        kept = [] if self._found is None else [x for x in self._found.lines if x.place in silent]
        if found.errors and len(self._places) == 1 and self._found is not None:
            kept = list(self._found.lines)
        if not found.errors:
            self._found_at = self.desk.clock.monotonic()
        lines = sorted([*found.lines, *kept], key=lambda x: x.entry.started_at, reverse=True)
        self._found = Found(tuple(lines), found.errors, found.full)
        self._draw_lines()

    def _failed(self, error: ConsoleError) -> None:
        self.show(Found(errors=(("", error),)))

    def draw_body(self, now: float, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        """The words; the lines are drawn as they come."""
        self._draw_lines()

    def _draw_lines(self) -> None:
        table = self.query_one(AuditTable)
        table.zone = self.desk.zone
        found = self._found or Found()
        shown = [line for line in found.lines if self._sought.matches(line)]
        table.show_lines(shown)
        self._draw_head(len(shown))
        words = self.query_one("#audit-words", Paragraph)
        words.say(Text(self._why_empty()))
        words.display = not shown
        table.display = bool(shown)
        if shown and self.focused is None:
            self.set_focus(table)

    def _draw_head(self, shown: int) -> None:
        head = self.query_one("#audit-head", ScreenHead)
        line = Text()
        if self.paused_at is not None:
            line.append(" PAUSED ", tone(head, "paused"))
            line.append(" ")
        line.append("Audit", tone(head, "strong"))
        line.append(f" of {self._of}", tone(head, "quiet"))
        if self._found is not None:
            more = "the newest " if self._found.full else ""
            line.append(f"   {more}{numbered(shown, 'action')}")
        if text := self.query_one("#filter", Input).value:
            line.append(f"   that match {plain(text)}", tone(head, "strong"))
        if self._wrong:
            line.append(f"   {plain(self._wrong)}", tone(head, "critical"))
        for name, error in self._found.errors if self._found else ():
            age = whole_seconds(max(0.0, self.desk.clock.monotonic() - self._found_at))
            old = f", {age} old" if self._found_at else ""
            where = f"{plain(name)}: " if name and len(self._places) > 1 else ""
            line.append(
                f"   {where}{first_line(error.why or error.what)}{old}", tone(head, "critical")
            )
        head.draw(line)

    @property
    def _of(self) -> str:
        if self._key is not None:
            return plain(f"{self._key[1]}.{self._key[2]} on {self._key[0]}")
        if len(self._places) == 1:
            return plain(self._places[0].name)
        return f"{len(self._places)} connections"

    def _why_empty(self) -> str:
        if not self._places:
            return "There is no connection whose audit could be read."
        if self._found is None:
            return "Reading the audit ..."
        if self._found.errors:
            return "\n\n".join(said(error) for _, error in self._found.errors)
        if self._sought != Sought():
            return "No action matches. Escape shows all."
        return (
            "Nobody has done anything here yet.\n\n"
            "Every action of this console and of the command line is kept here:\n"
            "who, when, what, how many. Never a payload."
        )

    # Keys.

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002  # Textual's signature
    ) -> bool | None:
        """While a filter is typed, all keys but its own two are letters."""
        if not self.is_mounted or action in {"scroll_up", "scroll_down"}:
            return True
        typing = bool(self.query_one("#filter").display)
        if action == "clear_filter":
            return typing or bool(self.query_one("#filter", Input).value)
        if action == "keep_filter":
            return typing
        ours = {"filter", "open", "command_line", "pause", "look_now", "interval", "zone", "out"}
        return not typing or action not in ours

    def action_filter(self) -> None:
        """Open the filter line."""
        line = self.query_one("#filter", Input)
        line.display = True
        self.set_focus(line)  # at once; focus() would let the next keys go the old way
        self.refresh_bindings()

    def on_input_changed(self, event: Input.Changed) -> None:
        """What came follows every letter; the database is asked again for what it must answer."""
        try:
            sought, self._wrong = read(event.value), ""
        except UsageError as error:
            sought, self._wrong = self._sought, error.what
        before, self._sought = self._sought, sought
        if before.wanted(None) != sought.wanted(None):
            self.look()
        self._draw_lines()
        self.refresh_bindings()

    def action_keep_filter(self) -> None:
        """Go back to the table and leave the filter as it is."""
        self.query_one("#filter").display = False
        self.set_focus(self.query_one(AuditTable))
        self.refresh_bindings()

    def action_clear_filter(self) -> None:
        """Show all again."""
        self.query_one("#filter", Input).value = ""
        self.action_keep_filter()

    def action_look_now(self) -> None:
        """Look at everything now, at the audit too."""
        super().action_look_now()
        self.look()

    def action_open(self) -> None:
        """Show the action under the cursor whole."""
        line = self.query_one(AuditTable).line
        if line is not None:
            connection = line.place or (self._places[0].name if self._places else "")
            self.app.push_screen(AuditEntryDialog(self.desk, line, connection))

    def action_command_line(self) -> None:
        """What shows the same on the command line, of one connection."""
        place = self._places[0] if self._places else None
        show_twin(self, place, "audit", self._key, words(self._sought))


def words(sought: Sought) -> list[str]:
    """The filter as options of the command line; free words it has not."""
    found = ["--verb", sought.verb] if sought.verb else []
    found += ["--operator", sought.operator] if sought.operator else []
    found += ["--since", f"{sought.since:g}s"] if sought.since is not None else []
    return [*found, "--running"] if sought.running else found
