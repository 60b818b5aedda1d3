"""What a family of findings looks with: one queue, one session, what is known already."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import Connection

from console import sql
from console.catalog import Queue
from console.engines import Database, Session
from console.monitor.limits import DEFAULTS, Thresholds
from console.monitor.message import Masks
from console.monitor.snapshot import QueueSnapshot

Row = TypeVar("Row")

PATIENCE_SECONDS = 10.0
"""How long a proof waits for transactions that are open."""


@dataclass
class Look:
    """One look at one queue. It changes nothing."""

    database: Database
    session: Session
    queue: Queue
    snapshot: QueueSnapshot | None = None
    """Its figures a moment ago, where somebody took them."""
    thresholds: Thresholds = DEFAULTS
    patience_seconds: float = PATIENCE_SECONDS
    masks: Masks = ()
    """What is hidden of the errors that a finding quotes."""
    unseen: list[str] = field(default_factory=list)
    """What could not be looked at, and why: with any of these nothing is all clear."""

    def ask(self, row_type: type[Row], name: str, file: str = "", **values: object) -> list[Row]:
        """The rows of one statement (of the design's file, where none is named), alone in its
        transaction: it sees what is committed when it begins, and keeps nothing."""
        with self.session.transaction(self._doing) as connection:
            return self.fetch(connection, row_type, name, file, **values)

    @contextmanager
    def moment(self) -> Iterator[Connection]:
        """A transaction for several statements; keep it short, callers and actions may wait."""
        with self.session.transaction(self._doing) as connection:
            yield connection

    def fetch(
        self,
        connection: Connection,
        row_type: type[Row],
        name: str,
        file: str = "",
        **values: object,
    ) -> list[Row]:
        """The rows of one statement in the caller's transaction."""
        product = self.database.product
        statement = sql.statements(product.name, file or self.queue.design.name)[name]
        return sql.fetch(connection, row_type, statement, self.queue.scope(product), **values)

    @property
    def _doing(self) -> str:
        return f"examine {self.queue.name!r}"


@contextmanager
def looking(
    database: Database,
    queue: Queue,
    *,
    snapshot: QueueSnapshot | None = None,
    thresholds: Thresholds = DEFAULTS,
    patience_seconds: float = PATIENCE_SECONDS,
    masks: Masks = (),
) -> Iterator[Look]:
    """A look, on a session of its own that the server holds to reading."""
    with database.session(f"examine {queue.name!r}", read_only=True) as session:
        yield Look(database, session, queue, snapshot, thresholds, patience_seconds, masks)
