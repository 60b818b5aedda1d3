"""Questions about sessions: what they see of each other, what they may, and what a cancelled
statement leaves of them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from console import sql
from console.actions import install
from console.actions.pop import PoppedMessage, complete, fail, pop_many
from console.actions.push import push_many
from console.actions.relay import relay
from console.catalog import Queue, installed_queue, object_names, relations
from console.designs import designs_on
from console.engines import Database
from console.engines.mssql import batches
from console.errors import BusyError
from console.features.bench.candidate import PROOF_PREFIX
from console.features.prove.lock_questions import BOTH
from console.features.prove.questions import Question, an_error_disproves
from console.features.prove.server import named
from console.features.prove.site import TIMEOUTS, Site
from console.features.prove.trial import DisprovedError, NotApplicableError, Trial, require
from console.monitor.sample import take_sample


@dataclass(frozen=True)
class _Settings:
    session: str
    isolation: str
    lock_timeout: str


def _settings(database: Database) -> _Settings:
    with database.transaction("read the session's settings") as connection:
        return sql.row(connection, _Settings, "prove.settings")


def _session_settings(site: Site) -> str:
    ring = site.trial("ring")
    ring.push(3)
    with site.another() as pooled:
        before = _settings(pooled)
        relay(pooled, ring.installed, None)
        after = _settings(pooled)
        kept = replace(after, session=before.session) == before
        require(kept, f"before a relay {before}, after it {after}")
        seen = f"after a relay isolation {after.isolation}, LOCK_TIMEOUT {after.lock_timeout}"
        if not sql.has(pooled.product, "prove.identity_then_wait"):
            return seen
        return f"{seen}; {_cancelled_restore(site, pooled)}"


_CANCELLED_AFTER_SECONDS = 0.5


def _cancelled_restore(site: Site, pooled: Database) -> str:
    queue = site.trial("fifo").installed
    archive = queue.scope(pooled.product, relation=f"{queue.name}_archive")
    table = queue.scope(pooled.product, relation=queue.table)
    limits = replace(TIMEOUTS, statement_seconds=_CANCELLED_AFTER_SECONDS)
    try:
        with pooled.transaction("restore until it is cancelled") as connection:
            connection.execution_options(dbq_timeouts=limits)
            sql.run(connection, "prove.identity_then_wait", archive)
    except BusyError:
        pass
    else:
        raise DisprovedError("a statement of 30 s was not cancelled after half a second")
    before = _settings(pooled)
    with (
        an_error_disproves("IDENTITY_INSERT of another table, after a cancelled restore,"),
        pooled.transaction("set it for another table") as connection,
    ):
        sql.run(connection, "prove.identity_of_another", table)
    return f"after a cancelled restore the same, and IDENTITY_INSERT is free in {before.session}"


@dataclass(frozen=True)
class _LoginTimes:
    seen: int
    later: int


def _login_time(site: Site) -> str:
    with site.database.transaction("compare times", read_only=True) as connection:
        found = sql.row(connection, _LoginTimes, "prove.login_times")
    words = f"of {found.seen} sessions of clients {found.later} logged in after they had connected"
    require(not found.later, words)
    raise NotApplicableError(f"needs clients whose pool resets sessions (.NET, JDBC): {words}")


@dataclass(frozen=True)
class _State:
    error: int
    transactions: int


def _error_after_batch(site: Site) -> str:
    trial = site.trial("fifo")
    scope = trial.queue.scope(site.database.product, relation=trial.queue.table)
    with site.database.transaction("send a batch that does not compile") as connection:
        try:
            sql.run(connection, "prove.does_not_compile", scope)
        except DBAPIError:
            state = sql.row(connection, _State, "prove.error_state")
        else:
            raise DisprovedError("it compiles")
        connection.rollback()
    words = f"@@ERROR {state.error}, @@TRANCOUNT {state.transactions} in the next batch"
    require(state.error or not state.transactions, words)
    return words


_Call = Callable[[Connection, Trial], object]


def _complete(popped: list[PoppedMessage]) -> _Call:
    return lambda connection, trial: complete(connection, trial.queue, popped[0])


def _fail(popped: list[PoppedMessage]) -> _Call:
    return lambda connection, trial: fail(connection, trial.queue, popped[0], "prove")


_CALLS: dict[str, _Call] = {
    "push": lambda connection, trial: trial.push_one(connection),
    "push_many": lambda connection, trial: push_many(connection, trial.queue, trial.payloads(2)),
    "pop": lambda connection, trial: sql.run(
        connection, "prove.pop_one", trial.queue.scope(connection)
    ),
    "pop_many": lambda connection, trial: pop_many(connection, trial.queue, 2, "prove"),
}
_FINISHING = {"complete": _complete, "fail": _fail}


def _attention(site: Site) -> str:
    """Their calls wait for a lock that another one holds, and are cancelled there; what their
    caller has done before is in another queue."""
    own = site.trial("heap")
    states, seen = set(), []
    names = [name for name, of in designs_on("mssql").items() if not of.waits_itself]
    for name in names:
        trial = site.trial(name)
        relation = trial.queue.table
        if trial.draws_numbers:
            relation = f"{trial.installed.name}_config"
        scope = trial.queue.scope(site.database.product, relation=relation)
        calls = dict(_CALLS)
        if trial.queue.finishes:
            trial.push(2)
            popped = trial.pop(2)
            require(popped, f"{name}: nothing to finish")
            calls |= {call: finish(popped) for call, finish in _FINISHING.items()}
        with site.database.transaction("lock a table") as holding:
            sql.run(holding, "prove.lock_table", scope)
            states |= {_cancelled_call(own, trial, call, run) for call, run in calls.items()}
            holding.rollback()
        seen.append(f"{name} {len(calls)}")
    kept = " and ".join("whole, committed" if state else "rolled back" for state in sorted(states))
    return f"calls of {', '.join(seen)}: the caller's transaction was {kept}"


def _cancelled_call(own: Trial, trial: Trial, call: str, run: _Call) -> int:
    """@@TRANCOUNT after it: 1 if the caller's two messages have to be there, 0 if neither."""
    what = f"{call} of {trial.queue.design.name}"
    first = own.pushed
    limits = replace(TIMEOUTS, statement_seconds=_CANCELLED_AFTER_SECONDS)
    with own.database.transaction("call until it is cancelled") as connection:
        own.push_one(connection)
        own.push_one(connection)
        connection.execution_options(dbq_timeouts=limits)
        try:
            run(connection, trial)
        except DBAPIError:
            state = sql.row(connection, _State, "prove.error_state")
        else:
            raise DisprovedError(f"{what} goes by a lock on all of its table")
        if not state.transactions:
            connection.rollback()
    try:
        own.require_drained([first, first + 1] if state.transactions else [])
    except DisprovedError as seen:
        why = f"{what}, @@TRANCOUNT {state.transactions} after it: {seen}"
        raise DisprovedError(why) from seen
    return state.transactions


def _release_unheld(site: Site) -> str:
    trial = site.trial("fifo", order="strict")
    scope = trial.queue.scope(site.database.product)
    with site.database.transaction("release a lock that is not held") as connection:
        try:
            sql.run(connection, "prove.release_unheld", scope)
        except DBAPIError as error:
            text, state = str(error.orig), sql.row(connection, _State, "prove.error_state")
        else:
            raise DisprovedError("it is no error")
        connection.rollback()
    require("(1223)" in text, text)
    return f"error 1223, then @@TRANCOUNT {state.transactions}"


def _open_transaction(site: Site) -> str:
    trial, product = site.trial("heap"), site.database.product
    another = named(trial.installed, f"{trial.queue.name}_2")
    first = trial.pushed
    refusals = 0
    with site.database.transaction("run a printed script inside a transaction") as connection:
        trial.push_one(connection)
        for batch in batches(install.script(product, another)):
            try:
                connection.exec_driver_sql(batch, execution_options={"no_parameters": True})
            except DBAPIError:
                refusals += 1
        state = sql.row(connection, _State, "prove.error_state")
        require(state.transactions == 1, f"@@TRANCOUNT is {state.transactions} after it, not 1")
    trial.require_drained([first])
    with site.database.transaction("look for its objects", read_only=True) as connection:
        names = object_names.of(product, another)
        made = [one.name for one in relations.named(connection, another.schema, names)]
    require(not made, f"it made {', '.join(made)}")
    require(refusals, "it did not say that it has done nothing")
    return f"{refusals} refusals; what was pushed before was committed, and nothing was made"


_QUEUES = 70


def _sampling(site: Site) -> str:
    if not site.own:
        raise NotApplicableError(f"{_QUEUES} queues are made in a database of the proof's own only")
    queues = _many_queues(site)
    seconds = []
    for _ in range(2):
        began = time.monotonic()
        seen = take_sample(site.database, only=queues).queues
        seconds.append(time.monotonic() - began)
        problems = [one.problem for one in seen if one.row is None]
    words = f"of {_QUEUES} queues: the first {seconds[0]:.2f} s, the second {seconds[1]:.2f} s"
    require(len(seen) == _QUEUES, f"{len(seen)} in a sample {words}")
    require(not problems, f"{len(problems)} have no figures: {problems[:1]}; {words}")
    return words


def _many_queues(site: Site) -> list[Queue]:
    """Of all designs in turn; the database that they are in is dropped with them."""
    database = site.database
    there = [
        of
        for of in designs_on(database.product.name).values()
        if not install.missing_requirement(database, of)
    ]
    queues = []
    for number in range(_QUEUES):
        of = there[number % len(there)]
        options = of.complete_options({}, database.product.name)
        options |= {"size": "100"} if "size" in options else {}
        name = f"{PROOF_PREFIX}{site.token}_many_{number}"
        queues.append(installed_queue(site.schema, name, of, options))
        install.install(database, queues[-1])
    return queues


QUESTIONS = {
    question.code: question
    for question in (
        Question(
            "session-settings",
            "after a relay and after a cancelled restore a pooled session is set as before",
            "every verb of the same console: a connection is used again without a reset",
            "the next verb waits endlessly, reads at another level, or fails (8107)",
            _session_settings,
            BOTH,
        ),
        Question(
            "login-time",
            "the login time of a session stays when a pool resets it",
            "claimed_by of ring's claims, and the owners that the doctor takes for gone",
            "a consumer behind a pool looks gone while it works, and its message comes twice",
            _login_time,
            everywhere=False,
        ),
        Question(
            "error-after-batch",
            "after a batch that does not compile @@ERROR says so to the next one",
            "printed scripts: IF @@ERROR <> 0 OR @@TRANCOUNT = 0 SET NOEXEC ON after each batch",
            "a script goes on after an error, and half of a queue is installed",
            _error_after_batch,
            everywhere=False,
        ),
        Question(
            "attention",
            "a call that is cancelled leaves its transaction whole, or rolls back all of it",
            "every procedure: XACT_ABORT; and @@TRANCOUNT, by which a caller knows which it was",
            "half of a transaction is committed after a time-out",
            _attention,
            everywhere=False,
            most_seconds=90.0,
        ),
        Question(
            "release-unheld",
            "the release of an application lock that is not held is error 1223",
            "fifo, order=strict: what a push releases; errors that it hid are shown since",
            "a push that lost its lock goes on unnoticed, and the order is not strict",
            _release_unheld,
            everywhere=False,
        ),
        Question(
            "open-transaction",
            "a printed script that runs inside an open transaction leaves that as it was",
            "install --print in SSMS, sqlcmd, Flyway, DbUp: its first batch refuses",
            "the caller's own work is rolled back or committed by the script",
            _open_transaction,
            everywhere=False,
        ),
        Question(
            "sampling",
            f"{_QUEUES} queues are sampled with all their figures, by the first sample too",
            "status, the screens, serve-metrics: texts for ten queues, each compiled once",
            "a console of many queues shows no figures on such a server",
            _sampling,
            BOTH,
            everywhere=False,
            most_seconds=120.0,
        ),
    )
}
