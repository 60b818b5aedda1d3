"""A ring with content=apart: contents without a slot, and slots without their content.

A push writes both and a pop removes both, each in one transaction: only somebody who writes past
the ring's functions, or half a restored backup, leaves one without the other. So nothing is waited
for: what is proven of one moment stays so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from console import audit, sql
from console.audit import Ledger
from console.catalog import Queue
from console.doctor.examination import Examination, counted
from console.doctor.finding import Code, Finding
from console.doctor.repairs import OwnRepair
from console.doctor.ring_proof import gated
from console.doctor.ring_repairs import VERB
from console.engines import Database
from console.monitor.limits import Severity

SLOT = Code(
    "slot_without_content",
    Severity.CRITICAL,
    "slots whose content is gone: their messages are lost, and no pop takes them",
    judgement="insert the contents from a backup: then pops take them",
    repair="doctor --fix --code: it frees these slots, and counts what is lost",
)
CONTENT = Code(
    "content_without_slot",
    Severity.WARNING,
    "contents without a slot: messages that no pop will return",
    repair="doctor --fix: it moves them into the archive, for restore",
)
_CAUSE = "one of the two was deleted or restored by hand, past the ring's own functions"


@dataclass(frozen=True)
class AstrayRow:
    kind: str
    id: int
    found: int


@dataclass(frozen=True)
class _Way:
    """How the half of one kind is repaired."""

    statement: str
    does: str
    did: str
    noun: str
    unattended: bool


_WAYS = {
    "content": _Way(
        "put_away_contents",
        "move {} without a slot into the archive; restore brings them back",
        "moved into the archive: {} without a slot",
        "content",
        unattended=True,
    ),
    "slot": _Way(
        "free_slots",
        "free {} whose message is lost; with a content from a backup a pop would take it",
        "freed: {} whose message is LOST",
        "slot",
        unattended=False,  # somebody may have that backup
    ),
}


@dataclass(frozen=True)
class _Count:
    selected: int
    done: int


@dataclass(frozen=True)
class MendHalves(OwnRepair):
    """One statement in one transaction, which proves again what it changes."""

    queue: Queue
    kind: str
    count: int

    @property
    def unattended(self) -> bool:
        return _WAYS[self.kind].unattended

    @property
    def summary(self) -> str:
        return self._words(_WAYS[self.kind].does, self.count)

    def plan(self, database: Database) -> Sequence[str]:  # noqa: ARG002  # of the protocol
        return [self.summary]

    def run(self, database: Database) -> Sequence[str]:
        way, design = _WAYS[self.kind], self.queue.design.name
        subject = audit.Subject.of(database, self.queue, VERB, self.summary)
        with audit.recorded(database, f"repair the ring {self.queue.name!r}", subject) as act:
            scope = self.queue.scope(database.product)
            sql.values(act.connection, int, f"{design}.gate", scope)
            action = act.record.action_id
            statement = f"{design}.{way.statement}"
            n = sql.row(act.connection, _Count, statement, scope, action_id=action)
            left = n.selected - n.done
            skipped = {"in another's hands": left} if left else {}
            ledger = Ledger(n.selected, n.done, n.done, skipped)
            act.record.batch(act.connection, ledger.require_balance())
            act.detail = self._words(way.did, n.done)
        return [act.detail]

    def _words(self, text: str, count: int) -> str:
        return text.format(counted(count, _WAYS[self.kind].noun))


def astray(examination: Examination) -> Iterator[Finding]:
    queue = examination.queue
    if not queue.partitions:
        return
    with gated(examination) as connection:
        rows = examination.fetch(connection, AstrayRow, "contents_astray")
    slots = [row for row in rows if row.kind == "slot"]
    if slots:
        count = slots[0].found
        yield Finding(
            SLOT,
            f"{counted(count, 'slot')} without a content: lost messages",
            evidence={"count": count, "ids": [row.id for row in slots]},
            cause=_CAUSE,
            consequence="their messages are lost; a slot that nobody frees takes a number at "
            "each lap",
            repair=MendHalves(queue, "slot", count),
        )
    contents = [row for row in rows if row.kind == "content"]
    if contents:
        count = contents[0].found
        yield Finding(
            CONTENT,
            f"{counted(count, 'content')} without a slot",
            evidence={"count": count, "ids": [row.id for row in contents]},
            cause=_CAUSE,
            consequence="no pop returns these messages, and nothing else removes them",
            repair=MendHalves(queue, "content", count),
        )
