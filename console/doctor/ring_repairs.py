"""What repairs a ring: without a lock where possible, else by renumbering it.

Right before it acts, each repair proves the finding again; it is one transaction with its audit.
None ever removes a message.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from console import sql
from console.actions import relay as relaying
from console.actions.short_locks import retry_while_busy
from console.catalog import Queue, audit
from console.catalog.audit import Ledger
from console.doctor.context import PATIENCE_SECONDS, check_context, counted
from console.doctor.number_proof import (
    LostKind,
    LostNumbers,
    Proof,
    Side,
    find_lost_numbers,
    format_ranges,
    prove,
    total,
)
from console.doctor.repairs import DoctorRepair, RepairCounts, relay
from console.engines import Database
from console.errors import BusyError
from console.formats import numbered
from console.rights import Rights


@contextmanager
def repair_transaction(
    database: Database, queue: Queue, summary: str
) -> Iterator[tuple[audit.RecordedAction, sql.Scope]]:
    """A transaction with its audit, which keeps relays out."""
    with _audited(database, queue, summary) as act:
        scope = queue.scope(database.product)
        sql.values(act.connection, int, f"{queue.design.name}.wait_for_relay", scope)
        yield act, scope


def _audited(
    database: Database, queue: Queue, summary: str
) -> AbstractContextManager[audit.RecordedAction]:
    subject = audit.Subject.of(database, queue, "repair", summary)
    return audit.recorded(database, f"repair the ring {queue.name!r}", subject)


@dataclass(frozen=True)
class _NumberRepair:
    statement: str
    action: str
    noun: str
    skipped: str
    """Why a number may be skipped: it needs no repair any more."""

    def describe(self, number: int) -> str:
        """`park 21 orphans`."""
        return self.action.format(numbered(number, self.noun))


_NUMBER_REPAIRS: Mapping[LostKind, _NumberRepair] = {
    LostKind.ORPHAN: _NumberRepair("park_orphans", "park {}", "orphan", "parked meanwhile"),
    LostKind.SPENT: _NumberRepair(
        "park_spent", "park {}", "consumed pop number", "parked meanwhile"
    ),
    LostKind.PARKED_HOLE: _NumberRepair(
        "drop_holes", "drop {}", "parked hole", "in another's hands"
    ),
    LostKind.HOLE: _NumberRepair("void_holes", "make {} void", "hole", "void meanwhile"),
    LostKind.VOID: _NumberRepair("drop_voids", "drop {}", "void number", "in another's hands"),
}


@dataclass(frozen=True)
class RepairNumbers(DoctorRepair):
    queue: Queue
    found: Mapping[LostKind, int]
    """What is to be repaired, and how many there were."""
    patience_seconds: float = PATIENCE_SECONDS
    proof: Proof | None = field(default=None, compare=False)
    """By which they were found."""
    within: Proof | None = field(default=None, compare=False)
    """Only numbers are repaired that this earlier proof has proven, too."""

    @property
    def summary(self) -> str:
        text = ", ".join(_NUMBER_REPAIRS[kind].describe(n) for kind, n in self.found.items())
        return text + f" of {self.queue.subscriber}" * bool(self.queue.subscriber)

    def lines(self, database: Database) -> Sequence[str]:
        with check_context(database, self.queue, patience_seconds=self.patience_seconds) as context:
            now = find_lost_numbers(context)
        lines = [
            f"{_NUMBER_REPAIRS[kind].describe(total(ranges))}: {format_ranges(ranges, most=20)}"
            for kind in self.found
            if (ranges := now.proven.get(kind, ()))
        ]
        return [*lines, *self._waits(now)]

    def run(self, database: Database) -> Sequence[str]:
        """Prove, then repair what is still proven. BusyError if it cannot be proven."""
        with check_context(database, self.queue, patience_seconds=self.patience_seconds) as context:
            proof = prove(context, {kind.side for kind in self.found})
        self._require(proof)
        if self.within is not None:
            proof = proof.within(self.within)
        done = []
        ledger = Ledger()
        with repair_transaction(database, self.queue, self.summary) as (act, scope):
            for kind in self.found:
                repair = _NUMBER_REPAIRS[kind]
                bound = {
                    Side.PUSH: {"drawn_push": proof.drawn_push},
                    Side.POP: {"drawn_pop": proof.drawn_pop},
                }[kind.side]
                statement = f"{self.queue.design.name}.{repair.statement}"
                counts = sql.row(act.connection, RepairCounts, statement, scope, **bound)
                ledger += counts.ledger(repair.skipped)
                done.append(repair.describe(counts.done))
            act.record.batch(act.connection, ledger.require_balance())
            act.detail = ", ".join(done)
        return done

    def _require(self, proof: Proof) -> None:
        if proof.drawers:
            raise BusyError(
                f"Could not repair the ring {self.queue.name!r}.",
                why="Its numbers may be held by "
                + "; ".join(drawer.line for drawer in proof.drawers),
                next_step="Nothing was changed. Wait until they end, or terminate them; then try "
                "again.",
            )

    def _waits(self, now: LostNumbers) -> list[str]:
        sides = {kind.side for kind in self.found}
        return [
            f"waits for {drawer.line}" for drawer in now.proof.drawers if Side(drawer.side) in sides
        ]


@dataclass(frozen=True)
class _ContentRepair:
    statement: str
    before: str
    after: str
    unattended: bool


_CONTENT_REPAIRS = {
    "content": _ContentRepair(
        "archive_contents",
        "move {} without a slot into the archive; restore brings them back",
        "moved into the archive: {} without a slot",
        unattended=True,
    ),
    "slot": _ContentRepair(
        "free_slots",
        "free {} whose message is lost; with a content from a backup a pop would take it",
        "freed: {} whose message is LOST",
        unattended=False,  # there may be such a backup
    ),
}


@dataclass(frozen=True)
class RepairContents(DoctorRepair):
    """One statement, which proves again what it changes."""

    queue: Queue
    kind: str
    count: int

    @property
    def unattended(self) -> bool:
        return _CONTENT_REPAIRS[self.kind].unattended

    @property
    def summary(self) -> str:
        return _CONTENT_REPAIRS[self.kind].before.format(counted(self.count, self.kind))

    def lines(self, database: Database) -> Sequence[str]:  # noqa: ARG002  # of the protocol
        return [self.summary]

    def run(self, database: Database) -> Sequence[str]:
        repair = _CONTENT_REPAIRS[self.kind]
        with repair_transaction(database, self.queue, self.summary) as (act, scope):
            action, statement = act.record.action_id, f"{self.queue.design.name}.{repair.statement}"
            counts = sql.row(act.connection, RepairCounts, statement, scope, action_id=action)
            ledger = counts.ledger("in another's hands")
            act.record.batch(act.connection, ledger.require_balance())
            act.detail = repair.after.format(counted(counts.done, self.kind))
        return [act.detail]


def add_slots(database: Database, queue: Queue, act: audit.RecordedAction) -> int:
    """Add an empty row for every slot without one, in the caller's transaction; how many."""
    product = database.product
    scope = queue.scope(product)
    added = sql.values(act.connection, int, f"{queue.design.name}.add_slots", scope)
    slots = product.array([str(slot) for slot in added])
    emptied = sql.values(
        act.connection, int, f"{queue.design.name}.empty_slots", scope, slots=slots
    )
    count = len(added)
    act.record.batch(act.connection, Ledger(count, count, len(emptied)).require_balance())
    return count


@dataclass(frozen=True)
class AddSlots(DoctorRepair):
    queue: Queue
    count: int

    rights = Rights.ADMIN

    @property
    def summary(self) -> str:
        if name := self.queue.subscriber:
            return f"add {numbered(self.count, 'row')} of {name} to popped"
        return f"add {numbered(self.count, 'empty slot')}"

    @property
    def unattended(self) -> bool:
        """Not for a subscriber, who may get messages again."""
        return not self.queue.subscriber

    def lines(self, database: Database) -> Sequence[str]:  # noqa: ARG002  # of the protocol
        if name := self.queue.subscriber:
            return [
                f"{self.summary}; it is not known whether it popped the messages in these slots: "
                f"{name} gets them, perhaps again, once the numbers that it drew are parked as "
                "orphans"
            ]
        return [f"{self.summary}; the messages in them were deleted with their rows and stay lost"]

    def run(self, database: Database) -> Sequence[str]:
        with repair_transaction(database, self.queue, self.summary) as (act, scope):
            if self.queue.subscriber:
                statement = f"{self.queue.design.name}.add_popped"
                counts = sql.row(act.connection, RepairCounts, statement, scope)
                ledger = counts.ledger("added meanwhile")
                act.record.batch(act.connection, ledger.require_balance())
                act.detail = f"{counts.done} rows of {self.queue.subscriber} added to popped"
                return [act.detail]
            count = add_slots(database, self.queue, act)
            act.detail = f"{count} empty slots added"
        return [f"added {numbered(count, 'empty slot')}"]


@dataclass(frozen=True)
class _Corrected:
    selected: int
    kept: int
    emptied: int


@dataclass(frozen=True)
class CorrectRing(DoctorRepair):
    """Correct slots and sequences, then relay, which alone would keep their contradictions.

    Callers wait meanwhile.
    """

    queue: Queue

    unattended = False
    requires_name = True
    rights = Rights.ADMIN

    @property
    def summary(self) -> str:
        return f"correct slots and sequences, then {relay(self.queue).summary}"

    def lines(self, database: Database) -> Sequence[str]:
        now, blockers = relaying.measure(database, self.queue)
        return [
            "every slot with a payload becomes a message again, all others are freed",
            "missing slots get an empty row; both sequences get their own step and cache again",
            "the push sequence is set above every number and id in the ring",
            *relaying.describe(self.queue, now, blockers, now.size),
        ]

    def run(self, database: Database) -> Sequence[str]:
        """BusyError, with nothing changed, if other sessions hold the ring for too long."""
        corrected = retry_while_busy(lambda: self._correct(database))
        relaid = relaying.relay(database, self.queue, None)
        return [*corrected, *relaid.lines(self.queue)]

    def _correct(self, database: Database) -> list[str]:
        design = self.queue.design.name
        with _audited(database, self.queue, "correct slots and sequences") as act:
            scope = self.queue.scope(database.product)
            sql.run(act.connection, f"{design}.lock_ring", scope)
            sql.run(act.connection, f"{design}.uncache", scope)
            next_push = sql.value(act.connection, int, f"{design}.raise_numbers", scope)
            counts = sql.row(act.connection, _Corrected, f"{design}.repair_slots", scope)
            written = counts.kept + counts.emptied
            ledger = Ledger(counts.selected, written, written)
            act.record.batch(act.connection, ledger.require_balance())
            added = add_slots(database, self.queue, act)
            act.detail = (
                f"{counts.kept} slots are messages again, {counts.emptied} are free, {added} were "
                f"added; next push {next_push}"
            )
            return [act.detail]
