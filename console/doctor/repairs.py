"""What repairs a queue: verbs and their words; and what no verb does, each a value of its own.

All implement `Repair`: planned, audited, each row checked at its own moment. A ring's numbers have
repairs of their own.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from console import audit, sql
from console.actions import end_session, maintain, maintain_plan
from console.actions.plan import MANY_MESSAGES
from console.audit import Ledger
from console.catalog import Queue
from console.doctor import planned, row_scan
from console.doctor.context import command, counted, texts
from console.doctor.finding import Diagnosis, Repair
from console.engines import Database, product_of
from console.errors import ConnectionFailedError, ConsoleError
from console.monitor.activity import Key
from console.monitor.filters import Filters
from console.monitor.limits import DEFAULTS
from console.monitor.owners import Evidence, owner_of, session_evidence
from console.rights import Rights

if TYPE_CHECKING:
    from sqlalchemy import Connection


def allowed_repairs(
    diagnosis: Diagnosis, rights: Rights, codes: Collection[str] = (), subscriber: str = ""
) -> list[Repair]:
    """Those that the connection may, the gravest finding's first: those that run by themselves, or
    of findings that are named all. `subscriber`: of its findings only."""
    found = [
        finding.repair
        for finding in diagnosis.findings
        if finding.repair is not None
        and subscriber in {"", finding.subscriber}
        and (finding.code.name in codes if codes else finding.repair.unattended)
    ]
    return [repair for repair in found if repair.rights <= rights]


@dataclass(frozen=True)
class RepairResult:
    lines: tuple[str, ...]
    failed: bool = False


def try_repair(repair: Repair, database: Database) -> RepairResult:
    """Run it; one that cannot be done ends none of the others. Raises ConnectionFailedError."""
    try:
        return RepairResult(tuple(repair.run(database)))
    except ConnectionFailedError:
        raise
    except ConsoleError as error:
        why = " ".join(part for part in (error.what, error.why, error.next_step) if part)
        return RepairResult((f"not done: {repair.summary}: {why}",), failed=True)


_ARCHIVED_AFTER_SECONDS = 86_400.0


@dataclass(frozen=True)
class VerbRepair:
    queue: Queue
    verb: str
    arguments: tuple[str, ...] = ()
    summary: str = ""
    """What it does."""
    unattended: bool = False
    requires_name: bool = False
    rights: Rights = Rights.OPERATOR
    stuck_after_seconds: float = DEFAULTS.stuck_after_seconds
    """By which the finding was judged; the verb judges by the same."""

    @property
    def command(self) -> str:
        return command(self.queue, self.verb, *self.arguments)

    def plan(self, database: Database) -> Sequence[str]:
        return planned(database, self).lines

    def run(self, database: Database) -> Sequence[str]:
        return planned(database, self).run_to_end()


def _filtered(older_seconds: float) -> tuple[str, ...]:
    return tuple(f"--filter={word}" for word in Filters(older=older_seconds).words)


def release_claims(
    queue: Queue, count: int, stuck_after_seconds: float, how: str = "gone"
) -> VerbRepair:
    """Claims can be popped again. `how`: gone, unknown or alive, as their owners are."""
    # By force also what is young would be released.
    words = {
        "gone": (),
        "unknown": ("--unknown",),
        "alive": ("--force", *_filtered(stuck_after_seconds)),
    }[how]
    if queue.subscriber:
        words = (*words, "--subscriber", queue.subscriber)
    return VerbRepair(
        queue,
        "release",
        words,
        f"release the claims whose owner is {how}",
        unattended=how == "gone",  # only on evidence
        requires_name=count > MANY_MESSAGES,
        stuck_after_seconds=stuck_after_seconds,
    )


def archive_done(queue: Queue) -> VerbRepair:
    """It may be millions of rows: somebody chooses the hour and the rate."""
    words = _filtered(_ARCHIVED_AFTER_SECONDS)
    return VerbRepair(queue, "archive", words, "archive messages done for longer than a day")


def upgrade(queue: Queue, *, by_hand: bool) -> VerbRepair:
    """`by_hand`: somebody changed the code on purpose, perhaps: not without being asked."""
    return VerbRepair(
        queue,
        "upgrade",
        summary="install the code of this console's version (upgrade)",
        unattended=not by_hand,  # callers go on, and no message is touched
        rights=Rights.ADMIN,
    )


def resume(queue: Queue) -> VerbRepair:
    """Whoever paused it may still want it so: not without being asked."""
    return VerbRepair(queue, "resume", summary="end its pause (resume)", rights=Rights.ADMIN)


def maintained(queue: Queue, what: str) -> VerbRepair:
    """What the measures call for: VACUUM, REINDEX, ANALYZE. Callers go on."""
    return VerbRepair(queue, "maintain", summary=f"maintain: {what}", unattended=True)


def switch_on(queue: Queue) -> VerbRepair:
    """Service Broker's queue gives and takes messages again. A poison message would switch it off
    again: somebody reads its head first."""
    return VerbRepair(queue, "requeue", summary="enable the queue again", rights=Rights.ADMIN)


def end_conversations(queue: Queue, count: int) -> VerbRepair:
    """Conversations that are over on the other side are ended here too."""
    return VerbRepair(
        queue,
        "release",
        summary="end the conversations that the other side ended and that hold nothing",
        unattended=True,
        requires_name=count > MANY_MESSAGES,
    )


def relay(queue: Queue) -> VerbRepair:
    """All live messages are numbered anew; callers wait meanwhile."""
    return VerbRepair(
        queue,
        "relay",
        ("--yes", queue.name),
        "renumber all live messages (relay)",
        requires_name=True,
        rights=Rights.ADMIN,
    )


def skip(queue: Queue, subscriber: str) -> VerbRepair:
    """Only its operator knows whether it comes back for what it owes."""
    return VerbRepair(
        queue,
        "skip",
        ("--to", "now", subscriber),
        f"let go what {subscriber} owes, into the archive (skip)",
        requires_name=True,
        rights=Rights.ADMIN,
    )


@dataclass(frozen=True)
class EndSession(VerbRepair):
    """A session that holds rows is ended; they come back by its rollback."""

    older_seconds: float = 0.0
    """Its transaction was older than this; a younger one is another and is skipped."""

    def run(self, database: Database) -> Sequence[str]:
        """End it, if it is in its old transaction still."""
        # The verb leaves alone whoever is in another transaction than the one that it planned for.
        found = planned(database, self)
        now = end_session.plan(database, self.queue, self.arguments[0])
        if (now.session.transaction_seconds or 0.0) < self.older_seconds:
            return [f"{now.label} is in another transaction by now: it was skipped"]
        return found.run_to_end()


def session_ended(queue: Queue, key: Key, older_seconds: float) -> EndSession:
    """`key`: of a session, or the name of a prepared transaction."""
    summary = f"terminate session {key}, which rolls its transaction back"
    if isinstance(key, str):
        summary = f"roll the prepared transaction {key!r} back"
    return EndSession(queue, "end-session", (str(key),), summary, older_seconds=older_seconds)


class DoctorRepair:
    """What no verb does. It is begun by itself, and changes no message, unless it says so."""

    requires_name: bool = False
    rights: Rights = Rights.OPERATOR
    command: str = ""

    @property
    def unattended(self) -> bool:
        return True


@dataclass(frozen=True)
class CreateMissing(DoctorRepair):
    """Indexes and keys that are missing are made beside the traffic."""

    queue: Queue
    steps: tuple[maintain_plan.MaintainStep, ...]
    waits: str = ""
    """For how long callers do, where that is known."""

    rights = Rights.ADMIN

    @property
    def unattended(self) -> bool:
        """Not where the server can only make it with its table locked, for however short."""
        texts = [text for step in self.steps for text in step.statements]
        return all("CONCURRENTLY" in text or "ONLINE = ON" in text for text in texts)

    @property
    def summary(self) -> str:
        callers = "go on" if self.unattended else f"wait {self.waits}".rstrip()
        return f"create what is missing ({len(self.steps)}), while callers {callers}"

    def plan(self, database: Database) -> Sequence[str]:
        return self._planned(database).lines()

    def run(self, database: Database) -> Sequence[str]:
        return maintain.maintain(database, self._planned(database)).lines()

    def _planned(self, database: Database) -> maintain_plan.MaintainPlan:
        measures = maintain_plan.measure(database, self.queue)
        return maintain_plan.MaintainPlan(self.queue, measures, self.steps)


NO_PAYLOAD = "the payload is missing: its row in the table of payloads no longer exists"
"""The error of a message that is set aside."""
_TRIES = 100
_TRY_AGAIN_SECONDS = 0.01


@dataclass(frozen=True)
class RepairCounts:
    """What a repair's statement returns: how many it chose, and how many of them it put right."""

    selected: int
    done: int

    def ledger(self, skipped: str = "") -> Ledger:
        """`skipped`: why some may be left as they are; without it a rest is an imbalance."""
        left = self.selected - self.done if skipped else 0
        return Ledger(self.selected, self.done, self.done, {skipped: left} if left else {})


@dataclass(frozen=True)
class IncompleteMessages:
    """What the statement `missing_payloads` tells of a chunk of a split queue's messages."""

    looked: int
    lowest: int | None
    ready: int
    ready_ids: Any
    stuck: int
    """Claimed for longer than the threshold, or by an owner who is gone."""
    stuck_ids: Any
    kept: int
    kept_ids: Any
    owners: Any
    """Who claimed those that are kept."""


def incomplete_messages(
    connection: Connection,
    queue: Queue,
    stuck_after_seconds: float,
    **where: object,
) -> tuple[IncompleteMessages, list[str]]:
    """A chunk, after a check of the owners of claims; those of the owners that are gone.

    Only of an owner who bound its claim to its session, as with any claim: see `release`.
    """
    product = product_of(connection)
    statement, scope = f"{queue.design.name}.missing_payloads", queue.scope(connection)
    where = {"stuck_after": stuck_after_seconds, **where}
    found = sql.row(
        connection, IncompleteMessages, statement, scope, gone=product.array([]), **where
    )
    owners = {text: owner_of(text) for text in texts(found.owners)}
    bound = {text: one.session for text, one in owners.items() if one is not None and one.bound}
    told = session_evidence(connection, bound.values())
    gone = [text for text, session in bound.items() if told.get(session) is Evidence.GONE]
    if gone:
        gone_ = product.array(gone)
        found = sql.row(connection, IncompleteMessages, statement, scope, gone=gone_, **where)
    return found, gone


@dataclass(frozen=True)
class MarkAsErrors(DoctorRepair):
    """Rows of a split queue that have no payload, ready or stuck, become errors; it goes on.

    Nothing that could be delivered is touched, nor what a living owner claimed a moment ago. The
    rows stay: with a payload from a backup they can be requeued.
    """

    queue: Queue
    count: int
    stuck_after_seconds: float
    chunks: tuple[int, ...] = (row_scan.NEWEST,)
    """Where they are: the newest id of each chunk that has some."""

    @property
    def summary(self) -> str:
        return f"mark {counted(self.count, 'row')} without a payload as errors"

    def plan(self, database: Database) -> Sequence[str]:  # noqa: ARG002  # of the protocol
        return [f"{self.summary}; with a payload from a backup they can be requeued"]

    def run(self, database: Database) -> Sequence[str]:
        """Each chunk its own transaction, with its audit."""
        aside = left = 0
        subject = audit.Subject.of(database, self.queue, "mend", self.summary)
        for newest in self.chunks:
            with audit.recorded(database, f"repair {self.queue.name!r}", subject) as act:
                n, held = self._chunk(act.connection, database, newest)
                act.record.batch(act.connection, n.ledger().require_balance())
                act.detail = f"{n.done} rows without a payload are errors"
            aside, left = aside + n.done, left + held
        told = f"marked as errors: {counted(aside, 'row')} without a payload"
        held_by_others = f"; {counted(left, 'row')} left, held by sessions" if left else ""
        return [told + held_by_others]

    def _chunk(
        self, connection: Connection, database: Database, newest: int
    ) -> tuple[RepairCounts, int]:
        """What was set aside, and how many are left.

        A pop that meets such a row holds it for a moment, and pops meet it again and again: what
        they hold is skipped, and tried once more.
        """
        product, queue = database.product, self.queue
        stuck_after = self.stuck_after_seconds
        where = {"newest": newest, "most": row_scan.CHUNK_ROWS}
        selected = done = 0
        found, gone = incomplete_messages(connection, queue, stuck_after, **where)
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_TRY_AGAIN_SECONDS)
            n = sql.row(
                connection,
                RepairCounts,
                f"{queue.design.name}.fail_missing_payloads",
                queue.scope(product),
                error=NO_PAYLOAD,
                stuck_after=stuck_after,
                gone=product.array(gone),
                **where,
            )
            selected, done = selected + n.selected, done + n.done
            found, gone = incomplete_messages(connection, queue, stuck_after, **where)
            if not found.ready + found.stuck:
                break
        return RepairCounts(selected, done), found.ready + found.stuck
