"""Operators' decisions about queues and findings, and their notes, in the database's catalog."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, TypeVar

from console import sql
from console.errors import RefusedError
from console.formats import duration, moment

if TYPE_CHECKING:
    from sqlalchemy import Connection

NO_SUPERUSER = "Use a login that is no superuser, such as a member of dbq_reader."


@dataclass(frozen=True)
class CatalogContents:
    """Which parts the catalog of this database has; a damaged one lacks some."""

    present: bool
    version: int | None
    audited: bool
    decided: bool
    identified: bool
    lakes: bool
    """Whether the way of archives into lakes is kept here."""
    decisions_readable: bool
    guarded: bool
    """Whether who writes a row of the catalog or of the audit is checked."""
    runs: str | None
    """What of others a superuser would run by reading it. None for any other login."""

    @property
    def complete(self) -> bool:
        return all((self.audited, self.decided, self.identified, self.guarded, self.lakes))


@dataclass(frozen=True)
class Decision:
    """An operator's decision about a queue or a finding, in force until revoked."""

    kind: str
    """`pause`, `protection`, `silence` or `acknowledge`; `unattended` is no operator's."""
    code: str
    """Of the finding; empty for a decision about the queue."""
    schema: str
    queue: str
    """Empty, as the schema: every queue."""
    operator: str
    database_user: str
    reason: str
    since: datetime
    until: datetime | None
    push: bool
    """For a pause: whether pushes are paused too."""
    severity: str
    """Of an acknowledged finding, at that time."""

    @property
    def state(self) -> str:
        """`protected`, for example."""
        return _STATES.get(self.kind, "acknowledged")

    @property
    def words(self) -> str:
        """Who, since when, why: `protected by ann@etl01 since 2026-11-22 03:04:05 UTC: audit`."""
        pushes = ", its pushes too," if self.push else ""
        return f"{self.state}{pushes} by {self.operator} {self.lasting}"

    @property
    def lasting(self) -> str:
        text = f"since {moment(self.since, UTC)}"
        if self.until is not None:
            text += f", until {moment(self.until, UTC)}"
        return f"{text}: {self.reason}" if self.reason else text

    @property
    def shown(self) -> str:
        """The same for a screen: `PROTECTED by ann@etl01 since ...`."""
        done, _, rest = self.words.partition(" ")
        return f"{done.upper()} {rest}"

    def mark(self, now: datetime) -> str:
        """A short form for narrow screens: `PAUSED 12 min, ann`."""
        seconds = max(0, round((now - self.since).total_seconds()))
        lasted = duration(seconds) if seconds >= 60 else f"{seconds} s"
        who = self.operator.partition("@")[0]
        return f"{self.shown.split()[0].rstrip(',')} {lasted}, {who}"

    def as_json(self) -> dict[str, object]:
        """The stable object of `status --json`, and of a finding's `silenced`."""
        until = None if self.until is None else self.until.isoformat()
        shown: dict[str, object] = {"kind": self.kind, "operator": self.operator}
        shown |= {"since": self.since.isoformat(), "until": until, "reason": self.reason}
        return shown | ({"push": self.push} if self.kind == "pause" else {})


_STATES = {
    "pause": "paused",
    "protection": "protected",
    "silence": "silenced",
    "unattended": "left to the recorder",
}


@dataclass(frozen=True)
class Note:
    """An operator's note of an event: a release, a fail-over."""

    schema: str
    queue: str
    """Empty, as the schema: the whole database."""
    noted_at: datetime
    operator: str
    note: str

    def as_json(self) -> dict[str, object]:
        return {**vars(self), "noted_at": self.noted_at.isoformat()}


CATALOG_VERSION = 1
"""Each change of the catalog's tables adds one, and a migration in `catalog.bootstrap`; the tests
keep a dump of each version."""


class _Checked(Protocol):
    @property
    def runs(self) -> str | None: ...


Checked = TypeVar("Checked", bound=_Checked)
_OTHERS = sql.Scope(options={"others": "yes"})


def checked(connection: Connection, row_type: type[Checked], statement: str) -> list[Checked]:
    """The statement's rows: which code of others reading runs is looked up only if there is any."""
    rows = sql.rows(connection, row_type, statement)
    if any(row.runs for row in rows):
        return sql.rows(connection, row_type, statement, _OTHERS)
    return rows


def catalog_contents(connection: Connection) -> CatalogContents:
    """RefusedError to a superuser if reading it would run the code of a login that is none; and
    where its version is not this console's."""
    (row,) = checked(connection, CatalogContents, "catalog.exists")
    if row.runs:
        raise RefusedError(
            "No superuser reads the catalog of this database.",
            why=f"That would run {row.runs}.",
            next_step=NO_SUPERUSER,
        )
    # A dump without comments has no version; whatever lacks no part is of the first.
    version = CATALOG_VERSION if row.version is None and row.complete else row.version
    if row.present and version != CATALOG_VERSION:
        raise _another_version(version)
    return row


def _another_version(version: int | None) -> RefusedError:
    what = "The catalog of this database (schema dbq) is of another console."
    if version is not None and version > CATALOG_VERSION:
        return RefusedError(
            what,
            why=f"It has version {version}, this console knows version {CATALOG_VERSION}.",
            next_step="Use the console that made it, or a newer one.",
        )
    return RefusedError(
        what,
        why="It has no version and lacks tables: it was made before the first release, or restored "
        "without its comment and a part.",
        next_step="If this console made it: COMMENT ON SCHEMA dbq IS 'catalog 1 of dbq-console' "
        "(SQL Server: its extended property), then dbq-console upgrade --all. Else, with the "
        "console that made it: resume paused queues, empty all, uninstall them; then drop the "
        "schema, and install the queues again.",
    )


def has_decisions(connection: Connection) -> bool:
    """Whether the catalog has decisions; a damaged one lacks them."""
    return catalog_contents(connection).decided


def active(connection: Connection) -> list[Decision]:
    """All decisions in force; none if the catalog has no table for them yet."""
    return read(connection) if has_decisions(connection) else []


def read(connection: Connection) -> list[Decision]:
    """The same for a catalog known to have the table."""
    return sql.rows(connection, Decision, "catalog.decisions")


def pauses(connection: Connection) -> set[tuple[str, str]] | None:
    """Schema and name of the paused queues; None: this login may not read all decisions."""
    if not catalog_contents(connection).decisions_readable:
        return None
    return {(one.schema, one.queue) for one in read(connection) if one.kind == "pause"}


def find(connection: Connection, kind: str, schema: str, queue: str) -> Decision | None:
    """The decision of that kind about the queue itself."""
    return find_in(active(connection), kind, schema, queue)


def find_in(found: list[Decision], kind: str, schema: str, queue: str) -> Decision | None:
    key = (kind, schema, queue)
    return next((one for one in found if (one.kind, one.schema, one.queue) == key), None)


PROTECTED_FROM = frozenset({"purge", "archive", "uninstall"})
"""The verbs that a protected queue refuses, besides a smaller size."""

REFUSED_WHILE_PAUSED = frozenset({"restore", "replay"})


def require_not_paused(connection: Connection, schema: str, queue: str, doing: str) -> None:
    """RefusedError if an operator has paused the queue, so that nothing pops new messages."""
    if decision := find(connection, "pause", schema, queue):
        raise RefusedError(
            f"Nothing was changed: {queue!r} is paused, so {doing} is refused.",
            why=decision.words,
            next_step=revoke_hint("resume", queue),
        )


def require_unprotected(connection: Connection, schema: str, queue: str, doing: str) -> None:
    """RefusedError if an operator has protected the queue."""
    if decision := find(connection, "protection", schema, queue):
        raise RefusedError(
            f"Nothing was changed: {queue!r} is protected from {doing}.",
            why=decision.words,
            next_step=revoke_hint("unprotect", queue),
        )


def against(connection: Connection, verb: str, schema: str, queue: str) -> Decision | None:
    """An operator's decision about the queue that forbids the verb, in a catalog known to have the
    table."""
    if verb not in PROTECTED_FROM | REFUSED_WHILE_PAUSED:
        return None
    kind = "protection" if verb in PROTECTED_FROM else "pause"
    return find_in(read(connection), kind, schema, queue)


def revoke_hint(verb: str, queue: str) -> str:
    """The next step after a refusal."""
    return f"Ask them; then: dbq-console {verb} {shlex.quote(queue)}"


def notes(connection: Connection, schema: str, queue: str, limit: int) -> list[Note]:
    if not catalog_contents(connection).decisions_readable:
        return []
    return sql.rows(connection, Note, "catalog.notes", n=limit, schema=schema, queue=queue)
