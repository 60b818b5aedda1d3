"""Who did what: one line an action, the newest first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo

from console import formats
from console.actions.audit import Entry, Outcome
from console.tui.text import plain
from console.tui.widgets.fitting import Wish
from console.tui.widgets.keyed_table import Cell
from console.tui.widgets.list_table import ListTable

_WISHES = (
    Wish("mark", "", most=1),
    Wish("when", "when", least=14, most=14),
    Wish("verb", "verb", least=7, most=12),
    Wish("place", "connection", least=8, most=24),
    Wish("queue", "queue", least=14, most=40),
    Wish("outcome", "outcome", least=11, most=12),
    Wish("done", "done", least=6, most=14, right=True),
    Wish("planned", "planned", least=7, most=14, right=True),
    Wish("left", "left alone", least=10, most=28),
    Wish("took", "took", least=9, most=10, right=True),
    Wish("operator", "by", least=8, most=26),
    Wish("action", "no.", least=3, most=8, right=True),
    Wish("detail", "about", least=10, most=120),
)
_LOST_FIRST = ("detail", "action", "took", "planned", "left", "operator", "place", "done")
_MARKS = {"failed": "✖", "refused": "✖", "interrupted": "!", "stopped": "!", "running": "▶"}
_TONES = {"failed": "critical", "refused": "critical", "interrupted": "warning"}


@dataclass(frozen=True)
class Line:
    """One action of one connection."""

    entry: Entry
    alive: bool | None = None
    """Of an action that has not ended: whether the session that it runs in is still there."""
    place: str = ""
    """The connection's name, where there are several."""

    @property
    def key(self) -> str:
        """What the cursor stays on. Action numbers are a database's own."""
        return repr((self.place, self.entry.action_id))

    @property
    def outcome(self) -> str:
        """How it ended, in words; of one that was cut off the audit itself cannot tell."""
        if self.entry.outcome != Outcome.RUNNING.value:
            return self.entry.outcome
        return {False: "interrupted", None: "running?", True: "running"}[self.alive]

    @property
    def counts(self) -> str:
        """How many were done, and of how many."""
        entry = self.entry
        if entry.planned:
            return f"{entry.done:,} of {entry.planned:,}"
        return f"{entry.done:,}" if entry.done else ""

    @property
    def left(self) -> str:
        """What was not done, if anything."""
        kinds = ((self.entry.skipped, "skipped"), (self.entry.failed, "failed"))
        return ", ".join(f"{count:,} {word}" for count, word in kinds if count)

    @property
    def took(self) -> str:
        """From its beginning to its last batch."""
        seconds = (self.entry.last_at - self.entry.started_at).total_seconds()
        return formats.duration(max(0.0, seconds))


class AuditTable(ListTable):
    """Give it entries by `show_entries`, or lines of several connections by `show_lines`."""

    def __init__(self, *, id: str | None = None, queues: bool = True) -> None:  # noqa: A002
        """`queues`: whether it says of which queue an action was."""
        super().__init__(_WISHES, _LOST_FIRST, id=id)
        self.zone: tzinfo | None = UTC
        """In which times are shown; it counts from what is shown next."""
        self._queues = queues
        self._lines: dict[str, Line] = {}

    def show_entries(self, entries: Sequence[Entry], alive: Mapping[int, bool | None]) -> None:
        """Show the actions of one connection; `alive` as `console.actions.audit` gives it."""
        self.show_lines([Line(entry, alive.get(entry.action_id)) for entry in entries])

    def show_lines(self, lines: Sequence[Line]) -> None:
        """Show these, in this order."""
        self._lines = {line.key: line for line in lines}
        self.show_rows({key: self._row(line) for key, line in self._lines.items()})

    @property
    def line(self) -> Line | None:
        """The action under the cursor."""
        return self._lines.get(self.cursor_key or "")

    @property
    def entry(self) -> Entry | None:
        """The same, as the audit has it."""
        line = self.line
        return line.entry if line is not None else None

    def _row(self, line: Line) -> dict[str, Cell]:
        entry, outcome = line.entry, line.outcome
        tone = _TONES.get(outcome, "")
        when = f"{entry.started_at.astimezone(self.zone):%m-%d %H:%M:%S}"
        about = "  ".join(plain(text) for text in (entry.filters, entry.detail) if text)
        queue = f"{entry.schema}.{entry.queue}" if self._queues and entry.queue else ""
        return {
            "mark": Cell(_MARKS.get(outcome, ""), tone or "quiet"),
            "when": Cell(when, "quiet"),
            "verb": Cell(plain(entry.verb), "strong"),
            "place": Cell(plain(line.place), "quiet"),
            "queue": Cell(plain(queue)),
            "outcome": Cell(plain(outcome), tone),
            "done": Cell(f"{entry.done:,}" if entry.planned or entry.done else ""),
            "planned": Cell(f"{entry.planned:,}" if entry.planned else "", "quiet"),
            "left": Cell(line.left, "warning" if entry.failed else "quiet"),
            "took": Cell(line.took, "quiet"),
            "operator": Cell(plain(entry.operator)),
            "action": Cell(str(entry.action_id), "quiet"),
            "detail": Cell(about, "quiet"),
        }
