"""A canary that waits for results: requeued messages are tracked until they are done or failed.

Only where a failure stays in the queue as an error of the same message, found by its id.
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
    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class CanaryResults:
    """Ids of messages by result."""

    done: tuple[str, ...] = ()
    """Done, or no longer in the queue, which may delete done messages."""
    failed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    """Ready, claimed, or taken out by an operator: no result known."""

    def verdict(self, share: float) -> CanaryVerdict | None:
        """None: too early to tell. `share`: the share that may fail, 0 to below 1."""
        total = len(self.done) + len(self.failed) + len(self.waiting)
        if len(self.failed) > share * total:
            return CanaryVerdict.FAILED
        return None if self.waiting else CanaryVerdict.PASSED

    def after(self, earlier: CanaryResults) -> CanaryResults:
        """With those of earlier batches, which no longer wait."""
        return CanaryResults(earlier.done + self.done, earlier.failed + self.failed, self.waiting)

    def as_json(self) -> dict[str, object]:
        return {name: list(ids) for name, ids in vars(self).items()}


_RESULTS = {"error": "failed", **dict.fromkeys(("ready", "scheduled", "claimed"), "waiting")}
"""State -> result; any other state is done."""


@dataclass(frozen=True)
class _Archived:
    id: str
    state: str


class CanaryTracker:
    """The messages of one canary batch and their results. Not thread-safe."""

    def __init__(self, source: MessageSource) -> None:
        self.enabled = False
        """Whether the next batch belongs to the canary and calls `begin`."""
        self._source = source
        self._messages: list[Message] = []
        self._archive_end = 0

    def begin(self, connection: Connection, messages: Sequence[Message]) -> None:
        """Called in the transaction that makes them ready: later archive rows come after it."""
        self._messages = list(messages)
        if self._source.queue.kind is Kind.INSTALLED:
            statement = self._source.statement_name("archive_end")
            self._archive_end = sql.value(
                connection, int, statement, scope(self._source, Storage.TABLE)
            )

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(message.id or "" for message in self._messages)

    def results(self, connection: Connection) -> CanaryResults:
        """BusyError: another session has locked one of them."""
        source = self._source
        states: dict[str | None, str | None] = {}
        for storage, messages in by_storage(source.queue, self._messages):
            rows = rows_of(connection, source, storage, messages, lock="no")
            states |= {row.id: row.state for row in rows}
        missing = [message.id or "" for message in self._messages if message.id not in states]
        states |= self._archived(connection, missing)
        by_result: dict[str, list[str]] = {"done": [], "failed": [], "waiting": []}
        for message in self._messages:
            result = _RESULTS.get(states.get(message.id) or "", "done")
            by_result[result].append(message.id or "")
        return CanaryResults(**{result: tuple(ids) for result, ids in by_result.items()})

    def _archived(self, connection: Connection, ids: Sequence[str]) -> dict[str | None, str | None]:
        """Id -> the state in which a missing message came into the archive meanwhile."""
        if not ids or self._source.queue.kind is not Kind.INSTALLED:
            return {}
        rows = sql.rows(
            connection,
            _Archived,
            self._source.statement_name("archived_after"),
            scope(self._source, Storage.TABLE),
            ids=self._source.product.array(ids),
            archive_id=self._archive_end,
        )
        return {row.id: row.state for row in rows}
