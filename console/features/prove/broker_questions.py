"""Questions about Service Broker: conversations, who may end them, and activation."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from console import sql
from console.actions.pop import pop_many
from console.errors import RefusedError
from console.features.prove.questions import Question
from console.features.prove.server import call_as
from console.features.prove.site import Site
from console.features.prove.trial import Trial, require
from console.monitor.rates import health

_ROLLBACKS = 5
"""In a row, after which the server disables the queue."""
_SOON_SECONDS = 10.0
"""Within this the server has delivered an end, or started a procedure."""


def _conversations(site: Site) -> str:
    trial, database = site.trial("broker"), site.database
    sent = trial.push(2)
    for _ in range(_ROLLBACKS):
        with database.transaction("pop and roll back") as connection:
            popped = pop_many(connection, trial.queue, 1, "prove")
            connection.rollback()
        require(popped, "before five pops were rolled back no message comes any more")
    _until(lambda: not _receives(trial))
    require(not _receives(trial), f"{_ROLLBACKS} rolled-back pops have not disabled the queue")
    with database.autocommit("enable a queue") as connection:
        sql.run(connection, "broker.enable", trial.queue.scope(connection))
    trial.require_drained(sent)
    trial.push(1)
    name = trial.installed.name
    scope = trial.installed.scope(database.product, relation=name, function=f"{name}_end")
    with database.transaction("find a conversation") as connection:
        conversation = sql.value(connection, str, "prove.conversation", scope)

    def end(connection: Connection, _: Trial) -> None:
        statement = "prove.end_conversation"
        sql.value(connection, int, statement, scope, conversation=conversation)

    with database.session("end a conversation") as session:
        for role, may in (("reader", False), ("operator", True)):
            try:
                call_as(session, trial, role, end)
            except RefusedError as error:
                require(not may, f"a {role} may not end one: {error.why or error.what}")
            else:
                require(may, f"a {role} may end one")
    return (
        f"{_ROLLBACKS} rolled-back pops disabled the queue; enabled again it gave its messages; an "
        "operator may end a conversation"
    )


def _receives(trial: Trial) -> bool:
    with trial.database.transaction("see whether it is enabled", read_only=True) as connection:
        return health(connection, trial.queue, counts=False).is_receive_enabled


@dataclass(frozen=True)
class _Endpoint:
    side: str
    state: str


def _states(trial: Trial) -> dict[str, set[str]]:
    """Of the queue's conversations, by side."""
    with trial.database.transaction("read conversations", read_only=True) as connection:
        rows = sql.rows(
            connection, _Endpoint, "prove.conversation_states", trial.queue.scope(connection)
        )
    sides: dict[str, set[str]] = {"initiator": set(), "target": set()}
    for row in rows:
        sides[row.side].add(row.state.strip())
    return sides


def _until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SOON_SECONDS
    while not what() and time.monotonic() < deadline:
        time.sleep(0.1)


def _conversation_states(site: Site) -> str:
    """A session keeps its conversation, until the other side has ended that."""
    trial, database = site.trial("broker", conversation="kept"), site.database
    name = trial.installed.name
    scope = trial.installed.scope(database.product, relation=name, function=f"{name}_end")
    first = trial.pushed
    with database.session("push twice") as session:
        for _ in range(2):
            with session.transaction("push") as connection:
                trial.push_one(connection)
        begun = _states(trial)
        usable = begun["initiator"] <= {"SO", "CO"} and begun["initiator"]
        require(usable, f"after two pushes of a session the initiator's states are {_words(begun)}")
        with database.transaction("find a conversation") as connection:
            conversation = sql.value(connection, str, "prove.conversation", scope)
        trial.require_drained([first, first + 1])
        with database.transaction("end a conversation") as connection:
            sql.value(connection, int, "prove.end_conversation", scope, conversation=conversation)
        _until(lambda: "DI" in _states(trial)["initiator"])
        ended = _states(trial)
        require("DI" in ended["initiator"], f"after its other side's end: {_words(ended)}")
        with session.transaction("push again") as connection:
            trial.push_one(connection)
    trial.require_drained([first + 2])
    _until(lambda: "CD" in _states(trial)["initiator"])
    over = _states(trial)
    require("DI" not in over["initiator"], f"the next push left it open: {_words(over)}")
    return (
        f"after two pushes {_words(begun)}; ended by the target {_words(ended)}; then a push came, "
        f"and {_words(over)}"
    )


def _words(states: dict[str, set[str]]) -> str:
    return ", ".join(
        f"{side} {'/'.join(sorted(found)) or 'none'}" for side, found in states.items()
    )


_ACTIVATED = 3


def _activation(site: Site) -> str:
    trial, database = site.trial("broker", activation="on"), site.database
    scope = trial.queue.scope(database.product)
    trial.push(_ACTIVATED)

    def archived() -> int:
        with database.transaction("count what is archived", read_only=True) as connection:
            return sql.value(connection, int, "prove.count_rows", scope)

    require(not archived(), "a procedure that is only registered was started")
    began = time.monotonic()
    try:
        with database.autocommit("start the procedure") as connection:
            sql.run(connection, "prove.activate", scope)
        _until(lambda: archived() == _ACTIVATED)
        seconds, done = time.monotonic() - began, archived()
    finally:
        with database.autocommit("stop the procedure") as connection:
            sql.run(connection, "prove.deactivate", scope)
    require(done == _ACTIVATED, f"of {_ACTIVATED} messages it archived {done} in {seconds:.1f} s")
    trial.require_drained([])
    return f"{done} messages, each archived once, {seconds:.1f} s after it was enabled"


QUESTIONS = {
    question.code: question
    for question in (
        Question(
            "conversations",
            "five rolled-back pops disable a queue, until it is enabled; an operator may end a "
            "conversation",
            "broker: the finding of a disabled queue and its repair; END CONVERSATION is its "
            "owner's, so <queue>_end runs as dbq_owner",
            "a poison message comes again for ever; or only the database's owner can archive and "
            "purge",
            _conversations,
        ),
        Question(
            "conversation-states",
            "a session's conversation is SO or CO until its other side has ended it, then DI",
            "broker, conversation=kept: a push goes on with SO and CO, and ends DI and ER; the "
            "count of conversations leaves out CD",
            "each push begins a conversation that nobody ends, or a push fails after an end",
            _conversation_states,
        ),
        Question(
            "activation",
            "the server starts the registered procedure once it is enabled, and not before",
            "broker, activation=on: <queue>_activated runs as dbq_owner and needs no caller",
            "messages stay in the queue, or are taken before somebody has written what to do",
            _activation,
        ),
    )
}
