"""The queues of a campaign, where their messages are, and the balance at the end."""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field

import psycopg
from psycopg.sql import SQL, Composed, Identifier

from console.catalog import Queue
from console.engines import open_database
from console.features.lake.lake import Lake
from console.features.lake.table import MessagesTable
from tests.faults.harness.ledger import Ledger, is_intact
from tests.tools.queues import install_queue

DOOMED = "doomed"
"""From this queue messages are purged for good. Only its own clients push to it, so the audit's
count can be compared with the missing messages."""
_RING = {"size": "400", "max_bytes": "300"}
QUEUES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "ring": ("ring", _RING),
    "ring in hand": ("ring", {**_RING, "in_hand": "on"}),
    "ring.kept": ("ring", {**_RING, "archive_at_pop": "on"}),
    "naive": ("naive", {}),
    "heap": ("heap", {}),
    "fifo": ("fifo", {}),
    "fifo strict": ("fifo", {"order": "strict"}),
    "fifo.kept": ("fifo", {"archive_at_pop": "on"}),
    "stack": ("stack", {}),
    "pending": ("pending", {"notify": "on"}),
    "pending.kept": ("pending", {"archive_at_pop": "on"}),
    'claim "ü"': ("claim", {}),
    "status": ("status", {}),
    "split": ("split", {}),
    "split two": ("split", {"dequeue": "two_step"}),
    DOOMED: ("heap", {}),
}
FEW = ("ring", "fifo.kept", 'claim "ü"')
"""For a campaign of some seconds."""

_COLUMN = {"naive": "message", "ring": "message", "status": "text_data"}
_ROWS = {"ring": "reference_count > 0"}
_READY = {
    "claim": "processing_started_at IS NULL AND errors IS NULL",
    "status": "status = 0",
    "split": "status = 0",
    "ring": "reference_count > 0",
}
_READY_IN_HAND = "claimed_at IS NULL AND done_at IS NULL"


def installed(url: str, names: Iterable[str]) -> dict[str, Queue]:
    """Install them in an empty database."""
    with closing(open_database(url)) as database:
        shapes = {name: QUEUES[name] for name in names}
        return {n: install_queue(database, n, shape, **o) for n, (shape, o) in shapes.items()}


def keeps_popped(queue: Queue) -> bool:
    """Whether a message's row stays after it was popped (and completed)."""
    return queue.design.name in {"status", "split"} or queue.options.get("archive_at_pop") == "on"


def in_tables(connection: psycopg.Connection, queue: Queue) -> list[str]:
    """The messages in a queue's own tables."""
    name = queue.design.name
    column = Identifier(_COLUMN.get(name, "payload"))
    if name == "split":
        query = _of(queue, "SELECT d.text_data FROM {meta} AS m JOIN {data} AS d USING (id)")
    else:
        rows = SQL(_ROWS.get(name, "true"))
        query = SQL("SELECT {} FROM {} WHERE {}").format(column, _table(queue), rows)
    found = [text for (text,) in connection.execute(query)]
    if queue.options.get("in_hand") == "on":
        found += [text for (text,) in connection.execute(_of(queue, "SELECT payload FROM {hand}"))]
    return found


def in_archive(connection: psycopg.Connection, queue: Queue) -> list[str]:
    """The messages in its archive."""
    return [text for (text,) in connection.execute(_of(queue, "SELECT payload FROM {archive}"))]


def ready(connection: psycopg.Connection, queue: Queue) -> int:
    """How many can be popped, counted row by row."""
    name = queue.design.name
    table = _table(queue, "_meta" if name == "split" else "")
    where = SQL(_READY.get(name, "true"))
    counts = [SQL("SELECT count(*) FROM {} WHERE {}").format(table, where)]
    if queue.options.get("in_hand") == "on":
        where = SQL(_READY_IN_HAND)
        counts += [SQL("SELECT count(*) FROM {} WHERE {}").format(_table(queue, "_in_hand"), where)]
    return sum(int(row[0]) for query in counts for row in connection.execute(query))


def in_lake(lake: Lake) -> list[str]:
    """The messages that readers find there."""
    table = MessagesTable.open(lake)
    if table is None:
        return []
    rows: list[str] = table._table.to_pyarrow_table(columns=["payload"])["payload"].to_pylist()
    return rows


def _table(queue: Queue, suffix: str = "") -> Identifier:
    return Identifier(queue.schema, f"{queue.name}{suffix}")


def _of(queue: Queue, text: str) -> Composed:
    names = {"meta": "_meta", "data": "_data", "hand": "_in_hand", "archive": "_archive"}
    return SQL(text).format(**{word: _table(queue, end) for word, end in names.items()})


@dataclass(frozen=True)
class Locations:
    """Where the messages are in the end."""

    queues: Counter[str]
    archives: Counter[str]
    lake: Counter[str]
    purged: int
    """Messages that the audit says were deleted for good, of DOOMED."""


@dataclass
class MessageCounts:
    """Counts of messages."""

    pushed: int = 0
    """Acknowledged."""
    popped: int = 0
    """Acknowledged, and completed if its queue requires that."""
    in_queues: int = 0
    in_archives: int = 0
    in_the_lake: int = 0
    purged_for_good: int = 0
    pushes_in_doubt: int = 0
    of_them_stored: int = 0
    pops_in_doubt: int = 0
    of_them_gone: int = 0
    lost: int = 0
    doubled: int = 0
    damaged: int = 0
    unexplained: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def balanced(self) -> bool:
        return not (self.lost or self.doubled or self.damaged or self.unexplained)


def balance(ledger: Ledger, locations: Locations) -> MessageCounts:
    """Each acknowledged message is popped once, or is in one location once.

    A pop in doubt names its messages, so it excuses no others; no client sends a message twice.
    """
    assert not ledger.unknown_in_doubt, "no client pops without a transaction here"
    remaining = locations.queues + locations.archives + locations.lake
    received = ledger.popped + remaining
    missing = ledger.acknowledged - received.keys()
    gone = missing & ledger.popped_in_doubt.keys()
    lost = {text for text in missing - gone if not text.startswith(DOOMED)}
    purged = missing - gone - lost
    twice = {text for text, times in received.items() if times > 1}
    twice |= {text for text, times in ledger.kept.items() if times > 1}
    stored = ledger.pushed_in_doubt.keys() & received.keys()
    counts = MessageCounts(
        pushed=len(ledger.acknowledged),
        popped=ledger.popped.total() + ledger.kept.total(),
        in_queues=locations.queues.total(),
        in_archives=locations.archives.total(),
        in_the_lake=locations.lake.total(),
        purged_for_good=locations.purged,
        pushes_in_doubt=ledger.pushed_in_doubt.total(),
        of_them_stored=len(stored),
        pops_in_doubt=ledger.popped_in_doubt.total(),
        of_them_gone=len(gone),
    )
    counts.lost = _report(counts, "lost", lost)
    counts.doubled = _report(counts, "doubled", twice)
    counts.damaged = _report(counts, "damaged", {text for text in received if not is_intact(text)})
    never = received.keys() - ledger.acknowledged - ledger.pushed_in_doubt.keys()
    counts.unexplained = _report(counts, "came and was never pushed", never)
    popped_and_gone = ledger.kept.keys() - remaining.keys()
    counts.unexplained += _report(counts, "popped, and no row of it left", popped_and_gone)
    # What was pushed in doubt, or popped in doubt, may have been purged instead.
    doubt = (ledger.pushed_in_doubt.keys() - stored) | gone
    most = len(purged) + sum(text.startswith(DOOMED) for text in doubt)
    if not len(purged) <= locations.purged <= most:
        counts.wrong.append(f"purged for good {locations.purged}, gone {len(purged)} to {most}")
        counts.lost += max(0, len(purged) - locations.purged)
        counts.unexplained += max(0, locations.purged - most)
    return counts


def _report(counts: MessageCounts, kind: str, messages: set[str]) -> int:
    if messages:
        some = ", ".join(repr(text[:60]) for text in sorted(messages)[:5])
        counts.wrong.append(f"{kind}: {len(messages)}, as {some}")
    return len(messages)


@dataclass
class Result:
    """The result of a campaign."""

    seed: int
    counts: MessageCounts
    operations: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(verb, how it ended)."""
    faults: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    """Transactions of clients that the server undid."""
    defects: Counter[str] = field(default_factory=Counter)
    descriptions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    folder: str = ""
    """With outputs worth reading; empty if the campaign passed."""

    @property
    def passed(self) -> bool:
        return self.counts.balanced and not self.defects

    def lines(self) -> list[str]:
        """The table."""
        counts = {k: v for k, v in asdict(self.counts).items() if k != "wrong"}
        lines = [f"seed {self.seed}", "messages"]
        lines += [f"  {name.replace('_', ' '):20}{count:12,}" for name, count in counts.items()]
        lines += [f"operations {sum(self.operations.values()):,}"]
        for verb in sorted({verb for verb, _ in self.operations}):
            ends = {end: n for (other, end), n in sorted(self.operations.items()) if other == verb}
            results = ", ".join(f"{end}: {n:,}" for end, n in ends.items())
            lines.append(f"  {verb:20}{sum(ends.values()):12,}  {results}")
        lines += [f"faults {sum(self.faults.values()):,}"]
        lines += [f"  {name:20}{count:12,}" for name, count in sorted(self.faults.items())]
        kinds = ("hangs", "secrets", "tracebacks", "exits", "services", "clients", "figures")
        lines += ["defects", *(f"  {kind:20}{self.defects[kind]:12,}" for kind in kinds)]
        others = {k: v for k, v in self.defects.items() if k not in kinds}
        lines += [f"  {kind:20}{count:12,}" for kind, count in others.items()]
        lines += [f"transactions undone by the server: {dict(self.refused)}", *self.notes]
        lines += [f"! {words}" for words in (*self.counts.wrong, *self.descriptions)]
        if self.folder:
            lines.append(f"seed {self.seed}: see {self.folder}")
        return lines
