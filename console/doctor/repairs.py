"""Repairs of findings: a verb with its values, or what only `doctor --fix` does.

All implement `Repair`. They are planned and audited, and check each row when they change it. Those
of a ring's numbers are in `ring_repairs`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from console import sql
from console.actions import maintain, maintenance
from console.catalog import Queue, audit
from console.catalog.audit import Ledger, Outcome
from console.doctor import row_scan
from console.doctor.context import command, counted
from console.doctor.finding import Diagnosis, Repair
from console.engines import Database, product_of
from console.errors import ConnectionFailedError, ConsoleError
from console.filters import line_of
from console.monitor.filters import Filters
from console.monitor.owners import Evidence, owner_of, session_evidence
from console.monitor.row_holder import SessionKey
from console.plan import Plan, Result, queue_plan, single_step
from console.rights import Rights
from console.verbs import get_verb
from console.verbs.verb import Target, values_from_texts, words_from_texts

if TYPE_CHECKING:
    from sqlalchemy import Connection


def allowed_repairs(
    diagnosis: Diagnosis, rights: Rights, codes: Collection[str] = (), subscriber: str = ""
) -> list[Repair]:
    """The repairs that these rights allow, the most severe finding's first: the unattended ones, or
    all of the findings with these codes. Each once, though several findings have it.
    `subscriber`: only of its findings."""
    repairs = [
        finding.repair
        for finding in diagnosis.findings
        if finding.repair is not None
        and subscriber in {"", finding.subscriber}
        and (finding.code.name in codes if codes else finding.repair.unattended)
    ]
    allowed: list[Repair] = []
    for repair in repairs:
        if repair.rights <= rights and repair not in allowed:
            allowed.append(repair)
    return allowed


class Repairing(Protocol):
    """A repair, or what it is restricted to."""

    @property
    def summary(self) -> str: ...

    def plan(self, target: Target) -> Plan: ...


def try_repair(repair: Repairing, target: Target, plan: Plan | None = None) -> Result:
    """Run its plan; None: plan it now. A failure is a result, so that others can follow. Raises
    ConnectionFailedError."""
    try:
        plan = repair.plan(target) if plan is None else plan
        plan.require_possible()
        return plan.run_to_end()
    except ConnectionFailedError:
        raise
    except ConsoleError as error:
        why = " ".join(part for part in (error.what, error.why, error.next_step) if part)
        line = f"not done: {repair.summary}: {why}"
        return Result(Outcome.FAILED, (line,), problem=why)


_ARCHIVED_AFTER_SECONDS = 86_400.0
NOTHING_LEFT = "nothing is left to repair"


@dataclass(frozen=True)
class VerbRepair:
    queue: Queue
    verb: str
    texts: Mapping[str, str] = field(default_factory=dict)
    """Its parameters' values, as in the fields of its form."""
    summary: str = ""
    unattended: bool = False
    """Whether `--fix` runs it; if not, `--fix --code CODE` does, and the finding's screen."""
    bound: Mapping[str, Sequence[str]] = field(default_factory=dict, compare=False)
    """Of a release: the owners that bound claims to their session, which is gone, as `claimed_by`
    names them; with the ids of their ten oldest claims."""

    @property
    def command(self) -> str:
        return command(self.queue, self.verb, *words_from_texts(get_verb(self.verb), self.texts))

    @property
    def rights(self) -> Rights:
        verb = get_verb(self.verb)
        return verb.right(values_from_texts(verb, self.texts))

    def plan(self, target: Target) -> Plan:
        verb = get_verb(self.verb)
        return verb.plan(replace(target, queue=self.queue), values_from_texts(verb, self.texts))


def _older_than(seconds: float) -> dict[str, str]:
    return {"filter": line_of(Filters(older=seconds).words)}


def release_claims(
    queue: Queue,
    stuck_after_seconds: float,
    owners: str = "gone",
    bound: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> VerbRepair:
    """`owners`: gone, unknown or alive."""
    texts = {
        "gone": {},
        "unknown": {"unknown": "yes"},
        # Without the filter, --force would release young claims too.
        "alive": {"force": "yes", **_older_than(stuck_after_seconds)},
    }[owners]
    if queue.subscriber:
        texts = {**texts, "subscriber": queue.subscriber}
    return VerbRepair(
        queue,
        "release",
        texts,
        f"release the claims whose owner is {owners}",
        unattended=owners == "gone",  # which takes evidence
        bound=bound,
    )


def archive_done(queue: Queue) -> VerbRepair:
    """Not unattended: of millions of rows an operator chooses the hour and the rate."""
    texts = _older_than(_ARCHIVED_AFTER_SECONDS)
    return VerbRepair(queue, "archive", texts, "archive messages done for longer than a day")


def upgrade(queue: Queue, *, by_hand: bool) -> VerbRepair:
    """`by_hand`: the installed code was modified, perhaps on purpose: not unattended."""
    return VerbRepair(
        queue,
        "upgrade",
        summary="install the code of this console's version (upgrade)",
        unattended=not by_hand,  # callers continue, and no message is touched
    )


def resume(queue: Queue) -> VerbRepair:
    """Not unattended: whoever paused it may still want the pause."""
    return VerbRepair(queue, "resume", summary="end its pause (resume)")


def maintain_queue(queue: Queue, what: str) -> VerbRepair:
    """VACUUM, REINDEX, ANALYZE as needed. Callers continue."""
    return VerbRepair(queue, "maintain", summary=f"maintain: {what}", unattended=True)


def enable_queue(queue: Queue) -> VerbRepair:
    """Not unattended: a poison message would disable the queue again, so read its head first."""
    return VerbRepair(queue, "requeue", summary="enable the queue again")


def end_conversations(queue: Queue) -> VerbRepair:
    summary = "end the conversations that the other side ended and that hold nothing"
    return VerbRepair(queue, "release", summary=summary, unattended=True)


def relay(queue: Queue) -> VerbRepair:
    return VerbRepair(queue, "relay", summary="renumber all live messages (relay)")


def resize(queue: Queue, slots: int) -> VerbRepair:
    """To twice the slots. Not unattended: consumers may be what is missing."""
    summary = f"add slots: {2 * slots:,} instead of {slots:,} (resize); or add consumers"
    return VerbRepair(queue, "resize", {"size": str(2 * slots)}, summary)


def skip(queue: Queue, subscriber: str) -> VerbRepair:
    """Not unattended: only its operator knows whether the subscriber comes back."""
    summary = f"move what {subscriber} owes into the archive (skip)"
    return VerbRepair(queue, "skip", {"to": "now", "subscriber": subscriber}, summary)


def terminate_session(queue: Queue, key: SessionKey, older_seconds: float) -> VerbRepair:
    """`key`: a session's, or the name of a prepared transaction. Its rollback frees the rows that
    it holds."""
    summary = f"terminate session {key}, which rolls its transaction back"
    if isinstance(key, str):
        summary = f"roll the prepared transaction {key!r} back"
    texts = {"session": str(key), "older": f"{int(older_seconds)}s"}
    return VerbRepair(queue, "end-session", texts, summary)


class DoctorRepair(ABC):
    """What only `doctor --fix` does. Unless it says otherwise it runs unattended, and changes no
    message."""

    queue: Queue
    requires_name: bool = False
    rights: Rights = Rights.OPERATOR
    verb: str = "doctor"
    texts: Mapping[str, str] = MappingProxyType({})
    command: str = ""
    """Made by the finding, from its code."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """As of `Repair`."""

    @property
    def unattended(self) -> bool:
        return True

    @abstractmethod
    def lines(self, database: Database) -> Sequence[str]:
        """What it would do, line by line; empty: nothing is left to repair. Changes nothing."""

    @abstractmethod
    def run(self, database: Database) -> Sequence[str]:
        """Do it; what was done, line by line. Raises ConsoleError."""

    def plan(self, target: Target) -> Plan:
        """Its steps as one, which nothing can stop."""

        def run() -> Result:
            return Result(Outcome.DONE, tuple(self.run(target.database)), done=1)

        lines = self.lines(target.database)
        return queue_plan(
            target.database,
            self.queue,
            "doctor --fix",
            lines or [NOTHING_LEFT],
            single_step(run),
            requires_name=self.requires_name,
            needed=bool(lines),
        )


@dataclass(frozen=True)
class CreateMissing(DoctorRepair):
    """Creates missing indexes, keys and constraints, online where the server can."""

    queue: Queue
    steps: tuple[maintenance.MaintainStep, ...]
    waits: str = ""
    """For how long callers have to wait, if known."""

    rights = Rights.ADMIN

    @property
    def unattended(self) -> bool:
        """Not if the table has to be locked for it, however briefly."""
        return all(step.online for step in self.steps)

    @property
    def summary(self) -> str:
        callers = "continue" if self.unattended else f"wait {self.waits}".rstrip()
        return f"create what is missing ({len(self.steps)}), while callers {callers}"

    def lines(self, database: Database) -> Sequence[str]:
        return self._planned(database).lines()

    def run(self, database: Database) -> Sequence[str]:
        done = maintain.maintain(database, self._planned(database))
        if done.outcome is Outcome.FAILED:
            raise ConsoleError(
                f"Could not {self.summary}.",
                why="; ".join(line.strip() for line in done.lines[1:]),
                next_step=f"What is left: {command(self.queue, 'doctor')}; who holds the table: "
                f"{command(self.queue, 'waits')}",
            )
        return done.lines

    def _planned(self, database: Database) -> maintenance.Maintenance:
        measures = maintenance.measure(database, self.queue)
        return maintenance.Maintenance(self.queue, measures, self.steps)


NO_PAYLOAD = "the payload is missing: its row in the table of payloads no longer exists"
"""The error text of messages that are marked as errors."""
_ATTEMPTS = 100
_RETRY_SECONDS = 0.01


@dataclass(frozen=True)
class RepairCounts:
    """The result of a repair's statement: rows selected, and repaired."""

    selected: int
    done: int

    def ledger(self, skipped: str = "") -> Ledger:
        """`skipped`: why some may be left; without it, any difference is an imbalance."""
        left = self.selected - self.done if skipped else 0
        return Ledger(self.selected, self.done, self.done, {skipped: left} if left else {})


@dataclass(frozen=True)
class IncompleteMessages:
    """The result of `missing_payloads` for a chunk of a split queue's messages."""

    rows_read: int
    lowest: int | None
    ready: int
    ready_ids: Any
    stuck: int
    """Claimed for longer than the threshold, or by an owner that is gone."""
    stuck_ids: Any
    kept: int
    kept_ids: Any
    owners: Any
    """Of the claims among those kept."""


def incomplete_messages(
    connection: Connection, queue: Queue, stuck_after_seconds: float, **where: object
) -> tuple[IncompleteMessages, list[str]]:
    """A chunk's result after a check of the owners of claims, and which of these are gone.

    As for any release, an owner is only gone if its claim was bound to its session.
    """
    product = product_of(connection)
    statement, scope = f"{queue.design.name}.missing_payloads", queue.scope(connection)
    where = {"stuck_after": stuck_after_seconds, **where}
    messages = sql.row(
        connection, IncompleteMessages, statement, scope, gone=product.array([]), **where
    )
    owners = {text: owner_of(text) for text in sql.texts(messages.owners)}
    bound = {
        text: owner.session for text, owner in owners.items() if owner is not None and owner.bound
    }
    # The audit's row named this session: without this, owners that came since would be gone.
    if sql.has(connection, "doctor.forget_sessions"):
        sql.run(connection, "doctor.forget_sessions")
    evidence = session_evidence(connection, bound.values())
    gone = [text for text, session in bound.items() if evidence.get(session) is Evidence.GONE]
    if gone:
        gone_ = product.array(gone)
        messages = sql.row(connection, IncompleteMessages, statement, scope, gone=gone_, **where)
    return messages, gone


@dataclass(frozen=True)
class MarkAsErrors(DoctorRepair):
    """Marks rows of a split queue without a payload, ready or stuck, as errors, so that pops go on.

    Nothing that could be delivered is touched, nor a recent claim of a live owner. The rows stay:
    with a payload from a backup they can be requeued.
    """

    queue: Queue
    count: int
    stuck_after_seconds: float
    chunks: tuple[int, ...] = (row_scan.NEWEST,)
    """The newest id of each chunk that has such rows."""

    @property
    def summary(self) -> str:
        return f"mark {counted(self.count, 'row')} without a payload as errors"

    def lines(self, database: Database) -> Sequence[str]:  # noqa: ARG002  # of the protocol
        return [f"{self.summary}; with a payload from a backup they can be requeued"]

    def run(self, database: Database) -> Sequence[str]:
        """Each chunk in its own transaction, with its audit."""
        marked = left = 0
        subject = audit.Subject.of(database, self.queue, "repair", self.summary)
        for newest in self.chunks:
            with audit.recorded(database, f"repair {self.queue.name!r}", subject) as act:
                n, held = self._chunk(act.connection, database, newest)
                act.record.batch(act.connection, n.ledger().require_balance())
                act.detail = f"{n.done} rows without a payload are errors"
            marked, left = marked + n.done, left + held
        rest = f"; {counted(left, 'row')} left, held by sessions" if left else ""
        return [f"marked as errors: {counted(marked, 'row')} without a payload{rest}"]

    def _chunk(
        self, connection: Connection, database: Database, newest: int
    ) -> tuple[RepairCounts, int]:
        """The rows marked, and how many are left.

        Pops meet such rows again and again and hold them for a moment: what they hold is skipped
        and retried.
        """
        product, queue = database.product, self.queue
        stuck_after = self.stuck_after_seconds
        where = {"newest": newest, "most": row_scan.CHUNK_ROWS}
        selected = done = 0
        messages, gone = incomplete_messages(connection, queue, stuck_after, **where)
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_RETRY_SECONDS)
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
            messages, gone = incomplete_messages(connection, queue, stuck_after, **where)
            if not messages.ready + messages.stuck:
                break
        return RepairCounts(selected, done), messages.ready + messages.stuck
