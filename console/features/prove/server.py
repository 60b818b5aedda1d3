"""Claims about the server: the rights of the three roles, and what its manual leaves open.

Each call as a role is a transaction of its own that creates missing roles, makes a member of one,
becomes that member and makes the call; then all of it is rolled back.

Behaviour that a design depends on is a claim about that design, for engines that have its
statement.
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
from console.features.prove.trial import Claim, DisprovedError, NotApplicableError, Trial, require

_ROLES = ("reader", "operator", "admin")
"""Each may do what those before it may."""


@dataclass(frozen=True)
class _Operation:
    """An operation, and the least role that may do it."""

    name: str
    least: str
    do: Callable[[Connection, Trial], object]

    def allowed(self, role: str) -> bool:
        return _ROLES.index(role) >= _ROLES.index(self.least)


def _count_rows(connection: Connection, trial: Trial) -> None:
    sql.value(connection, int, "prove.count_rows", trial.queue.scope(connection))


def _pop(connection: Connection, trial: Trial) -> None:
    pop_many(connection, trial.queue, 1, "prove")


def _delete_rows(connection: Connection, trial: Trial) -> None:
    sql.run(connection, "prove.delete_directly", trial.queue.scope(connection))


def _install(connection: Connection, trial: Trial) -> None:
    queue = _named(trial.installed, f"{trial.queue.name}_2")
    for part in install.parts(trial.database.product, queue):
        sql.run(connection, part, queue.scope(connection))
    install.record(connection, queue)


def _named(queue: Queue, name: str) -> Queue:
    roles = {
        role: name + column.removeprefix(queue.name) if role.endswith("_sequence") else column
        for role, column in queue.roles.items()
    }
    return replace(queue, name=name, roles=roles)


_OPERATIONS = (
    _Operation("read rows", "reader", _count_rows),
    _Operation("push", "operator", lambda connection, trial: trial.push_one(connection)),
    _Operation("pop", "operator", _pop),
    _Operation("delete rows", "operator", _delete_rows),
    _Operation("install", "admin", _install),
)


class _AllowedError(Exception):
    """The server allowed the call; raised to roll the transaction back."""


def _prove(trial: Trial) -> str:
    with trial.database.session("try the rights of the roles") as session:
        try:
            for role in _ROLES:
                _call_as(session, trial, role, lambda _, __: None)
        except ConsoleError as error:
            why = " ".join((error.why or error.what).split())
            raise NotApplicableError(f"this login may not make the roles: {why}") from error
        allowed = []
        for role in _ROLES:
            may = [
                operation
                for operation in _OPERATIONS
                if _require_rights(session, trial, role, operation)
            ]
            allowed.append(f"{role}: {', '.join(operation.name for operation in may)}")
    calls = len(_ROLES) * len(_OPERATIONS)
    return f"{calls} calls, of which the server allowed what it should: {'; '.join(allowed)}"


def _require_rights(session: Session, trial: Trial, role: str, operation: _Operation) -> bool:
    """Whether the server allowed it. DisprovedError if that is wrong."""
    try:
        _call_as(session, trial, role, operation.do)
    except RefusedError as error:
        why = " ".join((error.why or error.what).split())
        require(not operation.allowed(role), f"a {role} may not {operation.name}: {why}")
        return False
    require(operation.allowed(role), f"a {role} may {operation.name}")
    return True


@contextmanager
def revert_identity(session: Session) -> Iterator[None]:
    """Afterwards the session is its own user again, so that its connection can be reused."""
    try:
        yield
    except _AllowedError:
        pass
    finally:
        doing = "revert to the own user"
        try:
            with session.transaction(doing) as connection:
                sql.run(connection, "prove.revert")
        except ConsoleError:
            # This connection must not be reused.
            with suppress(ConnectionFailedError), session.transaction(doing) as connection:
                connection.invalidate()


def _call_as(
    session: Session, trial: Trial, role: str, do: Callable[[Connection, Trial], object]
) -> None:
    """Call as a member of the role, then roll back. RefusedError if the server refuses it."""
    scope = sql.Scope({"role": f"dbq_{role}", "member": f"{trial.queue.name}_{role}"})
    with revert_identity(session), session.transaction(f"act as a {role}") as connection:
        if not sql.value(connection, bool, "prove.roles_exist"):
            sql.run(connection, "roles.roles", sql.Scope({"schema": trial.queue.schema}))
            sql.run(connection, "roles.queue", trial.installed.scope(connection))
        sql.run(connection, "prove.make_member", scope)
        sql.run(connection, "prove.impersonate", scope)
        do(connection, trial)
        # The rollback removes the member, so revert first.
        sql.run(connection, "prove.revert")
        raise _AllowedError


CLAIMS = (Claim("the server lets each of the three roles do what it may, and no more", _prove),)


def _readpast(trial: Trial) -> str:
    """A pop skips what another one has locked, also with transaction-level locks."""
    with trial.database.transaction("read optimized locking", read_only=True) as connection:
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
    return "it skips nothing: one pops at a time" if strict else ""


def _own_row(trial: Trial) -> str:
    """Procedures run as the owner of the queues, and read there who claims."""
    doing = "act as the owner of the queues"
    with (
        trial.database.session(doing) as session,
        revert_identity(session),
        session.transaction(doing) as connection,
    ):
        sql.run(connection, "prove.impersonate", sql.Scope({"member": "dbq_owner"}))
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
    with trial.database.transaction("read the start time", read_only=True) as connection:
        started = sql.value(connection, datetime, "prove.started")
    before = trial.figures().next_push
    sent = trial.push(1)
    after = trial.figures().next_push
    trial.require_drained(sent)
    require(after == (before or 0) + 1, f"without a restart already: {before}, then {after}")
    raise NotApplicableError(
        f"needs a restart, and this server has run since {started:%Y-%m-%d %H:%M}; without one "
        f"{before} was next, then {after}"
    )


@dataclass(frozen=True)
class Question:
    """A claim about the server, and the design that depends on it."""

    design: str
    statement: str
    """An engine without it is not checked."""
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
    return [
        question.claim
        for question in QUESTIONS
        if question.design == queue.design.name and sql.has(product, question.statement)
    ]
