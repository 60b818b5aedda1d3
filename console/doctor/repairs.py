"""What mends a queue, through the actions: planned, audited, each row checked at its own moment.

What is alike for all designs; a ring's numbers have repairs of their own. All implement `Repair`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from console import sql
from console.actions import audit, end_session, execute, maintain, plan, upgrade
from console.actions.archive import Archive
from console.actions.ledger import Ledger
from console.actions.plan import MANY_MESSAGES, Mover
from console.actions.release import Release
from console.catalog import Queue
from console.doctor import stretches
from console.doctor.checks import command, counted, texts
from console.doctor.stretches import NEWEST
from console.engines import Database, Product
from console.monitor.activity import Key
from console.monitor.filters import NOTHING, Filters
from console.monitor.owners import Evidence, evidence_of, owner_of
from console.monitor.walked import Source
from console.rights import Rights


def _source(database: Database, queue: Queue) -> Source:
    with database.transaction(f"look at the queue {queue.name!r}", read_only=True) as connection:
        return Source.of(connection, database.product, queue)


def _run(database: Database, mover: Mover, filters: Filters) -> list[str]:
    made = plan.make(database, mover, filters)
    return execute.execute(database, mover, made).lines()


@dataclass(frozen=True)
class ReleaseClaims:
    """Claims can be popped again. `how`: gone, unknown or alive, as their owners are."""

    queue: Queue
    count: int
    stuck_after_seconds: float
    how: str = "gone"

    @property
    def summary(self) -> str:
        """What it does."""
        return f"release the claims whose owner is {self.how}"

    @property
    def command(self) -> str:
        """The verb."""
        return command(self.queue, "release", *self._words)

    @property
    def _words(self) -> tuple[str, ...]:
        words = {"gone": (), "unknown": ("--unknown",), "alive": ("--force",)}[self.how]
        return (*words, *(f"--filter={word}" for word in self._filters.words))

    @property
    def _filters(self) -> Filters:
        """By force also what is young would be released."""
        return Filters(older=self.stuck_after_seconds) if self.how == "alive" else NOTHING

    @property
    def unattended(self) -> bool:
        """Only on evidence."""
        return self.how == "gone"

    @property
    def rights(self) -> Rights:
        """What the connection must be allowed."""
        return Rights.OPERATOR

    @property
    def wants_name(self) -> bool:
        """As the verb does."""
        return self.count > MANY_MESSAGES

    def plan(self, database: Database) -> Sequence[str]:
        """The verb's plan."""
        return plan.make(database, self._mover(database), self._filters).lines()

    def run(self, database: Database) -> Sequence[str]:
        """Look at the owners once more, then release."""
        return _run(database, self._mover(database), self._filters)

    def _mover(self, database: Database) -> Mover:
        return Release(
            _source(database, self.queue),
            stuck_after_seconds=self.stuck_after_seconds,
            force=self.how == "alive",
            unknown=self.how == "unknown",
        )


@dataclass(frozen=True)
class ArchiveDone:
    """Done rows that are older than a day go into the archive."""

    queue: Queue
    older_seconds: float = 86_400.0

    summary: str = "archive what has been done for longer than a day"
    unattended: bool = False
    """It may be millions of rows: somebody chooses the hour and the rate."""
    wants_name: bool = False
    rights: Rights = Rights.OPERATOR

    @property
    def command(self) -> str:
        """The verb."""
        words = Filters(older=self.older_seconds).words
        return command(self.queue, "archive", *(f"--filter={word}" for word in words))

    def plan(self, database: Database) -> Sequence[str]:
        """The verb's plan."""
        mover = Archive(_source(database, self.queue))
        return plan.make(database, mover, Filters(older=self.older_seconds)).lines()

    def run(self, database: Database) -> Sequence[str]:
        """Archive them."""
        mover = Archive(_source(database, self.queue))
        return _run(database, mover, Filters(older=self.older_seconds))


@dataclass(frozen=True)
class EndSession:
    """A session that holds rows is ended; they come back by its rollback."""

    queue: Queue
    key: Key
    older_seconds: float
    """Its transaction was older than this; a younger one is another and is left alone."""

    unattended: bool = False
    wants_name: bool = False
    rights: Rights = Rights.OPERATOR

    @property
    def summary(self) -> str:
        """What it does."""
        if isinstance(self.key, str):
            return f"roll the prepared transaction {self.key!r} back"
        return f"end session {self.key}, which rolls its transaction back"

    @property
    def command(self) -> str:
        """The verb."""
        return command(self.queue, "end-session", str(self.key))

    def plan(self, database: Database) -> Sequence[str]:
        """The verb's plan."""
        return end_session.plan(database, self.queue, str(self.key)).lines()

    def run(self, database: Database) -> Sequence[str]:
        """End it, if it is in its old transaction still."""
        planned = end_session.plan(database, self.queue, str(self.key))
        if (planned.session.transaction_seconds or 0.0) < self.older_seconds:
            return [f"{planned.label} is in another transaction by now: it was left alone"]
        return end_session.end_session(database, planned).lines()


@dataclass(frozen=True)
class Upgrade:
    """Code and columns become those of this console."""

    queue: Queue
    by_hand: bool
    """Somebody changed the code on purpose, perhaps: not without being asked."""

    summary: str = "put the code in place that this console ships (upgrade)"
    wants_name: bool = False
    rights: Rights = Rights.ADMIN

    @property
    def command(self) -> str:
        """The verb."""
        return command(self.queue, "upgrade")

    @property
    def unattended(self) -> bool:
        """Callers go on, and no message is touched."""
        return not self.by_hand

    def plan(self, database: Database) -> Sequence[str]:
        """What differs."""
        return upgrade.plan(database, self.queue).lines()

    def run(self, database: Database) -> Sequence[str]:
        """Upgrade."""
        done = upgrade.upgrade(database, self.queue)
        return [f"put in place: {difference.name}" for difference in done.differences]


@dataclass(frozen=True)
class Maintain:
    """What the measures call for: VACUUM, REINDEX, ANALYZE. Callers go on."""

    queue: Queue
    what: str

    unattended: bool = True
    wants_name: bool = False
    rights: Rights = Rights.OPERATOR

    @property
    def summary(self) -> str:
        """What it does."""
        return f"maintain: {self.what}"

    @property
    def command(self) -> str:
        """The verb."""
        return command(self.queue, "maintain")

    def plan(self, database: Database) -> Sequence[str]:
        """The verb's plan."""
        return maintain.plan(database, self.queue).lines()

    def run(self, database: Database) -> Sequence[str]:
        """Step by step."""
        return maintain.maintain(database, maintain.plan(database, self.queue)).lines()


@dataclass(frozen=True)
class MakeIndex:
    """Indexes and keys that are missing are made beside the traffic."""

    queue: Queue
    steps: tuple[maintain.Step, ...]
    waits: str = ""
    """For how long callers do, where that is known."""

    wants_name: bool = False
    rights: Rights = Rights.ADMIN
    command: str = ""

    @property
    def unattended(self) -> bool:
        """Not where the server can only make it with its table locked, for however short."""
        texts = [text for step in self.steps for text in step.statements]
        return all("CONCURRENTLY" in text or "ONLINE = ON" in text for text in texts)

    @property
    def summary(self) -> str:
        """What it does."""
        callers = "go on" if self.unattended else f"wait {self.waits}".rstrip()
        return f"make what is missing ({len(self.steps)}), while callers {callers}"

    def plan(self, database: Database) -> Sequence[str]:
        """The statements."""
        return self._planned(database).lines()

    def run(self, database: Database) -> Sequence[str]:
        """Make them, one by one."""
        return maintain.maintain(database, self._planned(database)).lines()

    def _planned(self, database: Database) -> maintain.MaintainPlan:
        measures = maintain.measure(database, self.queue)
        return maintain.MaintainPlan(self.queue, measures, self.steps)


NO_PAYLOAD = "the payload is missing: its row in the table of payloads is gone"
"""The error of a message that is set aside."""
_TRIES = 100
_TRY_AGAIN_SECONDS = 0.01


@dataclass(frozen=True)
class _Aside:
    selected: int
    done: int


@dataclass(frozen=True)
class Halves:
    """What the statement `halves` tells of a stretch of a split queue's messages."""

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


def halves_of(
    connection: Connection,
    product: Product,
    queue: Queue,
    stuck_after_seconds: float,
    **where: object,
) -> tuple[Halves, list[str]]:
    """A stretch, after a look at the owners of claims; those of the owners that are gone.

    Only of an owner who bound his claim to his session, as with any claim: see `release`.
    """
    statement, scope = sql.statements(product.name, "doctor")["halves"], queue.scope(product)
    where = {"stuck_after": stuck_after_seconds, **where}
    (found,) = sql.fetch(connection, Halves, statement, scope, gone=product.array([]), **where)
    owners = {text: owner_of(text) for text in texts(found.owners)}
    bound = {text: one.session for text, one in owners.items() if one is not None and one.bound}
    told = evidence_of(connection, product, bound.values())
    gone = [text for text, session in bound.items() if told.get(session) is Evidence.GONE]
    if gone:
        gone_ = product.array(gone)
        (found,) = sql.fetch(connection, Halves, statement, scope, gone=gone_, **where)
    return found, gone


@dataclass(frozen=True)
class SetAside:
    """Rows of a split queue that have no payload, ready or stuck, become errors; it goes on.

    Nothing that could be delivered is touched, nor what a living owner claimed a moment ago. The
    rows stay: with a payload from a backup they can be requeued.
    """

    queue: Queue
    count: int
    stuck_after_seconds: float
    stretches: tuple[int, ...] = (NEWEST,)
    """Where they are: the newest id of each stretch that has some."""

    unattended: bool = True
    wants_name: bool = False
    rights: Rights = Rights.OPERATOR
    command: str = ""

    @property
    def summary(self) -> str:
        """What it does."""
        return f"mark {counted(self.count, 'row')} without a payload as errors"

    def plan(self, database: Database) -> Sequence[str]:  # noqa: ARG002  # of the protocol
        """What it would do."""
        return [f"{self.summary}; with a payload from a backup they can be requeued"]

    def run(self, database: Database) -> Sequence[str]:
        """Each stretch its own transaction, with its audit."""
        aside = left = 0
        subject = audit.Subject.of(database, self.queue, "mend", self.summary)
        for newest in self.stretches:
            with audit.recorded(database, f"mend {self.queue.name!r}", subject) as act:
                n, held = self._stretch(act.connection, database, newest)
                ledger = Ledger(n.selected, n.done, n.done)
                act.record.batch(act.connection, ledger.require_balance())
                act.detail = f"{n.done} rows without a payload are errors"
            aside, left = aside + n.done, left + held
        told = f"errors now: {counted(aside, 'row')} without a payload"
        held_by_others = f"; {counted(left, 'row')} left, which sessions hold" if left else ""
        return [told + held_by_others]

    def _stretch(
        self, connection: Connection, database: Database, newest: int
    ) -> tuple[_Aside, int]:
        """What was set aside, and how many are left.

        A pop that meets such a row holds it for a moment, and pops meet it again and again: what
        they hold is skipped, and tried once more.
        """
        product, queue = database.product, self.queue
        aside = sql.statements(product.name, "doctor")["set_aside"]
        stuck_after = self.stuck_after_seconds
        where = {"newest": newest, "most": stretches.STRETCH}
        selected = done = 0
        found, gone = halves_of(connection, product, queue, stuck_after, **where)
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_TRY_AGAIN_SECONDS)
            (n,) = sql.fetch(
                connection,
                _Aside,
                aside,
                queue.scope(product),
                error=NO_PAYLOAD,
                stuck_after=stuck_after,
                gone=product.array(gone),
                **where,
            )
            selected, done = selected + n.selected, done + n.done
            found, gone = halves_of(connection, product, queue, stuck_after, **where)
            if not found.ready + found.stuck:
                break
        return _Aside(selected, done), found.ready + found.stuck
