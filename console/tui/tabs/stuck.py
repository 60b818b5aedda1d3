"""The tab Stuck of a queue: who has what was popped, and whether he is still there."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from console.actions.end_session import holding
from console.catalog import Kind, Queue
from console.engines import Database
from console.errors import ConsoleError
from console.formats import clock, duration, numbered
from console.monitor.activity import Session
from console.monitor.owners import Evidence
from console.monitor.stuck import Claims, claims
from console.tui.board import Key, QueueView
from console.tui.desk import Desk
from console.tui.dialogs.command import show_twin
from console.tui.jobs import Question
from console.tui.tabs.keys import DETAIL_FROM, take_keys
from console.tui.tabs.pace import Pace
from console.tui.tabs.tab import QueueTab
from console.tui.widgets.keeping import as_left, keys_with
from console.tui.widgets.stuck_table import Row, StuckTable, detail_of, rows_of
from console.tui.widgets.telling import say, told
from console.tui.widgets.tones import tone
from console.tui.widgets.words import Words

_UNMARK = "take all marks away"


@dataclass(frozen=True)
class Found:
    """Who has what: by claims, and by rows in an open transaction. None: the design has it not."""

    claims: Claims | None
    holders: tuple[Session, ...] | None


def find(database: Database, queue: Queue) -> Found:
    """Look at both, as far as the queue has them."""
    claimed = claims(database, queue) if "claimed" in queue.states else None
    # Where a pop ends its message, what is being worked on is held by an open transaction.
    held = not queue.finishes and queue.kind is not Kind.ARCHIVE
    return Found(claimed, tuple(holding(database, queue)) if held else None)


class StuckTab(QueueTab):
    """Claims with the evidence about their owners; sessions that hold rows, where a pop deletes."""

    NAME: ClassVar[str] = "stuck"
    TITLE: ClassVar[str] = "Stuck"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "unmark", "unmark", show=False, priority=True, tooltip=_UNMARK),
        Binding("q", "unmark", "unmark", show=False, tooltip=_UNMARK),
        Binding("a", "act", "actions", tooltip="act on these claims, or end this session"),
        Binding("f", "free", "release gone", tooltip="release all claims whose owner is gone"),
        Binding("r", "look_again", "now", show=False, tooltip="look again now"),
        Binding("y", "copy", "copy", show=False, tooltip="copy who has it"),
        Binding("o", "twin", "command", show=False, tooltip="the command line that shows the same"),
    ]

    _at: datetime | None = None
    """When it was looked at."""

    def __init__(self, desk: Desk, key: Key) -> None:
        super().__init__(desk, key)
        self.found: Found | None = None
        self._rows: dict[str, Row] = {}
        self._error: ConsoleError | None = None
        self._paused = False
        self._pace = Pace(desk.clock.monotonic, 2.0)
        self._question: Question[Found] = Question(self, self.show_found, self.fail)

    def compose(self) -> ComposeResult:
        """What there is, who has it, what is known of the one under the cursor."""
        yield Words(classes="pane-head", id="stuck-head")
        yield StuckTable()
        yield Words(classes="pane-detail", id="stuck-detail")

    def on_mount(self) -> None:
        """Nothing is known yet."""
        self._draw()
        take_keys(self, self.table)

    @property
    def table(self) -> StuckTable:
        """Who has what."""
        return self.query_one(StuckTable)

    @property
    def stuck_after_seconds(self) -> float:
        """From when on a claim is stuck."""
        place = self.place
        limits = place.thresholds_of(self.key[2]) if place else None
        return limits.stuck_after_seconds if limits else float("inf")

    # What is asked, and what comes of it.

    def look(self) -> None:
        """See who has what, where that costs little."""
        if self._pace.due and not self._paused:
            self._ask(wait=False)

    def _ask(self, *, wait: bool = True) -> None:
        place = self.place
        if place is None or (not wait and self._question.under_way):
            return
        _, schema, name = self.key

        def work() -> Found:
            return find(place.database, place.find(schema, name))

        self._pace.asked()
        self._question.ask(work, wait=wait)

    def show_found(self, found: Found) -> None:
        """It was looked at."""
        self._pace.answered()
        self.found, self._error, self._at = found, None, self.desk.clock.utc()
        claimed = found.claims.claims if found.claims else ()
        self._keep(rows_of(claimed, found.holders or (), self.stuck_after_seconds))
        self.table.show_rows({key: row.cells for key, row in self._rows.items()})
        self._draw()

    def _keep(self, rows: dict[str, Row]) -> None:
        """These, and as they were seen last those that the cursor or a mark is on."""
        held = {*self.table.marks, self.table.cursor_key}
        before = self._rows
        self._rows = {
            key: rows.get(key) or replace(before[key], cells=as_left(before[key].cells, "owner"))
            for key in keys_with([*rows], [*before], held)
        }

    def fail(self, error: ConsoleError) -> None:
        """What was seen before stays, with when that was."""
        self._pace.answered()
        self._error = error
        self._draw()

    # What is drawn.

    def draw(self, view: QueueView | None, *, paused: bool) -> None:  # noqa: ARG002  # the base's
        """The board has something new."""
        self._paused = paused
        if self.is_mounted:
            self._draw()

    def _draw(self) -> None:
        if not self.query("#stuck-head"):
            return
        head = self.query_one("#stuck-head", Words)
        lines = [self._summary(head)]
        if self._error is not None:
            lines.append(told(head, self._error))
        say(head, lines)
        detail = self.query_one("#stuck-detail", Words)
        row = self._rows.get(self.table.cursor_key or "")
        detail.display = row is not None and self.app.size.height >= DETAIL_FROM
        parts = [] if row is None else detail_of(row)
        detail.say(Text.assemble(*((text, tone(detail, name)) for text, name in parts)))

    def _summary(self, head: Words) -> Text:
        line = Text(no_wrap=True)
        found = self.found
        if found is None:
            line.append("" if self._error else "Looking ...", tone(head, "quiet"))
            return line
        if found.claims is not None:
            self._say_claims(line, head, found.claims)
        if found.holders is not None:
            line.append("   " if line else "")
            many = numbered(len(found.holders), "session")
            verb = "holds" if len(found.holders) == 1 else "hold"
            if found.holders:
                line.append(f"{many} {verb} rows", tone(head, "strong"))
            else:
                line.append("No session holds rows.", tone(head, "good"))
        if not line:
            line.append("Nothing of this design can be stuck.", tone(head, "good"))
        if marks := self.table.marks:
            line.append(f"   {len(marks)} marked", tone(head, "sorted"))
        if self._at is not None:
            line.append(f"   as of {clock(self._at, self.desk.zone)}", tone(head, "quiet"))
        return line

    def _say_claims(self, line: Text, head: Words, found: Claims) -> None:
        limit = self.stuck_after_seconds
        stuck = [claim for claim in found.claims if (claim.claimed_seconds or 0.0) >= limit]
        more = " and more" if found.more else ""
        if not found.claims:
            line.append("No claims.", tone(head, "good"))
            return
        line.append(f"{numbered(len(found.claims), 'claim')}{more}", tone(head, "strong"))
        since = duration(limit)
        if stuck:
            owners = ", ".join(
                f"{sum(c.owner is owner for c in stuck)} {owner.value}"
                for owner in Evidence
                if any(c.owner is owner for c in stuck)
            )
            line.append(
                f"   {len(stuck)} stuck over {since}: owner {owners}", tone(head, "warning")
            )
        else:
            line.append(f"   none over {since}", tone(head, "good"))

    def on_keyed_table_cursor_moved(self) -> None:
        """The words below are of the row under the cursor."""
        self._draw()

    def on_marked_table_marks_changed(self) -> None:
        """Say how many."""
        self._draw()
        self.refresh_bindings()

    # What the operator does.

    def check_action(
        self,
        action: str,
        parameters: tuple[object, ...],  # noqa: ARG002  # Textual's signature
    ) -> bool | None:
        """Escape takes marks back, if there are any."""
        if action == "unmark":
            return self.is_mounted and bool(self.table.marks or self.table.all_matching)
        if action == "free":
            return self.found is None or self.found.claims is not None
        return True

    def action_unmark(self) -> None:
        """Nothing is marked any more."""
        self.table.clear_marks()

    def action_act(self) -> None:
        """What can be done with these claims; or end the session under the cursor."""
        if self.table.all_matching:
            self.ways.open_actions(self.key, ["state=claimed"])
            return
        rows = [self._rows[key] for key in self.table.meant if key in self._rows]
        sessions = [row.session for row in rows if row.session is not None]
        ids = [f"id={row.claim.id}" for row in rows if row.claim is not None]
        if ids:
            self.ways.open_actions(self.key, ids, "claimed")
        elif len(sessions) == 1:
            self.ways.open_action(self.key, "end-session", session=str(sessions[0].key))
        elif sessions:
            self.notify("One session is ended at a time: take the marks away.", markup=False)

    def action_free(self) -> None:
        """Release all claims whose owner is proven gone."""
        self.ways.open_action(self.key, "release")

    def action_look_again(self) -> None:
        """Look again now."""
        self.desk.look_now()
        self._ask()

    def action_copy(self) -> None:
        """Who has it, to the clipboard."""
        row = self._rows.get(self.table.cursor_key or "")
        if row is not None:
            self.app.copy_to_clipboard("".join(text for text, _ in detail_of(row)))
            self.notify("copied who has it", markup=False)

    def action_twin(self) -> None:
        """The command line that shows the same."""
        shows_claims = self.found is not None and self.found.claims is not None
        verb, more = ("messages", ["--state", "claimed"]) if shows_claims else ("waits", [])
        show_twin(self, self.place, verb, self.key, more)
