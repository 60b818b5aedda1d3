"""What sessions do to a queue: rows held, heads behind dead rows, starvation; and missing keys."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from console import sql
from console.actions import end_session, maintain
from console.catalog import Kind
from console.designs import Order
from console.doctor import indexes
from console.doctor.checks import (
    ago,
    ask,
    can_ask,
    checked,
    counted,
    follows,
    shortened,
    some,
)
from console.doctor.finding import Code, Finding, Severity
from console.doctor.look import Look
from console.doctor.repairs import EndSession, Maintain, MakeIndex
from console.errors import TooSlowError
from console.formats import duration
from console.monitor.activity import Session
from console.monitor.waits import HorizonRow

STARVED_SECONDS = 3600.0
"""From here on the bottom of a stack starves, where no limit is set for the age."""
DEAD_ROWS = 10_000
"""So many dead rows are in the way, unless they are what was popped a moment ago..."""
KEPT_TRANSACTIONS = 10_000
"""... which a replication slot keeps from so many transactions on."""

ROWS_HELD = Code(
    "rows_held",
    Severity.WARNING,
    "a session holds rows of the queue in a transaction older than the threshold",
)
PREPARED = Code(
    "prepared_forgotten",
    Severity.WARNING,
    "a prepared transaction older than the threshold holds rows of the queue",
)
STARVED = Code(
    "starved", Severity.WARNING, "the bottom of a stack waits while what came later is popped"
)
DEAD_HEAD = Code(
    "dead_head",
    Severity.WARNING,
    "the head of the queue lies behind dead rows that somebody keeps from being cleared away",
)
KEY_MISSING = Code(
    "key_missing",
    Severity.WARNING,
    "the key of a table is gone: nothing keeps its ids apart, and pops read all rows",
)

CODES: tuple[Code, ...] = (ROWS_HELD, PREPARED, STARVED, DEAD_HEAD, KEY_MISSING)


def examine(look: Look) -> Iterator[Finding]:
    """Every finding; what cannot be told goes to `look.unseen`."""
    if look.queue.design.shape == "broker":
        return
    yield from checked(look, "sessions that hold rows", _holders)
    yield from checked(look, "starvation", _starved)
    yield from checked(look, "dead rows at the head", _dead_head)
    yield from checked(look, "keys", _keys)


def _holders(look: Look) -> Iterator[Finding]:
    missing = look.database.capabilities.missing
    if why := missing.get("waits") or missing.get("sessions"):
        look.unseen.append(f"sessions that hold rows: {why}")
        return
    what = "sessions that hold rows"
    if can_ask(look, what, "recovering") and follows(look, what):
        return
    limit = look.thresholds.stuck_after_seconds
    for session in end_session.holding(look.database, look.queue, limit):
        prepared = isinstance(session.key, str)
        yield Finding(
            PREPARED if prepared else ROWS_HELD,
            f"{shortened(_who(session), 75)} holds rows for "
            + duration(session.transaction_seconds or 0.0),
            evidence=_session(session),
            cause=_why_held(session),
            consequence=_consequence(look),
            since=ago(session.transaction_seconds),
            repair=EndSession(look.queue, session.key, limit),
        )


def _who(session: Session) -> str:
    if isinstance(session.key, str):
        return f"prepared transaction {session.key!r} of {session.user or '?'}"
    who = f"{session.user or '?'}, {session.application or '?'}, {session.client or 'local'}"
    return f"session {session.key} ({who})"


def _session(session: Session) -> dict[str, object]:
    return {
        "session": session.key,
        "user": session.user,
        "application": session.application,
        "client": session.client,
        "state": session.state,
        "wait": session.wait,
        "waits_for": session.waits_for,
        "blocked_by": list(session.blocked_by),
        "transaction_seconds": session.transaction_seconds,
        "statement_seconds": session.statement_seconds,
        "locks": sorted({f"{lock.object}: {lock.mode}" for lock in session.locks if lock.granted}),
    }


def _why_held(session: Session) -> str:
    if isinstance(session.key, str):
        return "its transaction manager forgot it, or is down"
    if session.waits_for:
        others = ", ".join(map(str, session.blocked_by)) or "somebody"
        return f"it waits for {session.waits_for}, which {others} holds"
    if (session.state or "").startswith("idle in transaction"):
        return "its client has a transaction open and sends nothing"
    return "its transaction has not ended: " + (session.wait or session.state or "state unknown")


def _consequence(look: Look) -> str:
    design = look.queue.design.shape
    if design == "naive":
        return "if it holds the head, every other pop waits until it ends"
    if design == "status" or look.queue.options.get("dequeue") == "two_step":
        return "if it holds the next batch, the other consumers wait until it ends"
    if look.queue.design.order_with(look.queue.options) is Order.STRICT:
        return "nobody else pops (or pushes) until it ends"
    if design == "ring":
        return "its numbers are undecided until it ends, and a relay waits for it"
    return "nobody gets the rows that it took until it ends; a rollback brings them back"


@dataclass(frozen=True)
class _Bottom:
    id: str
    seconds: float
    overtaking: int


def _starved(look: Look) -> Iterator[Finding]:
    queue = look.queue
    if queue.design.order_with(queue.options) is not Order.LIFO or queue.kind is not Kind.INSTALLED:
        return
    if not can_ask(look, "starvation", "bottom"):
        return
    limit = look.thresholds.age_seconds.warning or STARVED_SECONDS
    for bottom in ask(look, _Bottom, "bottom"):
        popped = look.snapshot is not None and bool(look.snapshot.pop_per_second)
        if bottom.seconds < limit or not (bottom.overtaking or popped):
            continue
        yield Finding(
            STARVED,
            f"the bottom waits for {duration(bottom.seconds)} while what came later is popped",
            evidence={
                "id": bottom.id,
                "age_seconds": bottom.seconds,
                "limit_seconds": limit,
                "overtaken_by_at_least": bottom.overtaking,
                "ready": None if look.snapshot is None else look.snapshot.ready,
                "pop_per_second": None if look.snapshot is None else look.snapshot.pop_per_second,
            },
            cause="a stack pops the newest first, and its consumers never get to the bottom of it",
            consequence="the oldest messages wait as long as more is pushed than popped. Add "
            "consumers, or use a fifo where every message has to come in time",
            since=ago(bottom.seconds),
        )


def _dead_head(look: Look) -> Iterator[Finding]:
    """Dead rows of a moment are healthy; those that somebody keeps only grow."""
    if not look.database.capabilities.counts_rows:
        look.unseen.append("dead rows at the head: this server does not count them")
        return
    measures = maintain.measure(look.database, look.queue)
    tables = _dead_rows(look, measures)
    dead = max(tables.values(), default=0)
    slow = () if look.snapshot is None else look.snapshot.slow
    keepers = [row for row in measures.horizon if _keeps(row, look)]
    # Vacuum comes at that many of itself, and a busy machine is slow for other reasons too.
    if dead < (DEAD_ROWS if keepers else 10 * DEAD_ROWS) or not (slow or keepers):
        return
    keeper = keepers[0] if keepers else None
    what = f"{counted_rows(dead)} not cleared away"
    yield Finding(
        DEAD_HEAD,
        f"{what}" + (f", kept by {holder(keeper)}" if keeper else "; looks at the head are slow"),
        evidence={
            "dead_rows": {name: count for name, count in tables.items() if count},
            "slow": list(slow),
            "kept_by": [vars(row) for row in keepers],
        },
        cause=f"{holder(keeper)} may still read them, so the server leaves them"
        if keeper
        else "the server has not come to them",
        consequence="every pop reads over them to the first message that lives, slower with each",
        since=ago(keeper.seconds) if keeper else None,
        repair=None if keeper or not measures.dead_rows else Maintain(look.queue, "vacuum"),
    )


@dataclass(frozen=True)
class _Ghosts:
    name: str
    dead_rows: int


def _dead_rows(look: Look, measures: maintain.Measures) -> dict[str, int]:
    """By table. An engine that keeps no count of them has to look for its ghosts."""
    if "ghosts" in sql.statements(look.database.product.name, "doctor"):
        return {row.name: row.dead_rows for row in ask(look, _Ghosts, "ghosts")}
    return {table.name: table.dead_rows for table in measures.tables}


def _keeps(row: HorizonRow, look: Look) -> bool:
    if row.seconds is None:
        return (row.transactions or 0) >= KEPT_TRANSACTIONS
    return row.seconds >= look.thresholds.stuck_after_seconds


def counted_rows(dead: int) -> str:
    """As the server estimates them."""
    return f"≈{dead:,} dead rows"


def holder(row: HorizonRow | None) -> str:
    """Who keeps dead rows, in words."""
    if row is None:
        return "nobody"
    since = "" if row.seconds is None else f", open for {duration(row.seconds)}"
    if row.session_id is None:
        return f"{row.kind} {row.name!r}{since}"
    return f"{row.kind} {row.session_id} of {row.name or '?'}{since}"


MAKE_KEY = {
    "postgresql": "",
    "mssql": ". Make it again as the design's script has it (dbq-console install ... --print "
    "--engine mssql): callers wait meanwhile, unless the edition takes ONLINE = ON",
}
"""Where the doctor does not make it himself."""


@dataclass(frozen=True)
class Doubled:
    """One key that several rows have."""

    table_name: str
    key: str
    found: int


def _keys(look: Look) -> Iterator[Finding]:
    queue, product = look.queue, look.database.product
    if queue.kind is not Kind.INSTALLED or not can_ask(look, "keys", "indexes"):
        return
    wanted = [one for one in indexes.wanted(product, queue) if one.is_key]
    there = indexes.there(look, [one.table for one in wanted])
    gone = [one for one in wanted if not any(index.keeps(one) for index in there)]
    missing = indexes.on_tables(look, gone)
    if not missing:
        return
    doubled = _doubled(look, missing)
    words = [f"{one.table_name} has {one.key} {one.found:,} times" for one in doubled]
    stands = f"; in its way: {some(words, most=1)}" if doubled else ""
    yield Finding(
        KEY_MISSING,
        f"{counted(len(missing), 'key')} missing: "
        + shortened(some([one.label for one in missing], most=1), 50)
        + shortened(stands, 60),
        evidence={
            "missing": [[one.table, list(one.columns)] for one in missing],
            "doubled": [[one.table_name, one.key, one.found] for one in doubled],
        },
        cause="dropped, or the table was made anew without it",
        consequence="two rows may get one id, and what finds a row by its key or in its order "
        "reads the whole table"
        + ("; delete all but one of the rows that have one key first" if doubled else "")
        + MAKE_KEY.get(product.name, ""),
        repair=None if doubled or product.name != "postgresql" else _made(look, missing),
    )


def _doubled(look: Look, missing: Sequence[indexes.Wanted]) -> list[Doubled]:
    """What stands in the way of a key. A table that is too long for a look has none told."""
    tables = look.database.product.array(sorted({one.table for one in missing}))
    try:
        return ask(look, Doubled, "doubled", tables=tables)
    except TooSlowError:
        look.unseen.append("keys: it took too long to look for rows that have the same one")
        return []


def _made(look: Look, missing: Sequence[indexes.Wanted]) -> MakeIndex:
    schema = look.queue.schema
    steps = tuple(indexes.key_step(look.database.product, schema, one) for one in missing)
    return MakeIndex(look.queue, steps, waits="a second at most")
