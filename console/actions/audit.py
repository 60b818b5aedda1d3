"""Who did what to which queue: a row in the database, in the same transactions; a local line."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from console import action_rows, catalog, sql, state
from console.actions.ledger import Ledger
from console.catalog import Queue
from console.engines import Database, Product
from console.errors import BusyError, ConsoleError, RefusedError, UsageError
from console.monitor.owners import Evidence, evidence_of

LIST_MOST = 1_000


class Outcome(StrEnum):
    """How an action ended, or that it has not."""

    RUNNING = "running"
    """Or interrupted, where the session that it ran in is gone."""
    DONE = "done"
    STOPPED = "stopped"
    """By its operator, or at a bound; what was done is done."""
    FAILED = "failed"
    REFUSED = "refused"
    """Only in the local file: nothing was sent to the database."""


@dataclass(frozen=True)
class Entry:
    """One action as the database's audit has it."""

    action_id: int
    schema: str
    queue: str
    verb: str
    started_at: datetime
    last_at: datetime
    ended_at: datetime | None
    operator: str
    database_user: str
    session: str
    connection: str
    filters: str
    cutoff: datetime | None
    planned: int
    selected: int
    done: int
    skipped: int
    failed: int
    outcome: str
    detail: str

    def as_json(self) -> dict[str, object]:
        """Keys as here; times in ISO 8601, UTC."""
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in asdict(self).items()
        }


@dataclass(frozen=True)
class Subject:
    """What an action is about, as the audit keeps it. Never a payload."""

    verb: str
    schema: str
    queue: str
    connection: str
    filters: Sequence[str] = ()
    cutoff: datetime | None = None
    planned: int = 0
    detail: str = ""

    @classmethod
    def of(cls, database: Database, queue: Queue, verb: str, detail: str = "") -> "Subject":
        """Of a verb on a whole queue."""
        return cls(verb, queue.schema, queue.name, database.label, detail=detail)


class Record:
    """The audit of one action: begun before its first batch, then counted in each transaction."""

    def __init__(self, product: Product, subject: Subject, action_id: int) -> None:
        self.action_id = action_id
        self._product = product
        self._subject = subject

    @classmethod
    def begin(cls, connection: Connection, product: Product, subject: Subject) -> "Record":
        """In the caller's transaction; prepares the catalog of an older console first."""
        prepare(connection, product)
        action_id = action_rows.begin(
            connection,
            product,
            subject.verb,
            schema=subject.schema,
            queue=subject.queue,
            place=subject.connection,
            filters=" ".join(subject.filters),
            cutoff=subject.cutoff,
            planned=subject.planned,
            detail=subject.detail,
        )
        return cls(product, subject, action_id)

    def batch(self, connection: Connection, ledger: Ledger) -> None:
        """Count one batch, in its own transaction. RefusedError where somebody ended the action."""
        action_rows.batch(
            connection,
            self._product,
            self.action_id,
            selected=ledger.selected,
            done=ledger.out,
            skipped=ledger.skipped_count,
            failed=ledger.failed_count,
        )

    def end(self, connection: Connection, outcome: Outcome, detail: str = "") -> int | None:
        """Keep how it ended, in the caller's transaction; how many it has done, None where it had
        ended before."""
        words = detail or self._subject.detail
        return action_rows.end(connection, self._product, self.action_id, outcome.value, words)

    def told(self, outcome: Outcome, ledger: Ledger, detail: str = "") -> None:
        """The local line."""
        note(self._subject, outcome, ledger, detail, action_id=self.action_id)


@dataclass
class Act:
    """An action that is one transaction, while it runs."""

    connection: Connection
    record: Record
    detail: str = ""
    """What is to be kept of it, once that is known."""


@contextmanager
def recorded(database: Database, doing: str, subject: Subject) -> Iterator[Act]:
    """An action that is one transaction: begun and ended in it, so that both are kept or none.

    The local line says how it ended too, where it was tried at all.
    """
    try:
        with database.transaction(doing) as connection:
            act = Act(connection, Record.begin(connection, database.product, subject))
            yield act
            act.record.end(connection, Outcome.DONE, act.detail)
    except (UsageError, BusyError):
        raise
    except ConsoleError as error:
        outcome = Outcome.REFUSED if isinstance(error, RefusedError) else Outcome.FAILED
        note(subject, outcome, detail=str(error))
        raise
    act.record.told(Outcome.DONE, Ledger(), act.detail)


def prepare(connection: Connection, product: Product) -> None:
    """See that the catalog can keep an audit. RefusedError where it cannot be made to."""
    if not catalog.has_audit(connection, product):
        try:
            make_catalog(connection, product)
        except DBAPIError as error:
            told = product.translate(error, "make the audit in this database's catalog")
            if isinstance(told, RefusedError):
                raise action_rows.no_audit(told.why) from error
            raise
    if not action_rows.may_write(connection, product):
        raise action_rows.no_audit(
            "This login may not write to dbq.action, where every action is recorded."
        )


def make_catalog(connection: Connection, product: Product) -> None:
    """What is missing of it is made by whoever owns it, and the roles get their rights on it."""
    statements = sql.statements(product.name, "catalog")
    sql.run_script(connection, statements["lock"], sql.Scope())
    if catalog.has_audit(connection, product):
        return
    sql.run_script(connection, statements["bootstrap"], sql.Scope())
    sql.run_script(connection, sql.statements(product.name, "roles")["catalog"], sql.Scope())


@dataclass(frozen=True)
class Wanted:
    """Which entries; None: any."""

    schema: str | None = None
    queue: str | None = None
    verb: str | None = None
    operator: str | None = None
    """A part of user@host, or the database's user."""
    since: float | None = None
    """Seconds back from now."""
    running: bool = False


def entries(
    connection: Connection, product: Product, wanted: Wanted, limit: int = LIST_MOST
) -> list[Entry]:
    """The newest first; none where the database keeps no audit yet."""
    if not catalog.has_audit(connection, product):
        return []
    statement = _statement(product, "actions")
    return sql.fetch(connection, Entry, statement, sql.Scope(), n=limit, **vars(wanted))


def alive(
    connection: Connection, product: Product, found: Sequence[Entry]
) -> Mapping[int, bool | None]:
    """Of those that have not ended: whether the session that they run in is still there."""
    running = [entry for entry in found if entry.ended_at is None]
    told = evidence_of(connection, product, [entry.session for entry in running])
    known = {Evidence.ALIVE: True, Evidence.GONE: False}
    return {
        entry.action_id: known.get(told.get(entry.session, Evidence.UNKNOWN)) for entry in running
    }


def _statement(product: Product, name: str) -> sql.Statement:
    return sql.statements(product.name, "catalog")[name]


def local_file() -> Path:
    """Where this machine keeps its own lines: one JSON object each."""
    return state.folder() / "audit.jsonl"


def note(
    subject: Subject,
    outcome: Outcome,
    ledger: Ledger | None = None,
    detail: str = "",
    *,
    action_id: int | None = None,
) -> bool:
    """Write the local line; whether it could be. Else the database's row is the audit."""
    counts = ledger or Ledger()
    line: Mapping[str, object] = {
        "at": datetime.now(UTC).isoformat(),
        "operator": action_rows.operator(),
        "connection": subject.connection,
        "schema": subject.schema,
        "queue": subject.queue,
        "verb": subject.verb,
        "filters": list(subject.filters),
        "cutoff": None if subject.cutoff is None else subject.cutoff.isoformat(),
        "action_id": action_id,
        "outcome": outcome.value,
        "planned": subject.planned,
        "selected": counts.selected,
        "done": counts.out,
        "skipped": dict(counts.skipped),
        "failed": dict(counts.failed),
        "detail": detail or subject.detail,
    }
    data = json.dumps(line, ensure_ascii=False).encode() + b"\n"
    with suppress(OSError):
        path = local_file()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # One write to a file that is open to append: lines of several consoles never mix.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
        return True
    return False
