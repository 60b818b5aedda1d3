"""Findings, one a line, the gravest first; the cursor stays on its finding."""

from collections.abc import Sequence

from rich.cells import cell_len

from console.tui.findings import FindingKey, FindingView
from console.tui.health import Level
from console.tui.text import whole_seconds
from console.tui.widgets.keyed_table import Cell, KeyedTable, TableColumn

_TONES = {Level.OK: "quiet", Level.WARNING: "warning", Level.CRITICAL: "critical"}
_PADDING = 2
_LONGEST_LABEL = 24
_LEAST_SUMMARY = 30
_INSIDE = " › "  # noqa: RUF001  # not a greater-than sign: it stands between two names


class FindingsTable(KeyedTable):
    """Under no titles: what stands there needs none."""

    HEAD = 0

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self._by_key: dict[str, FindingView] = {}
        self.stays_on_top = False
        """While nobody works with it: the gravest is in sight, and the first that Tab goes to."""

    @property
    def view(self) -> FindingView | None:
        """The finding under the cursor, as it is drawn."""
        return self._by_key.get(self.cursor_key or "")

    def draw(self, views: Sequence[FindingView], width: int, *, queues: bool = True) -> None:
        """Draw these; `queues`: whether it is told of each whose it is."""
        rows = {_row_key(view.key): self._cells_of_row(view) for view in views}
        self._by_key = {_row_key(view.key): view for view in views}
        columns = _layout(list(rows.values()), width, queues=queues)
        names = [column.name for column in columns]
        self.show(columns, list(rows), lambda key: tuple(rows[key][name] for name in names))
        if self.stays_on_top:
            self.move_cursor(0)
            self.scroll_to(y=0, animate=False, immediate=True)

    def _cells_of_row(self, view: FindingView) -> dict[str, Cell]:
        stale = view.stale_seconds is not None and view.queue_key is not None
        mood = "stale" if stale else _TONES[view.level]
        since = "" if view.since_seconds is None else whole_seconds(view.since_seconds)
        return {
            "mark": Cell(view.mark, _TONES[view.level]),
            "queue": Cell(f"{view.place}{_INSIDE}{view.label}" if _placed(view) else view.label),
            "summary": Cell(view.summary, mood if stale or view.level is Level.CRITICAL else ""),
            "since": Cell(("> " if view.longer and since else "") + since, "quiet"),
            "mends": Cell(view.mends, "quiet"),
        }


def _placed(view: FindingView) -> bool:
    return bool(view.place) and view.queue_key is not None


def _layout(rows: Sequence[dict[str, Cell]], width: int, *, queues: bool) -> list[TableColumn]:
    """What mends it goes first where it is narrow; what is wrong is never lost."""
    widest = {
        name: max((cell_len(row[name].text) for row in rows), default=0)
        for name in ("queue", "summary", "since", "mends")
    }
    label = min(widest["queue"], _LONGEST_LABEL, max(8, width // 5)) if queues else 0
    fixed = 1 + _PADDING + widest["since"] + _PADDING + (label + _PADDING if queues else 0)
    room = width - fixed - _PADDING
    mends = 0
    if widest["mends"]:
        mends = min(widest["mends"], room - _PADDING - min(widest["summary"], room * 3 // 5))
        mends = mends if mends >= min(widest["mends"], _LEAST_SUMMARY) else 0
    summary = max(1, room - (mends + _PADDING if mends else 0))
    columns = [TableColumn("mark", "", 1)]
    if queues:
        columns.append(TableColumn("queue", "", label))
    columns.append(TableColumn("summary", "", summary))
    columns.append(TableColumn("since", "", widest["since"], right=True))
    if mends:
        columns.append(TableColumn("mends", "", mends))
    return columns


def _row_key(key: FindingKey) -> str:
    """One string; repr keeps different keys different whatever the names are."""
    return repr(key)
