"""The rights of the three roles, as the server itself enforces them.

Each call as a role is a transaction of its own that creates missing roles, makes a member of one,
becomes that member and makes the call; then all of it is rolled back.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from console import sql
from console.actions import install
from console.actions.pop import pop_many
from console.catalog import Queue
from console.engines import Session
from console.errors import BusyError, ConnectionFailedError, ConsoleError, RefusedError
from console.features.prove.trial import Claim, NotApplicableError, Trial, require

ROLES = ("reader", "operator", "admin")
"""Each may do what those before it may."""


@dataclass(frozen=True)
class _Operation:
    """An operation, and the least role that may do it."""

    name: str
    least: str
    do: Callable[[Connection, Trial], object]

    def allowed(self, role: str, trial: Trial) -> bool:
        if self.least == "admin" and not admins_install(trial):
            return False
        return ROLES.index(role) >= ROLES.index(self.least)


def admins_install(trial: Trial) -> bool:
    """In a schema of the database's owner nobody else has rights on the schema, by design."""
    product = trial.database.product
    return product.default_schema == product.others_schema or (
        trial.queue.schema != product.others_schema
    )


def _count_rows(connection: Connection, trial: Trial) -> None:
    sql.value(connection, int, "prove.count_rows", trial.queue.scope(connection))


def _pop(connection: Connection, trial: Trial) -> None:
    pop_many(connection, trial.queue, 1, "prove")


def _delete_rows(connection: Connection, trial: Trial) -> None:
    sql.run(connection, "prove.delete_directly", trial.queue.scope(connection))


def install_another(connection: Connection, trial: Trial) -> None:
    queue = named(trial.installed, f"{trial.queue.name}_2")
    for part in install.parts(trial.database.product, queue):
        sql.run(connection, part, queue.scope(connection))
    install.record(connection, queue)


def named(queue: Queue, name: str) -> Queue:
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
    _Operation("install", "admin", install_another),
)


class _AllowedError(Exception):
    """The server allowed the call; raised to roll the transaction back."""


def _prove(trial: Trial) -> str:
    with trial.database.session("try the rights of the roles") as session:
        try:
            for role in ROLES:
                call_as(session, trial, role, lambda _, __: None)
        except ConsoleError as error:
            why = " ".join((error.why or error.what).split())
            raise NotApplicableError(f"this login may not make the roles: {why}") from error
        allowed = []
        for role in ROLES:
            may = [
                operation
                for operation in _OPERATIONS
                if _require_rights(session, trial, role, operation)
            ]
            allowed.append(f"{role}: {', '.join(operation.name for operation in may)}")
    calls = len(ROLES) * len(_OPERATIONS)
    return f"{calls} calls, of which the server allowed what it should: {'; '.join(allowed)}"


def _require_rights(session: Session, trial: Trial, role: str, operation: _Operation) -> bool:
    """Whether the server allowed it. DisprovedError if that is wrong."""
    try:
        call_as(session, trial, role, operation.do)
    except RefusedError as error:
        why = " ".join((error.why or error.what).split())
        require(not operation.allowed(role, trial), f"a {role} may not {operation.name}: {why}")
        return False
    require(operation.allowed(role, trial), f"a {role} may {operation.name}")
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


def act_as(
    session: Session,
    scope: sql.Scope,
    make: str,
    do: Callable[[Connection], object],
    *,
    prepare: Callable[[Connection], object] = lambda _: None,
    become: str = "prove.impersonate",
) -> None:
    """Make a member, become it, call, roll back. `prepare`: before that, as oneself.

    RefusedError if the server refuses the call; NotApplicableError if this login may make no such
    member.
    """
    doing, became = "act as another user", False
    try:
        with revert_identity(session), session.transaction(doing) as connection:
            prepare(connection)
            sql.run(connection, make, scope)
            sql.run(connection, become, scope)
            became = True
            do(connection)
            # The rollback removes the member, so revert first.
            sql.run(connection, "prove.revert")
            raise _AllowedError
    except BusyError:
        raise
    except RefusedError as error:
        if became:
            raise
        why = " ".join((error.why or error.what).split())
        raise NotApplicableError(f"this login may make no such user: {why}") from error


def call_as(
    session: Session, trial: Trial, role: str, do: Callable[[Connection, Trial], object]
) -> None:
    """Call as a member of the role, then roll back. RefusedError if the server refuses it."""

    def make_roles(connection: Connection) -> None:
        if not sql.value(connection, bool, "prove.roles_exist"):
            sql.run(connection, "roles.roles", sql.Scope({"schema": trial.queue.schema}))
            sql.run(connection, "roles.queue", trial.installed.scope(connection))

    scope = sql.Scope({"role": f"dbq_{role}", "member": f"{trial.queue.name}_{role}"})
    act_as(
        session,
        scope,
        "prove.make_member",
        lambda connection: do(connection, trial),
        prepare=make_roles,
    )


CLAIMS = (Claim("the server lets each of the three roles do what it may, and no more", _prove),)
