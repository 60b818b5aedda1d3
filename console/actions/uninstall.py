"""Uninstall a queue: every object of it, with what it still holds, counted under lock."""

import shlex
from dataclasses import dataclass

from sqlalchemy import Connection

from console import catalog, sql
from console.actions import audit
from console.catalog import Kind, Queue
from console.engines import Database
from console.errors import RefusedError, UsageError

MANY_MESSAGES = 1000
"""More than these want --with-messages."""


@dataclass(frozen=True)
class UninstallPlan:
    """What goes with the queue. Counts are exact, at the moment of the plan."""

    queue: Queue
    live: int
    claimed: int
    finished: int
    archived: int
    keep_archive: bool
    production: bool

    @property
    def lost(self) -> int:
        """How many messages are gone for good afterwards."""
        kept = 0 if self.keep_archive else self.archived
        return self.live + self.claimed + self.finished + kept

    @property
    def detail(self) -> str:
        """What the audit keeps: the queue itself can no longer tell."""
        kept = "kept" if self.keep_archive else "gone"
        return (
            f"design {self.queue.design.name}; {self.live} live, {self.claimed} claimed and "
            f"{self.finished} finished messages gone, {self.archived} archived ones {kept}"
        )

    @property
    def wants_with_messages(self) -> bool:
        """Whether the operator has to say that the messages may go."""
        return self.lost > MANY_MESSAGES or (self.production and self.lost > 0)

    def lines(self) -> list[str]:
        """The plan in words."""
        lines = [
            f"uninstall {self.queue.label} (design {self.queue.design.name}) with all its objects",
            f"  {self.live:,} messages that were not popped yet",
        ]
        if self.queue.finishes:
            lines.append(
                f"  {self.claimed:,} claimed messages, {self.finished:,} finished or in error"
            )
        where = "stay, listed as an archive" if self.keep_archive else "go with it"
        lines.append(f"  {self.archived:,} archived messages: they {where}")
        if self.production:
            lines.append("  PRODUCTION database")
        return lines


@dataclass(frozen=True)
class _Contents:
    live: int
    claimed: int
    finished: int
    archived: int


@dataclass(frozen=True)
class _Archived:
    archived: int


def plan(database: Database, queue: Queue, *, keep_archive: bool) -> UninstallPlan:
    """Count what the queue holds. Changes nothing."""
    with database.transaction(f"look at the queue {queue.name!r}") as connection:
        return _plan(connection, database, queue, keep_archive=keep_archive)


def uninstall(
    database: Database, queue: Queue, *, keep_archive: bool, with_messages: bool
) -> UninstallPlan:
    """Remove the queue in one transaction; counts again once nobody else can add messages."""
    product = database.product
    common = sql.statements(product.name, "common")
    known = sql.statements(product.name, "catalog")
    scope = queue.scope(product)
    subject = audit.Subject.of(database, queue, "uninstall")
    with audit.recorded(database, f"uninstall the queue {queue.name!r}", subject) as act:
        connection = act.connection
        if queue.kind is Kind.INSTALLED:
            sql.run_script(connection, common["lock_all"], scope)
        planned = _plan(connection, database, queue, keep_archive=keep_archive)
        if planned.wants_with_messages and not with_messages:
            raise RefusedError(
                f"The queue {queue.name!r} still holds {planned.lost:,} messages.",
                why="They would be gone for good.",
                next_step="Say so with --with-messages, or drain or archive them first.",
            )
        if queue.kind is Kind.INSTALLED:
            sql.run_script(
                connection, sql.statements(product.name, queue.design.name)["drop"], scope
            )
            if queue.options.get("notify") == "on":
                sql.run_script(connection, common["drop_waiting"], scope)
        if keep_archive:
            sql.run_script(connection, known["keep_archive"], scope)
        else:
            sql.run_script(connection, common["drop_archive"], scope)
            sql.run_script(connection, known["erase"], scope)
        act.detail = planned.detail
    return planned


def _plan(
    connection: Connection, database: Database, queue: Queue, *, keep_archive: bool
) -> UninstallPlan:
    product = database.product
    if queue.kind is Kind.ADOPTED:
        raise UsageError(
            f"The queue {queue.name!r} was adopted, not installed.",
            why="The console did not make its table and does not remove it.",
            next_step=f"Take it out of the catalog: dbq-console forget {shlex.quote(queue.name)}",
        )
    common = sql.statements(product.name, "common")
    scope = queue.scope(product)
    production = database.production or catalog.is_production(connection, product)
    if queue.kind is Kind.ARCHIVE:
        (only,) = sql.fetch(connection, _Archived, common["archived"], scope)
        return UninstallPlan(queue, 0, 0, 0, only.archived, keep_archive, production)
    (held,) = sql.fetch(connection, _Contents, common["contents"], scope)
    return UninstallPlan(
        queue, held.live, held.claimed, held.finished, held.archived, keep_archive, production
    )
