"""Questions about an engine that its manual leaves open, each answered by the server itself.

Only an engine that has the statement of a question is asked it. What a design rests on is a claim
about that design; the answers stand beside it in the report.
"""

from dataclasses import dataclass
from datetime import datetime

from console import sql
from console.actions.pop import pop_many
from console.catalog import Queue
from console.designs import Order
from console.engines import Product
from console.errors import BusyError
from console.prove.claim import Claim
from console.prove.rights import itself_again
from console.prove.trial import DisprovedError, NotApplicableError, Trial, require


def _readpast(trial: Trial) -> str:
    """A pop skips what another one has locked: also where locks are the transaction's."""
    with trial.database.transaction("ask for optimized locking", read_only=True) as connection:
        on = sql.value(connection, bool | None, "prove.optimized_locking")
    sent = trial.push(4)
    with trial.database.transaction("hold one message") as connection:
        held = pop_many(connection, trial.queue, 1, "prove")
        try:
            others = trial.pop(4)
        except BusyError as error:
            raise DisprovedError(f"it waits: {error.why or error.what}") from error
    trial.finish([*held, *others])
    came = trial.numbers([*held, *others])
    require(len(others) == 3, f"a pop of 4 beside one that holds 1 of 4 gave {len(others)}")
    trial.require_these(sorted(came), sent)
    seen = "beside a pop that holds 1 of 4 another got the other 3 at once"
    if not on:
        state = "it is off" if on is False else "this server has none"
        raise NotApplicableError(f"{state}; without it: {seen}")
    return seen


def _waits(queue: Queue) -> str:
    strict = queue.design.order_with(queue.options) is Order.STRICT
    return "it reads past nothing: one pops at a time" if strict else ""


def _own_row(trial: Trial) -> str:
    """Whose a claim is, procedures read there, and they run as the owner of the queues."""
    doing = "act as the owner of the queues"
    with (
        trial.database.session(doing) as session,
        itself_again(session),
        session.transaction(doing) as connection,
    ):
        sql.run(connection, "prove.become", sql.Scope({"member": "dbq_owner"}))
        seen = sql.value(connection, int, "prove.own_row")
    require(seen == 1, f"it sees {seen} rows of itself")
    return "1 row"


@dataclass(frozen=True)
class _PhysicalStats:
    of_zero: int
    of_index: int


def _index_zero(trial: Trial) -> str:
    with trial.database.transaction("measure a table", read_only=True) as connection:
        seen = sql.row(
            connection, _PhysicalStats, "prove.physical_stats", trial.queue.scope(connection)
        )
    require(seen.of_index and not seen.of_zero, f"{seen.of_zero} rows, {seen.of_index} of index 1")
    return f"0 rows, {seen.of_index} of index 1"


def _restarted(trial: Trial) -> str:
    with trial.database.transaction("ask when it was started", read_only=True) as connection:
        started = sql.value(connection, datetime, "prove.started")
    before = trial.figures().next_push
    sent = trial.push(1)
    after = trial.figures().next_push
    trial.drained(sent)
    require(after == (before or 0) + 1, f"without a restart already: {before}, then {after}")
    raise NotApplicableError(
        f"needs a restart, and this server runs since {started:%Y-%m-%d %H:%M}; without one "
        f"{before} was next, then {after}"
    )


@dataclass(frozen=True)
class Question:
    """One question, and the design that depends on its answer."""

    design: str
    statement: str
    """Without which the engine is not asked."""
    claim: Claim


QUESTIONS = (
    Question(
        "ring",
        "prove.started",
        Claim("the next number is current_value + 1 after a restart", _restarted),
    ),
    Question(
        "fifo",
        "prove.optimized_locking",
        Claim("READPAST skips what is locked, under optimized locking", _readpast, _waits),
    ),
    Question(
        "ring",
        "prove.own_row",
        Claim("a session sees its own row in dm_exec_sessions under EXECUTE AS", _own_row),
    ),
    Question(
        "fifo",
        "prove.physical_stats",
        Claim(
            "dm_db_index_physical_stats gives nothing for index id 0 of a clustered table",
            _index_zero,
        ),
    ),
)


def claims(product: Product, queue: Queue) -> list[Claim]:
    """Those that the engine is asked about such a queue."""
    return [
        one.claim
        for one in QUESTIONS
        if one.design == queue.design.name and sql.has(product, one.statement)
    ]
