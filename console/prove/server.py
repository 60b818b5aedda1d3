"""What is claimed of the server: the rights of the three roles, and what its manual leaves open.

Each try of a role is a transaction of its own, in which the roles are made where they are missing,
somebody gets one, becomes that member and makes one call; then all of it is rolled back.

Only an engine that has the statement of a question is asked it. What a design rests on is a claim
about that design; the answers stand beside it in the report.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection

from console import sql
from console.actions import install
from console.actions.pop import pop_many
from console.catalog import Queue
from console.designs import Order
from console.engines import Product, Session
from console.errors import BusyError, ConnectionFailedError, ConsoleError, RefusedError
from console.prove.trial import Claim, DisprovedError, NotApplicableError, Trial, require

_ROLES = ("reader", "operator", "admin")
"""Each may do what those before it may."""


@dataclass(frozen=True)
class _Try:
    """One thing that somebody does, and from which role on the server lets them."""

    what: str
    least: str
    do: Callable[[Connection, Trial], object]

    def allowed(self, role: str) -> bool:
        return _ROLES.index(role) >= _ROLES.index(self.least)


def _look(connection: Connection, trial: Trial) -> None:
    sql.value(connection, int, "prove.count_rows", trial.queue.scope(connection))


def _pop(connection: Connection, trial: Trial) -> None:
    pop_many(connection, trial.queue, 1, "prove")


def _take_away(connection: Connection, trial: Trial) -> None:
    sql.run(connection, "prove.delete_directly", trial.queue.scope(connection))


def _install(connection: Connection, trial: Trial) -> None:
    queue = _named(trial.whole, f"{trial.queue.name}_2")
    for part in install.parts(trial.database.product, queue):
        sql.run(connection, part, queue.scope(connection))
    install.record(connection, queue)


def _named(queue: Queue, name: str) -> Queue:
    roles = {
        role: name + column.removeprefix(queue.name) if role.endswith("_sequence") else column
        for role, column in queue.roles.items()
    }
    return replace(queue, name=name, roles=roles)


_TRIES = (
    _Try("look at it", "reader", _look),
    _Try("push", "operator", lambda connection, trial: trial.push_one(connection)),
    _Try("pop", "operator", _pop),
    _Try("delete rows", "operator", _take_away),
    _Try("install", "admin", _install),
)


class _DoneError(Exception):
    """It was let through: the transaction is undone."""


def _prove(trial: Trial) -> str:
    with trial.database.session("try the rights of the roles") as session:
        try:
            for role in _ROLES:
                _tried(session, trial, role, lambda _, __: None)
        except ConsoleError as error:
            why = " ".join((error.why or error.what).split())
            raise NotApplicableError(f"this login may not make the roles: {why}") from error
        told = []
        for role in _ROLES:
            may = [one for one in _TRIES if _let(session, trial, role, one)]
            told.append(f"{role}: {', '.join(one.what for one in may)}")
    tries = len(_ROLES) * len(_TRIES)
    return f"{tries} tries, the server let through what it should: {'; '.join(told)}"


def _let(session: Session, trial: Trial, role: str, one: _Try) -> bool:
    """Whether the server let it. DisprovedError where it should not have, or should."""
    try:
        _tried(session, trial, role, one.do)
    except RefusedError as error:
        why = " ".join((error.why or error.what).split())
        require(not one.allowed(role), f"a {role} may not {one.what}: {why}")
        return False
    require(one.allowed(role), f"a {role} may {one.what}")
    return True


@contextmanager
def itself_again(session: Session) -> Iterator[None]:
    """Whoever the session became: a connection goes back to its pool as it came."""
    try:
        yield
    except _DoneError:
        pass
    finally:
        doing = "be itself again"
        try:
            with session.transaction(doing) as connection:
                sql.run(connection, "prove.revert")
        except ConsoleError:
            # Nobody may get it as it is: the next call has a new one.
            with suppress(ConnectionFailedError), session.transaction(doing) as connection:
                connection.invalidate()


def _tried(
    session: Session, trial: Trial, role: str, do: Callable[[Connection, Trial], object]
) -> None:
    """Do it as somebody who has the role; nothing of it stays. RefusedError."""
    scope = sql.Scope({"role": f"dbq_{role}", "member": f"{trial.queue.name}_{role}"})
    with itself_again(session), session.transaction(f"act as a {role}") as connection:
        if not sql.value(connection, bool, "prove.roles_there"):
            sql.run(connection, "roles.roles", sql.Scope({"schema": trial.queue.schema}))
            sql.run(connection, "roles.queue", trial.whole.scope(connection))
        sql.run(connection, "prove.make_member", scope)
        sql.run(connection, "prove.become", scope)
        do(connection, trial)
        # The member is gone with the rollback: whoever it was is itself before that.
        sql.run(connection, "prove.revert")
        raise _DoneError


CLAIMS = (Claim("the server lets each of the three roles do what it may, and no more", _prove),)


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
