"""List the messages of a queue by state; payloads only with --payload."""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rich.cells import cell_len

from console.catalog import Queue
from console.designs import Flow, Order
from console.formats import NOT_APPLICABLE, UNKNOWN, count, duration, first_line, offset, plain
from console.monitor.errors import claimant, past_attempt
from console.monitor.message import Message
from console.monitor.messages import Page, read_page
from console.views.view import WIDTH, Column, Display, Source, View, aligned, cut, or_unknown

_STATE_STYLES = {"error": "warning", "claimed": "strong"}
_INDENT = 4
_LONGEST_ID = 40


@dataclass(frozen=True)
class ShownPage:
    page: Page
    with_payload: bool = False


def read(source: Source) -> ShownPage:
    """`source.values`: those of `read_page`."""
    page = read_page(source.database, source.queue, masks=source.masks, **source.values)
    return ShownPage(page, source.values.get("payload_bytes") is not None)


def by_key(messages: Sequence[Message]) -> dict[str, Message]:
    """The messages by a key that survives changes of state: their id, if they have a unique one."""
    result: dict[str, Message] = {}
    for message in messages:
        other = result.get(f"id={message.id}")
        # Read twice in two states: it changed while the list was read, and the later one counts.
        is_unique = message.id is not None and (other is None or other.state != message.state)
        key = f"id={message.id}" if is_unique else f"at={message.key or len(result)}"
        result[key] = message
    return result


def _columns(display: Display, shared: str = "") -> tuple[Column[Message], ...]:
    """`shared`: the offset of all times."""
    style = _STATE_STYLES.get
    return (
        Column("id", "id", lambda m: or_unknown(m.id, plain), "", 8, 36),
        _number("number", "quiet", 7, lambda m: or_unknown(m.number, str, NOT_APPLICABLE)),
        _number("slot", "quiet", 6, lambda m: or_unknown(m.slot, str, NOT_APPLICABLE)),
        Column("state", "state", lambda m: m.state, lambda m: style(m.state, "quiet"), 9, 36),
        _number("age", "", 11, lambda m: or_unknown(m.age_seconds, duration)),
        _number("tries", "", 8, _attempts, "attempts"),
        _number("bytes", "quiet", 7, lambda m: or_unknown(m.payload_bytes, count)),
        Column(
            "due", f"scheduled {shared}".strip(), lambda m: display.time(m.due_at), "quiet", 14, 36,
            at=lambda m: m.due_at,
        ),
        Column(
            "pushed", f"pushed {shared}".strip(), lambda m: display.time(m.pushed_at), "quiet",
            14, 36, at=lambda m: m.pushed_at,
        ),
        Column("owner", "owner", _owner, "", 12, 30),
        Column("title", "title", lambda m: plain(m.title or ""), "", 16, 40),
        Column("error", "error", lambda m: first_line(m.error or ""), "", 30, 1000),
    )  # fmt: skip


def _number(
    name: str, style: str, width: int, value: Callable[[Message], str], title: str = ""
) -> Column[Message]:
    return Column(name, title or name, value, style, width, 36, align_right=True)


def _attempts(message: Message) -> str:
    in_its_slot = message.number is not None
    return or_unknown(message.attempts, str, NOT_APPLICABLE if in_its_slot else UNKNOWN)


def _owner(message: Message) -> str:
    claimed = message.claimed_by is not None or message.claimed_at is not None
    return plain(claimant(message.claimed_by)) if claimed else ""


def _names(queue: Queue) -> tuple[str, ...]:
    """The columns that a message of the queue has, besides its texts."""
    ring = ("number", "slot") if queue.design.flow is Flow.NUMBERS else ()
    due = ("due",) if queue.design.order is Order.DUE else ()
    tries = ("tries",) if queue.finishes else ()
    return ("id", *ring, "state", "age", *tries, "bytes", *due, "pushed")


def columns_of(
    queue: Queue, messages: Iterable[Message], display: Display
) -> list[Column[Message]]:
    """The columns of a screen for these messages of a queue. The titles have the offset of the
    times, if it is the same for all."""
    offsets = {offset(m.pushed_at, display.zone) for m in messages if m.pushed_at is not None}
    shared = offsets.pop() if len(offsets) == 1 else ""
    has = {*_names(queue), "owner", "title", "error"}
    return [column for column in _columns(display, shared) if column.name in has]


def _text(shown: ShownPage, display: Display) -> Iterable[str]:
    """Columns for each message, and its texts below."""
    page = shown.page
    if not page.messages:
        return ["No messages." if page.complete else "No messages so far."]
    names = _names(page.queue)
    columns = [
        replace(column, value=lambda m: or_unknown(m.id, lambda id_: cut(plain(id_), _LONGEST_ID)))
        if column.name == "id"
        else column
        for column in _columns(display)
        if column.name in names
    ]
    below = partial(_below, display=display, with_payload=shown.with_payload)
    # The last columns are the least important, if an id is long.
    return aligned(columns, page.messages, display.zone, below, WIDTH)


def _below(message: Message, display: Display, *, with_payload: bool) -> Iterator[str]:
    """A message's texts, one line each."""
    if message.title:
        yield _indented(f"title {plain(message.title)}")
    if message.claimed_at is not None or message.claimed_by is not None:
        since = display.moment(message.claimed_at)
        yield _indented(f"claimed {since} by {plain(claimant(message.claimed_by))}")
    if message.error is not None:
        yield _indented(f"error {plain(message.error)}")
    for past in message.history or ():
        yield _indented(plain(past_attempt(past, display.zone)))
    if with_payload:
        yield from _payload(message)


def _payload(message: Message) -> Iterator[str]:
    if message.payload is None:
        yield _indented(f"payload {UNKNOWN}")
        return
    in_base64, beginning = "", ", its beginning" if message.payload_cut else ""
    text = message.payload
    if isinstance(text, bytes):
        in_base64, text = " in base64", base64.b64encode(text).decode()
    yield _indented(f"payload{in_base64}{beginning}:")
    for line in text.split("\n"):
        for part in _folded(plain(line), WIDTH - 2 * _INDENT):
            yield " " * 2 * _INDENT + part


def _folded(text: str, room: int) -> Iterator[str]:
    """The text in pieces that fit."""
    start = width = 0
    for at, sign in enumerate(text):
        width += cell_len(sign)
        if width > room:
            yield text[start:at]
            start, width = at, cell_len(sign)
    yield text[start:]


def _indented(text: str) -> str:
    return cut(" " * _INDENT + text)


def _json(shown: ShownPage) -> Mapping[str, object]:
    page, with_payload = shown.page, shown.with_payload
    return {
        "queue": page.queue.name,
        "design": page.queue.design.name,
        "messages": [message.as_json(with_payload=with_payload) for message in page.messages],
        "next": None if page.next is None else page.next.text,
        "complete": page.complete,
    }


VIEW = View(
    "messages",
    __doc__,
    read,
    lambda shown: by_key(shown.page.messages),
    _columns,
    text=_text,
    json=_json,
    drop_order=("slot", "pushed", "bytes", "owner", "title", "due", "number", "tries"),
    removed_column="state",
)
"""The verb has more options: an export, a message without masks."""
