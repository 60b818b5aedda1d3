"""What repairs a ring: without a lock where that can be, by numbering it anew where not.

Each repair proves again right before it acts, in the same words as the finding, and is one
transaction with its audit. None ever takes a message away.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from console import audit, sql
from console.actions.relay import retry_while_busy
from console.audit import Ledger
from console.catalog import Queue
from console.doctor.context import PATIENCE_SECONDS, check_context
from console.doctor.lost_numbers import LostKind, LostNumbers, Proof, Side, format_ranges, total
from console.doctor.repairs import DoctorRepair, RepairCounts, relay
from console.doctor.slot_map import find_lost_numbers, prove
from console.engines import Database
from console.errors import BusyError
from console.formats import numbered
from console.rights import Rights


@dataclass(frozen=True)
class _Way:
    """How one kind of lost number is repaired."""

    statement: str
    does: str
    to: str
    skipped: str
    """Why one may be skipped: it is well by now."""

    def words(self, number: int) -> str:
        """`park 21 orphans`."""
        return self.does.format(numbered(number, self.to))


_WAYS: Mapping[LostKind, _Way] = {
    LostKind.ORPHAN: _Way("park_orphans", "park {}", "orphan", "parked meanwhile"),
    LostKind.SPENT: _Way("park_spent", "park {}", "consumed pop number", "parked meanwhile"),
    LostKind.PARKED_HOLE: _Way("drop_holes", "drop {}", "parked hole", "in another's hands"),
    LostKind.HOLE: _Way("void_holes", "make {} void", "hole", "void meanwhile"),
    LostKind.VOID: _Way("drop_voids", "drop {}", "void number", "in another's hands"),
}


@contextmanager
def mending(
    database: Database, queue: Queue, summary: str
) -> Iterator[tuple[audit.Act, sql.Scope]]:
    """One transaction with its audit, which no relay comes into."""
    with _audited(database, queue, summary) as act:
        scope = queue.scope(database.product)
        sql.values(act.connection, int, f"{queue.design.name}.wait_for_relay", scope)
        yield act, scope


def _audited(database: Database, queue: Queue, summary: str) -> AbstractContextManager[audit.Act]:
    subject = audit.Subject.of(database, queue, "mend", summary)
    return audit.recorded(database, f"repair the ring {queue.name!r}", subject)


@dataclass(frozen=True)
class Mend(DoctorRepair):
    queue: Queue
    found: Mapping[LostKind, int]
    """What is to be repaired, and how many there were."""
    patience_seconds: float = PATIENCE_SECONDS

    @property
    def summary(self) -> str:
        words = ", ".join(_WAYS[kind].words(n) for kind, n in self.found.items())
        return words + f" of {self.queue.subscriber}" * bool(self.queue.subscriber)

    def plan(self, database: Database) -> Sequence[str]:
        with check_context(database, self.queue, patience_seconds=self.patience_seconds) as context:
            now = find_lost_numbers(context)
        lines = []
        for kind in self.found:
            runs = now.proven.get(kind, ())
            if runs:
                does = _WAYS[kind].words(total(runs))
                lines.append(f"{does}: {format_ranges(runs, most=20)}")
        return [*lines, *self._left(now)] or ["nothing is left to repair"]

    def run(self, database: Database) -> Sequence[str]:
        """Prove, then repair what is still proven. BusyError where it cannot be proven."""
        with check_context(database, self.queue, patience_seconds=self.patience_seconds) as context:
            proof = prove(context, {kind.side for kind in self.found})
        self._require(proof)
        told = []
        ledger = Ledger()
        with mending(database, self.queue, self.summary) as (act, scope):
            for kind in self.found:
                way = _WAYS[kind]
                bound = {
                    Side.PUSH: {"drawn_push": proof.drawn_push},
                    Side.POP: {"drawn_pop": proof.drawn_pop},
                }[kind.side]
                statement = f"{self.queue.design.name}.{way.statement}"
                n = sql.row(act.connection, RepairCounts, statement, scope, **bound)
                ledger += n.ledger(way.skipped)
                told.append(way.words(n.done))
            act.record.batch(act.connection, ledger.require_balance())
            act.detail = ", ".join(told)
        return told

    def _require(self, proof: Proof) -> None:
        if proof.drawers:
            raise BusyError(
                f"Could not repair the ring {self.queue.name!r}.",
                why="Its numbers may be held by "
                + "; ".join(drawer.line for drawer in proof.drawers),
                next_step="Nothing was changed. Wait until they end, or terminate them; then try "
                "again.",
            )

    def _left(self, now: LostNumbers) -> list[str]:
        sides = {kind.side for kind in self.found}
        return [
            f"waits for {drawer.line}" for drawer in now.proof.drawers if Side(drawer.side) in sides
        ]


def add_slots(database: Database, queue: Queue, act: audit.Act) -> int:
    """Give every slot without a row an empty one, in the caller's transaction; how many."""
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
        name = self.queue.subscriber
        if name:
            return f"add {numbered(self.count, 'row')} of {name} to popped"
        return f"add {numbered(self.count, 'empty slot')}"

    @property
    def unattended(self) -> bool:
        """Not where a subscriber may get again what it has popped."""
        return not self.queue.subscriber

    def plan(self, database: Database) -> Sequence[str]:  # noqa: ARG002  # of the protocol
        name = self.queue.subscriber
        if name:
            return [
                f"{self.summary}; whether it popped what lies in these slots is not known: {name} "
                "gets it, again perhaps, once the numbers that it drew are parked as orphans"
            ]
        return [f"{self.summary}; the messages in them were deleted with their rows and stay lost"]

    def run(self, database: Database) -> Sequence[str]:
        with mending(database, self.queue, self.summary) as (act, scope):
            if self.queue.subscriber:
                n = sql.row(
                    act.connection, RepairCounts, f"{self.queue.design.name}.add_popped", scope
                )
                ledger = n.ledger("added meanwhile")
                act.record.batch(act.connection, ledger.require_balance())
                act.detail = f"{n.done} rows of {self.queue.subscriber} added to popped"
                return [act.detail]
            count = add_slots(database, self.queue, act)
            act.detail = f"{count} empty slots added"
        return [f"added {numbered(count, 'empty slot')}"]


@dataclass(frozen=True)
class _Straightened:
    selected: int
    kept: int
    emptied: int


@dataclass(frozen=True)
class CorrectRing(DoctorRepair):
    """Put slots and sequences straight, then relay, which alone would not see that they contradict
    themselves. Callers wait meanwhile."""

    queue: Queue

    unattended = False
    requires_name = True
    rights = Rights.ADMIN

    @property
    def summary(self) -> str:
        return f"correct slots and sequences, then {relay(self.queue).summary}"

    def plan(self, database: Database) -> Sequence[str]:
        return [
            "every slot with a payload becomes a message again, all others are freed",
            "missing slots get an empty row; both sequences are numbered one by one",
            "the push sequence is set above every number and id in the ring",
            *relay(self.queue).plan(database),
        ]

    def run(self, database: Database) -> Sequence[str]:
        """Do it; BusyError, and nothing changed, while others hold the ring for too long."""
        straightened = retry_while_busy(lambda: self._straighten(database))
        return [*straightened, *relay(self.queue).run(database)]

    def _straighten(self, database: Database) -> list[str]:
        with _audited(database, self.queue, "correct slots and sequences") as act:
            scope = self.queue.scope(database.product)
            sql.run(act.connection, f"{self.queue.design.name}.lock_ring", scope)
            sql.run(act.connection, f"{self.queue.design.name}.uncache", scope)
            next_push = sql.value(
                act.connection, int, f"{self.queue.design.name}.raise_numbers", scope
            )
            n = sql.row(
                act.connection, _Straightened, f"{self.queue.design.name}.repair_slots", scope
            )
            ledger = Ledger(n.selected, n.kept + n.emptied, n.kept + n.emptied)
            act.record.batch(act.connection, ledger.require_balance())
            added = add_slots(database, self.queue, act)
            act.detail = (
                f"{n.kept} slots are messages again, {n.emptied} are free, {added} were added; "
                f"next push {next_push}"
            )
            return [act.detail]
