"""Rows held by sessions, starvation, dead rows at the head."""

from collections.abc import Iterator
from dataclasses import dataclass

from console import sql
from console.actions import end_session, maintenance
from console.catalog import Kind, in_use
from console.designs import Order
from console.doctor.context import CheckContext, CheckGroup, shortened
from console.doctor.finding import Code, Finding
from console.doctor.repairs import maintain_queue, terminate_session
from console.formats import duration
from console.monitor.activity import Session
from console.monitor.blocked import blocked_in, stopped_too
from console.monitor.limits import Severity
from console.monitor.waits import HorizonRow

STARVED_SECONDS = 3600.0
"""Age at which the bottom of a stack starves, unless a limit is set for the age."""
DEAD_ROWS = 10_000
"""With fewer dead rows they may just be the latest pops."""
KEPT_TRANSACTIONS = 10_000
"""A replication slot keeps dead rows if it is this many transactions behind."""

LOCKED_SECONDS = 5.0
"""DDL that waits for less is over soon, or its caller's lock timeout ends it."""

LOCKED = Code(
    "table_locked",
    Severity.CRITICAL,
    "a session stops all others at the queue's table: DDL that waits for it, or its own",
    repair="end-session, of the session that all others wait for",
)
ROWS_HELD = Code(
    "rows_held",
    Severity.WARNING,
    "a session holds rows of the queue in a transaction older than the threshold",
    repair="end-session",
)
PREPARED = Code(
    "prepared_forgotten",
    Severity.WARNING,
    "a prepared transaction older than the threshold holds rows of the queue",
    repair="end-session, which rolls it back",
)
STARVED = Code(
    "starved",
    Severity.WARNING,
    "the bottom of a stack waits while later messages are popped",
    judgement="add consumers, or use a fifo if every message must be popped in time",
)
DEAD_HEAD = Code(
    "dead_head",
    Severity.WARNING,
    "the head of the queue is behind dead rows that cannot be removed yet",
    judgement="what keeps them may be in use: have its owner end it, or drop the slot",
    repair="maintain (doctor --fix), once nothing keeps the dead rows",
)


def _check_locked(context: CheckContext) -> Iterator[Finding]:
    """Not what waits for a moment only, unless it keeps the figures from being read."""
    seen = context.snapshot
    for key, one in blocked_in(context.activity, [context.queue]).items():
        if one.waited_seconds < LOCKED_SECONDS and not (seen and seen.problem):
            continue
        others = stopped_too(context.database, in_use(context.database), one, key)
        too = f"; it stops {' and '.join(others)} too" if others else ""
        yield Finding(
            LOCKED,
            shortened(one.words, 160),
            evidence=_evidence(one.root)
            | {"stopped": [f"{s.label} ({s.who}): {s.waits_for}" for s in one.waiters]}
            | ({"stops_too": others} if others else {}),
            cause="a statement that changes the table, or locks it, waits for a transaction that "
            "has used it, or is in one that has not ended; whoever comes later waits behind it",
            consequence="whatever uses the table waits until it ends: pushes and pops, or the "
            f"samples of the queue{too}",
            for_seconds=one.waited_seconds,
            repair=terminate_session(
                context.queue, one.root.key, one.root.transaction_seconds or 0.0
            ),
        )


def _check_holders(context: CheckContext) -> Iterator[Finding]:
    missing = context.database.capabilities.missing
    if why := missing.get("waits") or missing.get("sessions"):
        context.unseen.append(f"sessions that hold rows: {why}")
        return
    what = "sessions that hold rows"
    if context.can_query(what, "recovering") and context.is_standby(what):
        return
    limit = context.thresholds.stuck_after_seconds
    for session in end_session.holding(context.activity, context.objects, context.queue, limit):
        prepared = isinstance(session.key, str)
        yield Finding(
            PREPARED if prepared else ROWS_HELD,
            f"{shortened(_label(session), 75)} holds rows for {session.held_for}",
            evidence=_evidence(session),
            cause=_why_held(session),
            consequence=_consequence(context),
            for_seconds=session.held_exactly_seconds,
            repair=terminate_session(context.queue, session.key, limit),
        )


def _label(session: Session) -> str:
    whose = f"of {session.user or '?'}" if isinstance(session.key, str) else f"({session.who})"
    return f"{session.label} {whose}"


def _evidence(session: Session) -> dict[str, object]:
    return {
        "session": session.key,
        "user": session.user,
        "application": session.application,
        "client": session.client,
        "state": session.state,
        "wait": session.wait,
        "waits_for": session.waits_for,
        "blocked_by": list(session.blocked_by),
        "held_at_least_seconds": session.held_at_least_seconds,
        "held_at_most_seconds": session.held_at_most_seconds,
        "transaction_seconds": session.transaction_seconds,
        "statement_seconds": session.statement_seconds,
        "locks": sorted({f"{lock.object}: {lock.mode}" for lock in session.locks if lock.granted}),
    }


def _why_held(session: Session) -> str:
    if isinstance(session.key, str):
        return "its transaction manager lost it, or is down"
    if session.waits_for:
        others = ", ".join(map(str, session.blocked_by)) or "another session"
        return f"it waits for {session.waits_for}, which {others} holds"
    if (session.state or "").startswith("idle in transaction"):
        return "its client has an open transaction and sends nothing"
    return "its transaction has not ended: " + (session.wait or session.state or "state unknown")


def _consequence(context: CheckContext) -> str:
    design = context.queue.design.shape
    if design == "naive":
        return "if it holds the head, every other pop waits until it ends"
    if design == "status" or context.queue.options.get("dequeue") == "two_step":
        return "if it holds the next batch, the other consumers wait until it ends"
    if context.queue.design.order_with(context.queue.options) is Order.STRICT:
        return "no other session pops (or pushes) until it ends"
    if design == "ring":
        return "its numbers are undecided until it ends, and a relay waits for it"
    return "its rows cannot be popped until it ends; a rollback brings them back"


@dataclass(frozen=True)
class _Bottom:
    id: str
    seconds: float | None
    overtaking: int


def _check_starvation(context: CheckContext) -> Iterator[Finding]:
    queue = context.queue
    if queue.design.order_with(queue.options) is not Order.LIFO or queue.kind is not Kind.INSTALLED:
        return
    if not context.can_query("starvation", "bottom"):
        return
    seen = context.snapshot
    limit = context.thresholds["age"].warning or STARVED_SECONDS
    for bottom in context.query(_Bottom, "bottom"):
        popped = seen is not None and bool(seen.pop_per_second)
        if bottom.seconds is None or bottom.seconds < limit or not (bottom.overtaking or popped):
            continue
        yield Finding(
            STARVED,
            f"the bottom has waited for {duration(bottom.seconds)} while later messages are popped",
            evidence={
                "id": bottom.id,
                "age_seconds": bottom.seconds,
                "limit_seconds": limit,
                "overtaken_by_at_least": bottom.overtaking,
                "ready": None if seen is None else seen.ready,
                "pop_per_second": None if seen is None else seen.pop_per_second,
            },
            estimated=("ready",) if seen is not None and "ready" in seen.estimated else (),
            cause="a stack pops the newest first, and its consumers never get to the bottom",
            consequence="the oldest messages wait for as long as more is pushed than popped. Add "
            "consumers, or use a fifo if every message must be popped in time",
            for_seconds=bottom.seconds,
        )


def _check_dead_head(context: CheckContext) -> Iterator[Finding]:
    """Recent dead rows are normal; those that a session or slot keeps only grow."""
    if not context.database.capabilities.counts_rows:
        context.unseen.append("dead rows at the head: this server does not count them")
        return
    measures = context.measures
    tables = _dead_rows(context, measures)
    dead = max(tables.values(), default=0)
    slow = () if context.snapshot is None else context.snapshot.slow
    keepers = [row for row in measures.horizon if _keeps(row, context)]
    # Autovacuum handles as many, and a busy machine is slow for other reasons too.
    if dead < (DEAD_ROWS if keepers else 10 * DEAD_ROWS) or not (slow or keepers):
        return
    keeper = keepers[0] if keepers else None
    yield Finding(
        DEAD_HEAD,
        f"≈{dead:,} dead rows not removed"
        + (f", kept by {holder(keeper)}" if keeper else "; reading the head is slow"),
        evidence={
            "dead_rows": {name: count for name, count in tables.items() if count},
            "slow": list(slow),
            "kept_by": [vars(row) for row in keepers],
        },
        estimated=("dead_rows",),
        cause=f"{holder(keeper)} may still read them, so the server keeps them"
        if keeper
        else "the server has not removed them yet",
        consequence="every pop reads past them to the first live message, slower with each",
        for_seconds=keeper.seconds if keeper else None,
        repair=None
        if keeper or not measures.dead_rows
        else maintain_queue(context.queue, "vacuum"),
    )


@dataclass(frozen=True)
class _Ghosts:
    name: str
    dead_rows: int


def _dead_rows(context: CheckContext, measures: maintenance.Measures) -> dict[str, int]:
    """By table. An engine that keeps no count has to count its ghost rows."""
    if sql.has(context.database.product, "doctor.ghosts"):
        return {row.name: row.dead_rows for row in context.query(_Ghosts, "ghosts")}
    return {table.name: table.dead_rows for table in measures.tables}


def _keeps(row: HorizonRow, context: CheckContext) -> bool:
    if row.seconds is None:
        return (row.transactions or 0) >= KEPT_TRANSACTIONS
    return row.seconds >= context.thresholds.stuck_after_seconds


def holder(row: HorizonRow) -> str:
    return row.who + ("" if row.seconds is None else f", open for {duration(row.seconds)}")


CHECKS = CheckGroup(
    (LOCKED, ROWS_HELD, PREPARED, STARVED, DEAD_HEAD),
    {
        "sessions that wait for the table": _check_locked,
        "sessions that hold rows": _check_holders,
        "starvation": _check_starvation,
        "dead rows at the head": _check_dead_head,
    },
    lambda queue: queue.design.shape != "broker",
)
