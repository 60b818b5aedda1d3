"""Selection from a queue without an order: each message once, however many there are."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.actions import rows
from console.catalog import Kind, Queue, installed_queue
from console.designs import DESIGNS
from console.engines.mssql import PRODUCT
from console.errors import UsageError
from console.monitor.filters import NOTHING
from console.monitor.message import Message, MessageQuery
from console.monitor.scan_query import MessageSource

HEAP, FIFO = DESIGNS["heap"], DESIGNS["fifo"]
QUEUE = installed_queue("dbo", "q", HEAP, HEAP.complete_options({}, "mssql"))
ADOPTED_QUEUE = Queue("dbo", "q", HEAP, {}, {"payload": "p"}, kind=Kind.ADOPTED)
AT = datetime(2026, 11, 21, tzinfo=UTC)


def message(id_: str | None) -> Message:
    nothing: dict[str, Any] = dict.fromkeys(Message.__dataclass_fields__)
    return Message(**{**nothing, "key": "", "id": id_, "state": "ready"})


class Scan:
    """Stands in for a search of a heap: the first rows, without an order to continue in."""

    present: tuple[str | None, ...] = ()
    most = 0
    """The most rows that it reads."""

    def __init__(self, source: MessageSource, query: MessageQuery, after: str | None) -> None:
        del source
        assert after is None
        self.finished, self.next, self.read = False, None, 0
        within = self.present[: min(query.limit, self.most)]
        self.messages = [message(id_) for id_ in within]
        self.complete = len(within) == len(self.present)

    def step(self, connection: object) -> None:
        del connection
        self.finished = True


class _Session:
    @contextmanager
    def transaction(self, doing: str) -> Iterator[None]:
        del doing
        yield


class _Source(MessageSource):
    def begin_read(self, *_: object) -> None:
        """No time-outs to set."""


def selection(queue: Queue = QUEUE) -> rows.QueueSelection:
    source = _Source(PRODUCT, queue, "text", "bigint")
    anything: Any = _Session()
    criteria = rows.SelectionCriteria(anything, anything, NOTHING, ["ready"], AT)
    return rows.QueueSelection(source, criteria)


@pytest.fixture
def scan(monkeypatch: pytest.MonkeyPatch) -> type[Scan]:
    class Here(Scan):
        pass

    monkeypatch.setattr(rows, "Search", Here)
    return Here


@given(st.integers(0, 60), st.integers(1, 9), st.integers(0, 70), st.data())
def test_each_message_is_selected_once_whether_it_stays_or_goes(
    count: int, most: int, bound: int, data: st.DataObject
) -> None:
    """A plan leaves them in the queue; its execution removes or skips each."""
    with pytest.MonkeyPatch.context() as patch:

        class Here(Scan):
            present = tuple(map(str, range(count)))

        Here.most = max(most, bound)
        patch.setattr(rows, "Search", Here)
        chosen, selected = selection(), []
        while found := chosen.next(most):
            ids = [one.id for one in found]
            selected += ids
            gone = {id_ for id_ in ids if data.draw(st.booleans())}
            Here.present = tuple(id_ for id_ in Here.present if id_ not in gone)
        assert len(set(selected)) == len(selected)
        assert {str(n) for n in range(min(count, Here.most))} <= set(selected)


def test_what_has_no_order_is_neither_counted_nor_chosen_unread() -> None:
    heap = selection()
    assert (heap.countable, heap.choosable, heap.lockable) == (False, False, False)
    fifo = installed_queue("dbo", "q", FIFO, FIFO.complete_options({}, "mssql"))
    assert selection(fifo).countable
    assert selection(fifo).choosable


def test_indistinguishable_messages_are_refused(scan: type[Scan]) -> None:
    scan.present, scan.most = (None, None), 10
    with pytest.raises(UsageError, match="told apart"):
        selection(ADOPTED_QUEUE).next(5)
