"""A table in which rows are marked, by key, for what is done with them; a message's columns."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, tzinfo
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message as Event

from console.catalog import Queue
from console.formats import offset, short_moment
from console.monitor import errors as words
from console.monitor.message import Message
from console.tui.text import first_line, plain
from console.tui.widgets.keyed_table import (
    PADDING,
    Cell,
    Cells,
    Column,
    KeyedTable,
    LaidOut,
    Row,
    known,
)

LOST_FIRST = ("slot", "pushed", "bytes", "owner", "title", "due", "number", "tries")
_TONES = {"error": "warning", "claimed": "strong"}
_EVERY_QUEUE_HAS = ("owner", "title", "error")


def columns_of(
    queue: Queue, messages: Iterable[Message], zone: tzinfo | None
) -> list[Column[Message]]:
    """The columns for these messages of a queue. The titles say the zone of the times; not where
    the clocks were changed among them."""
    offsets = {offset(m.pushed_at, zone) for m in messages if m.pushed_at is not None}
    shared = offsets.pop() if len(offsets) == 1 else ""

    def time(at: datetime | None) -> str:
        return known(at, lambda at: short_moment(at, zone))

    columns: tuple[Column[Message], ...] = (
        Column("id", "id", lambda m: known(m.id, plain), "", 8, 36),
        _figure("number", "quiet", 7),
        _figure("slot", "quiet", 6),
        Column("state", "state", lambda m: m.state, lambda m: _TONES.get(m.state, "quiet"), 9, 36),
        _figure("age", "", 11),
        _figure("tries", "", 8, "attempts"),
        _figure("bytes", "quiet", 7),
        Column("due", f"scheduled {shared}".strip(), lambda m: time(m.due_at), "quiet", 14, 36),
        Column("pushed", f"pushed {shared}".strip(), lambda m: time(m.pushed_at), "quiet", 14, 36),
        Column("owner", "owner", _owner, "", 12, 30),
        Column("title", "title", lambda m: plain(m.title or ""), "", 16, 40),
        Column("error", "error", lambda m: first_line(m.error or ""), "", 30, 1000),
    )
    has = {*words.columns(queue), *_EVERY_QUEUE_HAS}
    return [column for column in columns if column.name in has]


def _figure(name: str, tone: str, least: int, title: str = "") -> Column[Message]:
    return Column(name, title or name, lambda m: words.figure(m, name), tone, least, 36, right=True)


def _owner(message: Message) -> str:
    claimed = message.claimed_by is not None or message.claimed_at is not None
    return plain(words.owner(message.claimed_by)) if claimed else ""


def by_row(messages: Sequence[Message]) -> dict[str, Message]:
    """The messages by what stays the same while they change their state: their id, if they have
    one that is nobody else's."""
    found: dict[str, Message] = {}
    for message in messages:
        same = found.get(f"id={message.id}")
        # Met twice in two states, it moved while the list was read; the later one is how it is.
        alone = message.id is not None and (same is None or same.state != message.state)
        key = f"id={message.id}" if alone else f"at={message.key or len(found)}"
        found[key] = message
    return found


def loaded(messages: Collection[str], *, more: bool) -> str:
    count = f"{len(messages):,} message{'' if len(messages) == 1 else 's'}"
    return f"{count}, more below" if more else count


_MARK: LaidOut[Any] = LaidOut(Column("marked", "", lambda _: ""), 1, "")


class MarkedTable(KeyedTable[Row]):
    """Its first column says which rows are marked. Marks stay on their keys, as the cursor does."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "mark", "mark", tooltip="mark or unmark the row"),
        Binding(
            "X", "mark_to", "range", show=False, tooltip="mark all rows from the last mark to here"
        ),
        Binding("shift+down", "mark_on(1)", "range down", show=False, tooltip="mark, going down"),
        Binding("shift+up", "mark_on(-1)", "range up", show=False, tooltip="mark, going up"),
        Binding("asterisk", "mark_all", "all", show=False, key_display="*", tooltip="all matching"),
    ]

    class MarksChanged(Event):
        """The operator has marked something else."""

    all_matching = False
    """Whether all that match are meant, those too that were not loaded."""
    _marks: frozenset[str] = frozenset()
    _last_mark: str | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(key for key in self.keys if key in self._marks)

    @property
    def meant(self) -> tuple[str, ...]:
        """What an action is for: the marked rows, else the one under the cursor."""
        if self._marks:
            return self.marks
        return () if self.cursor_key is None else (self.cursor_key,)

    @property
    def meant_rows(self) -> list[Row]:
        return [self.rows[key] for key in self.meant]

    @property
    def held(self) -> set[str | None]:
        return {*super().held, *self.marks}

    def show(self, rows: Mapping[str, Row], *, keep: bool = False) -> None:
        """As a KeyedTable does; what is gone is marked no more."""
        super().show(rows, keep=keep)
        self._marks = self._marks.intersection(self.keys)

    def lay_out(self, room: int) -> Sequence[LaidOut[Row]]:
        return (_MARK, *super().lay_out(room - _MARK.width - PADDING))

    def cells_of(self, key: str) -> Cells:
        none, *cells = super().cells_of(key)
        if self.all_matching or key in self._marks:
            # The mark tells it; that the whole row stands out lets one see how far it goes.
            strong = (replace(cell, tone=cell.tone or "strong") for cell in cells)
            return (Cell("■", "sorted"), *strong)
        return (none, *cells)

    def clear_marks(self) -> None:
        self._change(frozenset(), all_matching=False)

    def _change(self, marks: frozenset[str], *, all_matching: bool = False) -> None:
        self._marks, self.all_matching = marks, all_matching
        self._in_sight = {}
        self.refresh()
        self.post_message(self.MarksChanged())

    def action_mark(self) -> None:
        key = self.cursor_key
        if key is not None:
            self._last_mark = key
            self._change(self._marks ^ {key})
            self.action_move(1)

    def action_mark_to(self) -> None:
        if self.cursor_key is None:
            return
        first = self._places.get(self._last_mark or "", self.cursor_row)
        low, high = sorted((first, self.cursor_row))
        self._last_mark = self.cursor_key
        self._change(self._marks | set(self.keys[low : high + 1]))

    def action_mark_on(self, rows: int) -> None:
        if self.cursor_key is None:
            return
        before = self.cursor_key
        self.action_move(rows)
        self._last_mark = self.cursor_key
        self._change(self._marks | {before, self.cursor_key})

    def action_mark_all(self) -> None:
        self._change(frozenset(), all_matching=not self.all_matching)
