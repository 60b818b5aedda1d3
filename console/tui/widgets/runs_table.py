"""The runs of the pipeline: one line a run, the newest first."""

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo

from console import formats
from console.pipeline.runs import Outcome, Run
from console.tui.text import plain
from console.tui.widgets.fitting import Wish
from console.tui.widgets.keyed_table import Cell
from console.tui.widgets.list_table import ListTable

_WISHES = (
    Wish("mark", "", most=1),
    Wish("began", "began", least=14, most=14),
    Wish("ended", "ended", least=14, most=14),
    Wish("verb", "verb", least=7, most=7),
    Wish("of", "queue", least=8, most=30),
    Wish("place", "connection", least=8, most=24),
    Wish("outcome", "outcome", least=20, most=20),
    Wish("rows", "rows", least=6, most=14, right=True),
    Wish("size", "size", least=8, most=10, right=True),
    Wish("rate", "rows/s", least=6, most=10, right=True),
    Wish("took", "took", least=8, most=10, right=True),
    Wish("lake", "lake", least=8, most=40),
    Wish("told", "", least=10, most=120),
)
_LOST_FIRST = ("told", "lake", "place", "ended", "size", "took", "rate", "rows")
_MARKS = {
    Outcome.RUNNING: "▶",
    Outcome.ELSEWHERE: "▶",
    Outcome.STOPPED: "!",
    Outcome.SILENT: "✖",
    Outcome.FAILED: "✖",
    Outcome.REFUSED: "✖",
    Outcome.MISMATCH: "✖",
}
_TONES = {
    Outcome.RUNNING: "good",
    Outcome.STOPPED: "warning",
    Outcome.REFUSED: "warning",
    Outcome.SILENT: "critical",
    Outcome.FAILED: "critical",
    Outcome.MISMATCH: "critical",
}


class RunsTable(ListTable):
    """Give it runs by `show_runs`."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(_WISHES, _LOST_FIRST, id=id)
        self.zone: tzinfo | None = UTC
        """In which times are shown; it counts from the next `show_runs`."""
        self._runs: dict[str, Run] = {}
        self._now = datetime.now(UTC)

    def show_runs(self, runs: Sequence[Run], now: datetime) -> None:
        """Show these, in this order."""
        self._runs, self._now = {run.id: run for run in runs}, now
        self.show_rows({key: self._row(run) for key, run in self._runs.items()})

    @property
    def run_here(self) -> Run | None:
        """The run under the cursor."""
        return self._runs.get(self.cursor_key or "")

    def go_to(self, id_: str) -> bool:
        """Put the cursor on a run; whether it is there."""
        if id_ not in self.keys:
            return False
        self.move_cursor(self.keys.index(id_))
        return True

    def _row(self, run: Run) -> dict[str, Cell]:
        now, outcome = self._now, run.outcome
        tone = _TONES.get(outcome, "")
        seconds, speed = run.seconds(now), run.rows_per_second(now)
        told = run.told if run.runs else run.error.get("what", "")
        return {
            "mark": Cell(_MARKS.get(outcome, ""), tone or "quiet"),
            "began": Cell(self._moment(run.began_at), "quiet"),
            "ended": Cell(self._moment(run.ended_at), "quiet"),
            "verb": Cell(plain(run.verb), "strong"),
            "of": Cell(plain(run.queue)),
            "place": Cell(plain(run.connection), "quiet"),
            "outcome": Cell(outcome.value, tone),
            "rows": Cell(run.moved),
            "size": Cell(size(run.bytes), "quiet"),
            "rate": Cell("" if speed is None else f"{speed:,.0f}", "quiet"),
            "took": Cell("" if seconds is None else formats.duration(seconds), "quiet"),
            "lake": Cell(plain(run.lake), "quiet"),
            "told": Cell(plain(told), "quiet"),
        }

    def _moment(self, at: datetime | None) -> str:
        return "" if at is None else f"{at.astimezone(self.zone):%m-%d %H:%M:%S}"


def size(number: int | None) -> str:
    """`3.4 MB`; empty where it is not known."""
    if number is None:
        return ""
    if number < 1_000:
        return f"{number} B"
    for unit, of in (("kB", 1e3), ("MB", 1e6)):
        if number < of * 1_000:
            return f"{number / of:,.1f} {unit}"
    return f"{number / 1e9:,.1f} GB"
