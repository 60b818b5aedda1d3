"""What is claimed of the three roles: what the server itself lets each of them do.

Each try is a transaction of its own, in which the roles are made where they are missing, somebody
gets one, becomes that member and makes one call; then all of it is rolled back.
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
from console.errors import ConnectionFailedError, ConsoleError, RefusedError
from console.prove.claim import Claim
from console.prove.trial import NotApplicableError, Trial, require

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
    sql.value(connection, int, "prove.look", trial.queue.scope(connection))


def _pop(connection: Connection, trial: Trial) -> None:
    pop_many(connection, trial.queue, 1, "prove")


def _take_away(connection: Connection, trial: Trial) -> None:
    sql.run(connection, "prove.take_away", trial.queue.scope(connection))


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
