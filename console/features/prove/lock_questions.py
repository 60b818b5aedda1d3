"""Questions about locks: who waits for whom, what is skipped, what one statement locks."""

from dataclasses import dataclass
from functools import partial

from console import sql
from console.actions.pop import PoppedMessage, pop_many
from console.actions.push import push_many
from console.actions.relay import relay
from console.catalog import object_names, relations
from console.engines import lock_limit
from console.errors import BusyError, ConnectionFailedError, ConsoleError
from console.features.prove.questions import Question, an_error_disproves, waiting_disproves
from console.features.prove.site import Site, running
from console.features.prove.trial import DisprovedError, NotApplicableError, Trial, require
from console.monitor.activity import find_objects, sample_activity

BOTH = ("mssql", "postgresql")
_SHORT_SECONDS = 1.0
_LONG_SECONDS = 5.0
"""For whom a relay may keep waiting for a second, and then lets by."""


def _held_lock(site: Site) -> str:
    if why := site.database.capabilities.missing.get("sessions"):
        raise NotApplicableError(why)
    trial = site.trial("fifo", order="strict")
    objects = find_objects(site.database, [trial.installed])
    with site.database.transaction("hold an application lock") as connection:
        holder = trial.session(connection)
        sql.run(connection, "prove.hold_lock", trial.queue.scope(connection))
        with an_error_disproves("activity.sessions"):
            seen = sample_activity(site.database, objects)
    sessions = {str(key) for key in seen.by_key}
    require(holder in sessions, f"of {len(sessions)} sessions none is {holder}, which holds it")
    return f"{len(sessions)} sessions, among them {holder}, which holds it"


_SKIPPING = ("fifo", "claim", "split", "ring")
_WAITING = "status"
"""Its consumers wait for each other, and its figures for nobody."""


def _readpast(site: Site) -> str:
    seen = [_skips(site.trial(design)) for design in _SKIPPING]
    trial = site.trial(_WAITING)
    trial.push(2)
    with site.database.transaction("hold one message") as connection:
        pop_many(connection, trial.queue, 1, "prove")
        _read_figures(trial)
    seen.append(f"{_WAITING}: the figures")
    return f"{'; '.join(seen)}; {_optimized_locking(site)}"


def _skips(trial: Trial) -> str:
    """A pop gets what another one has not locked, and the figures are read meanwhile."""
    name = trial.queue.design.name
    sent = trial.push(4)
    with trial.database.transaction("hold one message") as connection, lock_limit(_SHORT_SECONDS):
        held = pop_many(connection, trial.queue, 1, "prove")
        with waiting_disproves(f"{name}: another pop"):
            others = trial.pop(4)
        _read_figures(trial)
    trial.finish([*held, *others])
    require(len(others) == 3, f"{name}: beside one that holds 1 of 4 a pop of 4 gave {len(others)}")
    trial.require_these(sorted(trial.numbers([*held, *others])), sent)
    return f"{name}: the other 3 of 4, and the figures"


def _read_figures(trial: Trial) -> None:
    with lock_limit(_SHORT_SECONDS), waiting_disproves(f"{trial.queue.design.name}: a sample"):
        trial.figures()


def _optimized_locking(site: Site) -> str:
    if not sql.has(site.database.product, "prove.optimized_locking"):
        return "at once"
    with site.database.transaction("read optimized locking", read_only=True) as connection:
        on = sql.value(connection, bool | None, "prove.optimized_locking")
    return f"optimized locking: {'on' if on else 'off' if on is False else 'unknown here'}"


_ROWS = 4_000


def _no_escalation(site: Site) -> str:
    trial = site.trial("claim")
    scope = trial.queue.scope(site.database.product, relation=trial.queue.table)
    for _ in range(4):
        trial.push(_ROWS // 4)
    with site.database.transaction("let locks escalate") as connection:
        sql.run(connection, "prove.allow_escalation", scope)
    with site.database.transaction("delete as many rows as an action") as connection:
        sql.run(connection, "prove.delete_most", scope)
        locks = sql.value(connection, int, "prove.table_locks", scope)
        connection.rollback()
    require(not locks, f"after {_ROWS:,} rows the session has {locks} locks on all of the table")
    return f"{_ROWS:,} rows of a table, in its key and two indexes: no lock on all of it"


def _relay_beside(site: Site) -> str:
    trial = site.trial("ring")
    sent = trial.push(5)
    with site.database.transaction("hold a pop open") as connection:
        pop_many(connection, trial.queue, 1, "prove")
        with running(lambda: relay(site.database, trial.installed, None)) as relaid:
            try:
                for _ in range(5):
                    with lock_limit(_LONG_SECONDS), waiting_disproves("a push beside a relay"):
                        sent += trial.push(1)
            finally:
                connection.rollback()
            done = relaid.result()
    trial.require_these(sorted(trial.numbers(trial.drain())), sent)
    return f"5 pushes while a relay waited for an open pop; then it relaid {done.live} messages"


def _row_of_configuration(site: Site) -> str:
    for options in ({}, {"subscribers": "a,b"}):
        trial = site.trial("ring", **options)
        scope = trial.queue.scope(site.database.product, relation=f"{trial.installed.name}_config")
        trial.push(4)
        with site.database.transaction("lock a ring's configuration") as connection:
            sql.run(connection, "prove.lock_configuration", scope)
            for name, call in _RING_CALLS.items():
                _require_kept_out(trial, name, call)
        _require_keeps_out(trial, scope)
    return "each push and pop waited for it, also with subscribers; and it waits for an open pop"


_RING_CALLS = {
    "a push": lambda connection, trial: trial.push_one(connection),
    "a push of several": lambda connection, trial: push_many(
        connection, trial.queue, trial.payloads(2)
    ),
    "a pop": lambda connection, trial: pop_many(connection, trial.queue, 1, "prove"),
    "a pop of several": lambda connection, trial: pop_many(connection, trial.queue, 3, "prove"),
}


def _require_kept_out(trial: Trial, name: str, call: object) -> None:
    try:
        with lock_limit(0.3), trial.database.transaction(name) as connection:
            call(connection, trial)  # type: ignore[operator]
    except BusyError:
        return
    raise DisprovedError(f"{name} goes by it")


def _require_keeps_out(trial: Trial, scope: sql.Scope) -> None:
    """An open pop keeps the lock of a relay out."""
    database = trial.database
    with database.transaction("hold a pop open") as connection:
        pop_many(connection, trial.queue, 1, "prove")
        try:
            with lock_limit(0.3), database.transaction("lock the configuration") as other:
                sql.run(other, "prove.lock_configuration", scope)
        except BusyError:
            connection.rollback()
            return
        connection.rollback()
    raise DisprovedError("it goes by an open pop")


def _catalog_during_ddl(site: Site) -> str:
    trial = site.trial("fifo")
    queue, product = trial.installed, site.database.product
    scope = queue.scope(product, relation=queue.table)
    names = object_names.of(product, queue)
    with site.database.transaction("change a table") as connection:
        sql.run(connection, "prove.alter_table", scope)
        with lock_limit(_SHORT_SECONDS), waiting_disproves("the console's reading of the catalog"):
            with site.database.transaction("read the catalog", read_only=True) as other:
                seen = relations.named(other, queue.schema, names)
            objects = find_objects(site.database, [queue])
        connection.rollback()
    require(queue.table in {one.name for one in seen}, f"{queue.table} is not in what it read")
    return f"{len(seen)} objects by name and {len(objects.rows)} that can be locked, at once"


@dataclass(frozen=True)
class _Partitions:
    partitions: int
    schedulers: int


_LEAST_SCHEDULERS = 16
"""From which on the server divides its locks on tables."""


def _table_lock(site: Site) -> str:
    trial = site.trial("fifo")
    scope = trial.queue.scope(site.database.product, relation=trial.queue.table)
    with site.database.transaction("lock a table") as connection:
        sql.run(connection, "prove.lock_table", scope)
        seen = sql.row(connection, _Partitions, "prove.lock_partitions", scope)
        connection.rollback()
    require(seen.partitions, "the session that locked a table has no lock on it")
    words = f"{seen.partitions} locks for one table, {seen.schedulers} schedulers"
    if seen.schedulers < _LEAST_SCHEDULERS:
        raise NotApplicableError(f"needs {_LEAST_SCHEDULERS} schedulers or more: {words}")
    require(seen.partitions >= _LEAST_SCHEDULERS, words)
    return words


_REFUSING = ("naive", "fifo", "claim", "split")


def _refused_levels(site: Site) -> str:
    levels = ["SERIALIZABLE", *(["SNAPSHOT"] if site.own else [])]
    for design in _REFUSING:
        trial = site.trial(design)
        scope = trial.queue.scope(site.database.product, relation=trial.queue.table)
        with site.database.transaction("lock a table") as connection:
            sql.run(connection, "prove.lock_table", scope)
            for level in levels:
                for name in ("push", "pop"):
                    _require_refused(trial, level, name)
            connection.rollback()
    return f"{', '.join(_REFUSING)}: push and pop at {' and '.join(levels)}, beside a locked table"


def _require_refused(trial: Trial, level: str, name: str) -> None:
    what = f"{trial.queue.design.name}: a {name} at {level}"
    call = trial.push_one if name == "push" else partial(_pop, trial)
    try:
        with (
            lock_limit(_SHORT_SECONDS),
            trial.database.transaction(f"{name} at {level}", isolation=level) as connection,
        ):
            call(connection)
    except ConnectionFailedError:
        raise
    except BusyError as error:
        raise DisprovedError(f"{what} waits for a lock instead of being refused") from error
    except ConsoleError as error:
        require("isolation level" in error.what, f"{what}: {error.why or error.what}")
        return
    raise DisprovedError(f"{what} is not refused")


def _pop(trial: Trial, connection: object) -> list[PoppedMessage]:
    return pop_many(connection, trial.queue, 1, "prove")  # type: ignore[arg-type]


QUESTIONS = {
    question.code: question
    for question in (
        Question(
            "held-lock",
            "the list of sessions is read beside an application lock with a long name",
            "activity.sessions: waits, end-session, the doctor, the screens' waits, the recorder; "
            "the server pads a lock's name with blanks and shows 32 characters of it",
            "all of these fail as soon as anybody holds such a lock: a strict fifo, a pipeline, "
            "Hangfire",
            _held_lock,
            BOTH,
        ),
        Question(
            "readpast",
            "a pop skips what another one has locked, and the figures do not wait for it",
            "fifo, claim, split, ring and the samples of all designs: READPAST (SKIP LOCKED), "
            "through key lookups, at any setting of row versions and of optimized locking",
            "consumers wait for each other, or a sample for a consumer: the queue has the "
            "throughput of one",
            _readpast,
            BOTH,
        ),
        Question(
            "no-escalation",
            "4,000 rows of a table with two indexes leave no lock on all of the table",
            "purge, archive, requeue on tables that others made: an action takes that many at "
            "most, divided by 1 and the number of their indexes, in case all locks are counted",
            "an action on an adopted table stops all its callers until its batch is committed",
            _no_escalation,
        ),
        Question(
            "relay-beside",
            "while a relay waits for an open pop, pushes of others go on",
            "relay and upgrade on a live ring: each attempt waits for a moment and lets others by",
            "one forgotten transaction and a relay stop all callers of the ring",
            _relay_beside,
            BOTH,
            most_seconds=60.0,
        ),
        Question(
            "row-of-configuration",
            "an exclusive lock on the row of a ring's configuration keeps every caller out",
            "relay: XLOCK on that row, which every call reads WITH (REPEATABLEREAD)",
            "a relay renumbers messages while calls go on: messages are lost or come twice",
            _row_of_configuration,
            BOTH,
        ),
        Question(
            "catalog-during-ddl",
            "the console reads the catalog while somebody's DDL is not committed",
            "status, the screens, discover, doctor: they read the catalog's views with their "
            "functions",
            "one DBA's open transaction stops every console",
            _catalog_during_ddl,
            BOTH,
        ),
        Question(
            "table-lock",
            "TABLOCKX is taken on each partition of a table's lock, on 16 processors and more",
            "nothing any more: relay locks one row instead; maintain's lock of a sequence does it",
            "a lock of all of a table is cheaper than it is said to be",
            _table_lock,
            everywhere=False,
        ),
        Question(
            "refused-levels",
            "push and pop refuse SERIALIZABLE and SNAPSHOT before they wait for any lock",
            "every design but ring: what others committed has to be seen, and nothing skipped",
            "a caller at these levels waits or loses the order instead of reading why not",
            _refused_levels,
        ),
    )
}
