"""The audit: who did what to which queue, as a row in the database, written in the same
transactions, and a local line; and the ledger that accounts for every selected message."""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from console import catalog, sql, state
from console.catalog import Queue, decisions
from console.engines import Database, product_of
from console.errors import BusyError, ConsoleError, RefusedError, UsageError

if TYPE_CHECKING:
    from sqlalchemy import Connection


class ImbalanceError(ConsoleError):
    """Rows out of the source differ from rows into the target; the batch is undone."""

    exit_status = 1


@dataclass(frozen=True)
class Ledger:
    """Counts of one batch or of several.

    It balances if selected = out + skipped + failed, and out = into.
    """

    selected: int = 0
    out: int = 0
    """Taken out of the source."""
    into: int = 0
    """Put into the target."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Reason -> messages left unchanged because they changed after the selection."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """Reason -> messages left unchanged because the verb failed on them."""

    def __add__(self, other: Ledger) -> Ledger:
        return Ledger(
            self.selected + other.selected,
            self.out + other.out,
            self.into + other.into,
            dict(Counter(self.skipped) + Counter(other.skipped)),
            dict(Counter(self.failed) + Counter(other.failed)),
        )

    @property
    def skipped_count(self) -> int:
        return sum(self.skipped.values())

    @property
    def failed_count(self) -> int:
        return sum(self.failed.values())

    @property
    def balanced(self) -> bool:
        counted = self.out + self.skipped_count + self.failed_count
        return self.selected == counted and self.out == self.into

    def require_balance(self) -> Ledger:
        """This ledger; ImbalanceError, which undoes the transaction, if it does not balance."""
        if self.balanced:
            return self
        raise ImbalanceError(
            "THE LEDGER DOES NOT BALANCE: the last batch was undone and the action stopped.",
            why=(
                f"Selected {self.selected:,}, out {self.out:,}, into {self.into:,}, "
                f"skipped {self.skipped_count:,}, failed {self.failed_count:,}."
            ),
            next_step="The messages of that batch are where they were. Examine the queue before "
            "repeating it: triggers, rules or a damaged table may be the cause.",
        )


LIST_MOST = 1_000


class Outcome(StrEnum):
    """The outcome of an action."""

    RUNNING = "running"
    """Or interrupted, if its session is closed."""
    DONE = "done"
    STOPPED = "stopped"
    """By its operator, or at a limit; completed batches are kept."""
    FAILED = "failed"
    REFUSED = "refused"
    """Only in the local file: nothing was sent to the database."""


@dataclass(frozen=True)
class Entry:
    """One action in the database's audit."""

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
    """The subject of an action, for the audit. Never a payload."""

    verb: str
    schema: str
    queue: str
    connection: str
    filters: Sequence[str] = ()
    cutoff: datetime | None = None
    planned: int = 0
    detail: str = ""

    @classmethod
    def of(cls, database: Database, queue: Queue, verb: str, detail: str = "") -> Subject:
        return cls(verb, queue.schema, queue.name, database.label, detail=detail)


@dataclass(frozen=True)
class _EndedAction:
    action_id: int
    done: int


def may_write(connection: Connection) -> bool:
    """Whether this login may write to the existing table."""
    return sql.value(connection, bool, "catalog.may_act")


def require(connection: Connection) -> None:
    """RefusedError if the table does not exist yet, or this login may not write to it."""
    if not (catalog.has_audit(connection) and may_write(connection)):
        raise no_audit_error(
            "This login may not write to dbq.action, or the catalog has no such table yet."
        )


def no_audit_error(why: str) -> RefusedError:
    """The error for an action that cannot be audited."""
    return RefusedError(
        "Nothing was started: the audit could not record it.",
        why=why,
        next_step="Let the catalog's owner run dbq-console upgrade on one of its queues, or grant "
        "this login INSERT and UPDATE on dbq.action (dbq-console roles).",
    )


def begin(connection: Connection, subject: Subject) -> int:
    """Begin an action; returns its id.

    RefusedError if the queue is protected from it, or paused and the verb adds messages.
    """
    schema, queue, verb = subject.schema, subject.queue, subject.verb
    if verb in decisions.PROTECTED_FROM:
        decisions.require_unprotected(connection, schema, queue, verb)
    if verb in decisions.REFUSED_WHILE_PAUSED:
        decisions.require_not_paused(connection, schema, queue, verb)
    return sql.value(
        connection,
        int,
        "catalog.action_begin",
        schema=schema,
        queue=queue,
        verb=verb,
        operator=operator(),
        connection=subject.connection,
        filters=" ".join(subject.filters),
        cutoff=subject.cutoff,
        planned=subject.planned,
        detail=_with_agent(subject.detail),
    )


def batch(connection: Connection, action_id: int, ledger: Ledger) -> None:
    """Count one batch. RefusedError if the action was ended by someone else."""
    values = sql.values(
        connection,
        int,
        "catalog.action_batch",
        action_id=action_id,
        selected=ledger.selected,
        done=ledger.out,
        skipped=ledger.skipped_count,
        failed=ledger.failed_count,
    )
    if not values:
        raise RefusedError(
            f"Action {action_id} is no longer running.",
            why="Its row in the database's audit was ended or deleted.",
            next_step="See: dbq-console audit",
        )


def end(connection: Connection, action_id: int, outcome: str, detail: str) -> int | None:
    """Record the outcome; returns the number done, or None if it had already ended.

    It waits for an uncommitted batch, and no batch is counted after it.
    """
    actions = sql.rows(
        connection,
        _EndedAction,
        "catalog.action_end",
        action_id=action_id,
        outcome=outcome,
        detail=_with_agent(detail),
    )
    return actions[0].done if actions else None


UNATTENDED = "unattended"
"""The first word of an agent's name."""


def is_agent(operator: str | None) -> bool:
    return (operator or "").startswith(f"{UNATTENDED} ")


@dataclass(frozen=True)
class Agent:
    """What acts without a person."""

    operator: str
    """Instead of user@host: see `is_agent`."""
    detail: str
    """By which order, added to the action's own."""


_AGENT: ContextVar[Agent | None] = ContextVar("agent", default=None)


@contextmanager
def acting_as(agent: Agent) -> Iterator[None]:
    """Actions that begin in the block are audited as the agent's."""
    before = _AGENT.set(agent)
    try:
        yield
    finally:
        _AGENT.reset(before)


def _with_agent(detail: str) -> str:
    agent = _AGENT.get()
    return detail if agent is None else "; ".join(filter(None, (detail, agent.detail)))


def operator() -> str:
    """user@host of this machine; of an agent, what it is."""
    if agent := _AGENT.get():
        return agent.operator
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


class ActionRecord:
    """The audit of one action, begun before its first batch and counted in each transaction."""

    def __init__(self, subject: Subject, action_id: int) -> None:
        self.action_id = action_id
        self._subject = subject

    @classmethod
    def begin(cls, connection: Connection, subject: Subject) -> ActionRecord:
        """Begin in the caller's transaction; first prepares a catalog that lacks parts."""
        prepare(connection)
        return cls(subject, begin(connection, subject))

    def batch(self, connection: Connection, ledger: Ledger) -> None:
        """Count one batch in its transaction. RefusedError if the action was ended."""
        batch(connection, self.action_id, ledger)

    def end(self, connection: Connection, outcome: Outcome, detail: str = "") -> int | None:
        """Record the outcome in the caller's transaction; see `end`."""
        return end(connection, self.action_id, outcome, detail or self._subject.detail)

    def log_locally(self, outcome: Outcome, ledger: Ledger, detail: str = "") -> None:
        log_locally(self._subject, outcome, ledger, detail, action_id=self.action_id)


@dataclass
class RecordedAction:
    connection: Connection
    record: ActionRecord
    detail: str = ""
    """For the audit, once known."""


@contextmanager
def recorded(database: Database, doing: str, subject: Subject) -> Iterator[RecordedAction]:
    """An action that is a single transaction, with its audit in the same transaction.

    The outcome is also in the local line.
    """
    try:
        with database.transaction(doing) as connection:
            action = RecordedAction(connection, ActionRecord.begin(connection, subject))
            yield action
            action.record.end(connection, Outcome.DONE, action.detail)
    except (UsageError, BusyError):
        raise
    except ConsoleError as error:
        outcome = Outcome.REFUSED if isinstance(error, RefusedError) else Outcome.FAILED
        log_locally(subject, outcome, detail=str(error))
        raise
    action.record.log_locally(Outcome.DONE, Ledger(), action.detail)


def prepare(connection: Connection) -> None:
    """Create the audit in the catalog if it is missing. RefusedError if that is impossible."""
    if not catalog.has_audit(connection):
        try:
            _create(connection, "create the audit in this database's catalog")
        except BusyError:
            raise
        except RefusedError as error:
            raise no_audit_error(error.why) from error
    if not may_write(connection):
        raise no_audit_error(
            "This login may not write to dbq.action, where every action is recorded."
        )


def prepare_decisions(connection: Connection) -> None:
    """Create the tables of decisions if they are missing. RefusedError if that is impossible."""
    prepare(connection)
    if not decisions.has_decisions(connection):
        _create(connection, "create the tables of decisions in this database's catalog")


def prepare_identity(connection: Connection) -> None:
    """Create the catalog's id if it is missing. RefusedError if that is impossible."""
    if not decisions.catalog_contents(connection).identified:
        _create(connection, "give this database's catalog its id")


def prepare_lakes(connection: Connection) -> None:
    """Create the tables of archives' ways into lakes if they are missing. RefusedError if that is
    impossible."""
    prepare_identity(connection)
    if not decisions.catalog_contents(connection).lakes:
        _create(connection, "create the plans of archives in this database's catalog")


CATALOGS_OWNER = "Let the catalog's owner run: dbq-console upgrade --all"


def _create(connection: Connection, doing: str) -> None:
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415  # a verb imports what it uses

    try:
        create_catalog(connection)
    except DBAPIError as error:
        console_error = product_of(connection).translate(error, doing)
        if isinstance(console_error, RefusedError) and not isinstance(console_error, BusyError):
            console_error.next_step = CATALOGS_OWNER
        raise console_error from error


def create_catalog(connection: Connection) -> None:
    """Create what the catalog lacks, as its owner, and grant the roles their rights on it."""
    sql.run(connection, "catalog.lock")
    catalog_contents = decisions.catalog_contents(connection)
    if not catalog_contents.complete:
        complete_catalog(connection)


def complete_catalog(connection: Connection) -> None:
    """The same, also where only a table is missing that those who ask for it create."""
    sql.run(connection, "catalog.lock")
    sql.run(connection, "catalog.bootstrap")
    sql.run(connection, "roles.catalog")


@dataclass(frozen=True)
class EntryFilter:
    """A filter of entries; None: any."""

    schema: str | None = None
    queue: str | None = None
    verb: str | None = None
    operator: str | None = None
    """A part of user@host, or the database's user."""
    by_agent: bool | None = None
    """True: only of agents; False: only of persons."""
    since: float | None = None
    """Seconds back from now."""
    running: bool = False


def entries(connection: Connection, wanted: EntryFilter, limit: int = LIST_MOST) -> list[Entry]:
    """The entries, newest first; none if the database has no audit yet."""
    if not catalog.has_audit(connection):
        return []
    return sql.rows(connection, Entry, "catalog.actions", n=limit, **vars(wanted))


def local_file() -> Path:
    """The file of this machine's lines: one JSON object each."""
    return state.folder() / "audit.jsonl"


def log_locally(
    subject: Subject,
    outcome: Outcome,
    ledger: Ledger | None = None,
    detail: str = "",
    *,
    action_id: int | None = None,
) -> bool:
    """Write the local line; returns whether that succeeded. Errors are ignored."""
    counts = ledger or Ledger()
    line: Mapping[str, object] = {
        "at": datetime.now(UTC).isoformat(),
        "operator": operator(),
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
        "detail": _with_agent(detail or subject.detail),
    }
    # An argument may contain bytes that are not text: JSON has an escape for them.
    data = json.dumps(line, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
    with suppress(OSError):
        path = local_file()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A single write in append mode: lines of several consoles never mix.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
        return True
    return False
