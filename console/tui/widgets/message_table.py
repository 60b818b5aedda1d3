"""Messages, a line each, in the columns that their queue has and for which there is room."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, tzinfo

from textual.message import Message as Event

from console.catalog import Queue
from console.formats import UNKNOWN, offset
from console.monitor import message_words as words
from console.monitor.message import Message
from console.tui.text import first_line, plain
from console.tui.widgets.fitting import Wish, fit
from console.tui.widgets.keeping import as_left, keys_with
from console.tui.widgets.keyed_table import Cell
from console.tui.widgets.marked_table import MARK_WIDTH, MarkedTable

_SCROLLBAR = 1
_LOST_FIRST = ("slot", "pushed", "bytes", "owner", "title", "due", "number", "tries")
_TONES = {"error": "warning", "claimed": "strong"}


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


class MessageTable(MarkedTable):
    """Give it messages by `show_messages`."""

    class WantsMore(Event):
        """The operator went down at the end of the list."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's own name
        super().__init__(id=id)
        self.zone: tzinfo | None = UTC
        self.left: frozenset[str] = frozenset()
        """Rows that are kept though the list has them no more: the cursor or a mark is there."""
        self._queue: Queue | None = None
        self._messages: Mapping[str, Message] = {}

    @property
    def message(self) -> Message | None:
        """The message under the cursor."""
        return self._messages.get(self.cursor_key or "")

    @property
    def meant_messages(self) -> list[Message]:
        """What an action is for: those that are marked, else the one under the cursor."""
        return [self._messages[key] for key in self.meant]

    def show_messages(
        self, queue: Queue, messages: Mapping[str, Message], *, keep: bool = True
    ) -> None:
        """Show these, in this order. `keep`: it is the same list as before, read again."""
        held = {*self.marks, self.cursor_key} if keep else set()
        order = keys_with([*messages], self.keys, held)
        self._queue, self.left = queue, frozenset(order) - messages.keys()
        # A message that is gone stays as it was seen last.
        self._messages = {key: messages.get(key) or self._messages[key] for key in order}
        self._draw()

    def _draw(self) -> None:
        if self._queue is None:
            return
        rows = {key: self._row(key, message) for key, message in self._messages.items()}
        room = (self.size.width or self.app.size.width) - _SCROLLBAR - MARK_WIDTH
        columns = fit(self._wishes(self._queue), rows.values(), room, _LOST_FIRST)

        def cells_of(key: str) -> tuple[Cell, ...]:
            return tuple(rows[key][column.name] for column in columns)

        self.show(columns, list(rows), cells_of)

    def _wishes(self, queue: Queue) -> list[Wish]:
        shared = self._shared_offset()
        right = {"number", "slot", "age", "tries", "bytes"}
        least = {"id": 8, "state": 9, "age": 9, "tries": 5, "bytes": 7, "number": 7, "slot": 6}
        least |= {"due": 14, "pushed": 14}
        wishes = [
            Wish(
                name,
                f"{name} {shared}".strip() if name in {"due", "pushed"} else name,
                least=least[name],
                most=36,
                right=name in right,
            )
            for name in words.columns(queue)
        ]
        more = (("owner", 12, 30), ("title", 16, 40), ("error", 30, 1000))
        return [*wishes, *(Wish(name, name, least, most) for name, least, most in more)]

    def _shared_offset(self) -> str:
        """The zone of the times; nothing where the clocks were changed among them."""
        times = [m.pushed_at for m in self._messages.values() if m.pushed_at is not None]
        found = {offset(at, self.zone) for at in times}
        return found.pop() if len(found) == 1 else ""

    def _row(self, key: str, message: Message) -> dict[str, Cell]:
        state = message.state
        claimed = message.claimed_by is not None or message.claimed_at is not None
        texts = {
            "id": UNKNOWN if message.id is None else plain(message.id),
            "state": state,
            **{name: words.figure(message, name) for name in _FIGURES},
            "due": self._time(message.due_at),
            "pushed": self._time(message.pushed_at),
            "owner": plain(words.owner(message.claimed_by)) if claimed else "",
            "title": plain(message.title or ""),
            "error": first_line(message.error or ""),
        }
        tones = {"state": _TONES.get(state, "quiet"), "bytes": "quiet", "pushed": "quiet"}
        tones |= {"slot": "quiet", "number": "quiet", "due": "quiet"}
        cells = {name: Cell(text, tones.get(name, "")) for name, text in texts.items()}
        return as_left(cells, "state") if key in self.left else cells

    def _time(self, at: datetime | None) -> str:
        return UNKNOWN if at is None else f"{at.astimezone(self.zone):%m-%d %H:%M:%S}"

    def redraw(self) -> None:
        """The same, in another zone or width."""
        self._draw()

    def on_resize(self) -> None:
        """Another width has other columns."""
        self._draw()
        super().on_resize()

    def action_move(self, rows: int) -> None:
        """Some rows down, or up; below the last one there may be more."""
        self._ask_for_more(rows)
        super().action_move(rows)

    def action_page(self, pages: int) -> None:
        """Some pages down, or up; below the last one there may be more."""
        self._ask_for_more(pages)
        super().action_page(pages)

    def _ask_for_more(self, way: int) -> None:
        if way > 0 and self.keys and self.cursor_row == len(self.keys) - 1:
            self.post_message(self.WantsMore())


_FIGURES = ("number", "slot", "age", "tries", "bytes")


def loaded(messages: Collection[str], *, more: bool) -> str:
    """How many are in the list, in words."""
    count = f"{len(messages):,} message{'' if len(messages) == 1 else 's'}"
    return f"{count}, more below" if more else count
