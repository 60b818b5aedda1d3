"""A canary that waits for its result: what was requeued is followed until it is done, or failed.

Only where a failure stays as an error of the same message, by whose id and state it is found again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from console import sql
from console.actions.rows import Storage, by_storage, rows_of, scope
from console.catalog import Kind
from console.monitor.message import Message
from console.monitor.scan_query import MessageSource

if TYPE_CHECKING:
    from sqlalchemy import Connection


class CanaryVerdict(StrEnum):
    """What a canary's messages say of the others."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class CanaryResults:
    """What has become of messages, by their ids."""

    done: tuple[str, ...] = ()
    """Done, or no longer there, as a queue has it that deletes what is done."""
    failed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    """Ready, claimed, or taken away by somebody: nothing is known of their result."""

    def verdict(self, share: float) -> CanaryVerdict | None:
        """None: it is too early to tell. `share`: so much of them may fail, of 1."""
        everything = len(self.done) + len(self.failed) + len(self.waiting)
        if len(self.failed) > share * everything:
            return CanaryVerdict.FAILED
        return None if self.waiting else CanaryVerdict.PASSED

    def as_json(self) -> dict[str, object]:
        return {name: list(ids) for name, ids in vars(self).items()}


@dataclass(frozen=True)
class _Archived:
    id: str
    state: str


class CanaryTracker:
    """The messages of one batch, and what becomes of them. In the hands of one thread."""

    def __init__(self, source: MessageSource) -> None:
        self.enabled = False
        """Whether the next batch is one of a canary: no other has to begin anything here."""
        self._source = source
        self._messages: list[Message] = []
        self._archive_end = 0

    def begin(self, connection: Connection, messages: Sequence[Message]) -> None:
        """These are made ready in this transaction: what is archived later was so after it."""
        self._messages = list(messages)
        if self._source.queue.kind is Kind.INSTALLED:
            named = self._source.own("archive_end")
            archive_id = sql.value(connection, int, named, scope(self._source, Storage.TABLE))
            self._archive_end = archive_id

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(message.id or "" for message in self._messages)

    def results(self, connection: Connection) -> CanaryResults:
        """What has become of them until now. BusyError: somebody holds one, so nobody can tell."""
        source = self._source
        states: dict[str | None, str | None] = {}
        for storage, messages in by_storage(source.queue, self._messages):
            rows = rows_of(connection, source, storage, messages, lock="no")
            states |= {row.id: row.state for row in rows}
        gone = [message.id or "" for message in self._messages if message.id not in states]
        states |= self._archived(connection, gone)
        failed, waiting = [], []
        for message in self._messages:
            state = states.get(message.id, "done")
            if state == "error":
                failed.append(message.id or "")
            elif state in {"ready", "scheduled", "claimed"}:
                waiting.append(message.id or "")
        out = {*failed, *waiting}
        done = [message.id or "" for message in self._messages if message.id not in out]
        return CanaryResults(tuple(done), tuple(failed), tuple(waiting))

    def _archived(self, connection: Connection, ids: Sequence[str]) -> dict[str | None, str | None]:
        """Of those that are gone: in which state somebody put them into the archive."""
        if not ids or self._source.queue.kind is not Kind.INSTALLED:
            return {}
        rows = sql.rows(
            connection,
            _Archived,
            self._source.own("archived_after"),
            scope(self._source, Storage.TABLE),
            ids=self._source.product.array(ids),
            archive_id=self._archive_end,
        )
        return {row.id: row.state for row in rows}
