"""What mends a ring: without a lock where that can be, by numbering it anew where not.

Each repair proves again right before it acts, in the same words as the finding, and is one
transaction with its audit. None ever takes a message away.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from console import sql
from console.actions import audit
from console.actions import relay as relaying
from console.actions.insist import insist
from console.actions.ledger import Ledger
from console.catalog import Queue
from console.doctor.checks import command
from console.doctor.look import PATIENCE_SECONDS, looking
from console.doctor.ring_grace import losses, prove
from console.doctor.ring_proof import Astray, Gate, Losses, Proof, Side, spelled, total
from console.engines import Database
from console.errors import BusyError
from console.rights import Rights

VERB = "mend"
"""As the audit has it."""


@dataclass(frozen=True)
class _Way:
    """How one kind of lost number is mended."""

    statement: str
    does: str
    skipped: str
    """Why one may be left alone: it is well by now."""


_WAYS: Mapping[Astray, _Way] = {
    Astray.ORPHAN: _Way("park_orphans", "park {} orphans", "parked meanwhile"),
    Astray.SPENT: _Way("park_spent", "park {} spent pop numbers", "parked meanwhile"),
    Astray.PARKED_HOLE: _Way("drop_holes", "forget {} parked holes", "in another's hands"),
    Astray.HOLE: _Way("void_holes", "make {} holes void", "void meanwhile"),
    Astray.VOID: _Way("drop_voids", "forget {} void numbers", "in another's hands"),
}


@dataclass(frozen=True)
class _Count:
    selected: int
    done: int


@dataclass(frozen=True)
class Mend:
    """Numbers put right one by one, while traffic goes on. Implements `Repair`."""

    queue: Queue
    found: Mapping[Astray, int]
    """What is to be mended, and how many there were."""
    patience_seconds: float = PATIENCE_SECONDS

    unattended: bool = True
    wants_name: bool = False
    rights: Rights = Rights.OPERATOR
    command: str = ""

    @property
    def summary(self) -> str:
        """`park 21 orphans`."""
        return ", ".join(_WAYS[kind].does.format(f"{n:,}") for kind, n in self.found.items())

    def plan(self, database: Database) -> Sequence[str]:
        """Which numbers it would mend as things stand."""
        with looking(database, self.queue, patience_seconds=self.patience_seconds) as look:
            now = losses(look)
        lines = []
        for kind in self.found:
            runs = now.proven.get(kind, ())
            if runs:
                does = _WAYS[kind].does.format(f"{total(runs):,}")
                lines.append(f"{does}: {spelled(runs, most=20)}")
        return [*lines, *self._left(now)] or ["nothing is left to mend"]

    def run(self, database: Database) -> Sequence[str]:
        """Prove, then mend what is still proven. BusyError where it cannot be proven."""
        with looking(database, self.queue, patience_seconds=self.patience_seconds) as look:
            proof = prove(look, {kind.side for kind in self.found})
        self._require(proof)
        told = []
        subject = audit.Subject.of(database, self.queue, VERB, self.summary)
        doing = f"mend the ring {self.queue.name!r}"
        with audit.recorded(database, doing, subject) as act:
            product = database.product
            ring = sql.statements(product.name, self.queue.design.name)
            scope = self.queue.scope(product)
            sql.fetch(act.connection, Gate, ring["gate"], scope)
            ledger = Ledger()
            for kind in self.found:
                way = _WAYS[kind]
                bound = {
                    Side.PUSH: {"drawn_push": proof.drawn_push},
                    Side.POP: {"drawn_pop": proof.drawn_pop},
                }[kind.side]
                (n,) = sql.fetch(act.connection, _Count, ring[way.statement], scope, **bound)
                left = n.selected - n.done
                ledger += Ledger(n.selected, n.done, n.done, {way.skipped: left} if left else {})
                told.append(way.does.format(f"{n.done:,}"))
            act.record.batch(act.connection, ledger.require_balance())
            act.detail = ", ".join(told)
        return told

    def _require(self, proof: Proof) -> None:
        if proof.drawers:
            raise BusyError(
                f"Could not mend the ring {self.queue.name!r}.",
                why="Its numbers may be in the hands of "
                + "; ".join(drawer.line for drawer in proof.drawers),
                next_step="Nothing was changed. Wait until they end, or end them; then again.",
            )

    def _left(self, now: Losses) -> list[str]:
        sides = {kind.side for kind in self.found}
        return [
            f"waits for {drawer.line}" for drawer in now.proof.drawers if Side(drawer.side) in sides
        ]


@dataclass(frozen=True)
class _Slot:
    slot: int


def add_slots(database: Database, queue: Queue, act: audit.Act) -> int:
    """Give every slot without a row an empty one, in the caller's transaction; how many."""
    product = database.product
    ring, scope = sql.statements(product.name, queue.design.name), queue.scope(product)
    added = [row.slot for row in sql.fetch(act.connection, _Slot, ring["add_slots"], scope)]
    slots = product.array([str(slot) for slot in added])
    emptied = sql.fetch(act.connection, _Slot, ring["empty_slots"], scope, slots=slots)
    count = len(added)
    act.record.batch(act.connection, Ledger(count, count, len(emptied)).require_balance())
    return count


@dataclass(frozen=True)
class AddSlots:
    """Slots whose rows were deleted come back empty. Implements `Repair`."""

    queue: Queue
    count: int

    unattended: bool = True
    wants_name: bool = False
    rights: Rights = Rights.ADMIN
    command: str = ""

    @property
    def summary(self) -> str:
        """What it does."""
        return f"add {self.count:,} empty slots"

    def plan(self, database: Database) -> Sequence[str]:  # noqa: ARG002  # of the protocol
        """What it would do."""
        return [f"{self.summary}; what lay in them went with their rows and stays lost"]

    def run(self, database: Database) -> Sequence[str]:
        """Add them."""
        subject = audit.Subject.of(database, self.queue, VERB, self.summary)
        with audit.recorded(database, f"mend the ring {self.queue.name!r}", subject) as act:
            product = database.product
            ring = sql.statements(product.name, self.queue.design.name)
            scope = self.queue.scope(product)
            sql.fetch(act.connection, Gate, ring["gate"], scope)
            count = add_slots(database, self.queue, act)
            act.detail = f"{count} empty slots added"
        return [f"added {count:,} empty slots"]


@dataclass(frozen=True)
class _Straightened:
    selected: int
    kept: int
    emptied: int


@dataclass(frozen=True)
class _Next:
    next_push: int


@dataclass(frozen=True)
class Renumber:
    """Put slots and sequences straight, then relay. Callers wait meanwhile. Implements `Repair`."""

    queue: Queue
    straighten: bool = False
    """Whether slots or sequences contradict themselves; a relay alone would not see that."""

    unattended: bool = False
    wants_name: bool = True
    rights: Rights = Rights.ADMIN

    @property
    def summary(self) -> str:
        """What it does."""
        first = "put slots and sequences straight, then " if self.straighten else ""
        return f"{first}number all live messages anew (relay)"

    @property
    def command(self) -> str:
        """The relay; what has to be put straight before it, only the doctor does."""
        if self.straighten:
            return ""
        return command(self.queue, "relay", "--yes", self.queue.name)

    def plan(self, database: Database) -> Sequence[str]:
        """What it would do, and whom it would wait for."""
        first = []
        if self.straighten:
            first = [
                "every slot with a payload becomes a message again, every other one free",
                "slots without a row get an empty one; both sequences hand out one number at once",
                "the push sequence goes above every number and id that the ring knows",
            ]
        return [*first, *relaying.plan(database, self.queue, None).lines()]

    def run(self, database: Database) -> Sequence[str]:
        """Do it; BusyError, and nothing changed, while others hold the ring for too long."""
        told = insist(lambda: self._straighten(database)) if self.straighten else []
        done = relaying.relay(database, self.queue, None)
        return [*told, f"relaid: {done.live:,} live messages, numbers from {done.base:,}"]

    def _straighten(self, database: Database) -> list[str]:
        subject = audit.Subject.of(database, self.queue, VERB, "put slots and sequences straight")
        with audit.recorded(database, f"mend the ring {self.queue.name!r}", subject) as act:
            product = database.product
            ring = sql.statements(product.name, self.queue.design.name)
            scope = self.queue.scope(product)
            sql.run_script(act.connection, ring["alone"], scope)
            sql.run_script(act.connection, ring["uncache"], scope)
            (raised,) = sql.fetch(act.connection, _Next, ring["lift"], scope)
            (n,) = sql.fetch(act.connection, _Straightened, ring["straighten"], scope)
            ledger = Ledger(n.selected, n.kept + n.emptied, n.kept + n.emptied)
            act.record.batch(act.connection, ledger.require_balance())
            added = add_slots(database, self.queue, act)
            act.detail = (
                f"{n.kept} slots are messages again, {n.emptied} are free, {added} were added; "
                f"next push {raised.next_push}"
            )
            return [act.detail]
