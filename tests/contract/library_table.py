"""One table of the libraries: how their tables are made, their jobs in each state, what each keeps
of a finished job; and odd values for every column of their tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.contract import pgmq_library
from tests.contract.libraries import Tables, once
from tests.contract.node_libraries import (
    BOSS_9,
    BOSS_10,
    GraphileApp,
    graphile_worker,
    pg_boss,
    run_node,
)
from tests.contract.oban_library import oban
from tests.contract.packages import NodeTables, from_npm, from_pip, install_of
from tests.contract.python_libraries import PgQueuerApp, procrastinate
from tests.contract.stand_in import (
    DELAYED_JOB,
    HANGFIRE,
    LARAVEL,
    RIVER,
    SOLID_QUEUE,
    SYMFONY,
    StandIn,
)
from tests.contract.test_odd_values_postgresql import ODD

SCHEMA = "Theirs"

CYCLE = 12
"""Of each dozen jobs the first is usual."""
_LONG = "x" * 1_000_000
_JSON = (
    *(*ODD["jsonb"], "1", '"x"', '{"error": {"a": 1}, "at": "infinity", "EnqueueAt": "x"}'),
    *('{"error": "no", "at": "9999-12-31T23:59:59Z", "rescued": "99999999999"}', f'["{_LONG}"]'),
)
_TEXT = (
    *(*ODD["text"], '{"message": 1, "exception_class": []}', "[1e400]", "null", _LONG),
    r'{"message": "\u0000", "exception_class": "\ud800"}',
)
VALUES: Mapping[str, Sequence[str]] = {
    "timestamptz": ODD["timestamptz"],
    # timestamp(0) stores what is rounded up to the year 294277, and the server then cannot write it
    "timestamp": (*ODD["timestamp"][:-2], "294276-12-31 23:59:59", ODD["timestamp"][-1]),
    "json": (*ODD["json"], '{"a":1,"a":1e22,  "b" : 1.0}', f'["{_LONG}"]'),
    "jsonb": _JSON,
    "text": _TEXT,
    "varchar": _TEXT,
    "_jsonb": ("{}", "{NULL}", '{"null"}', '{"[1]",NULL}', r'{"{\"error\": {}}"}', '{{"1"},{"2"}}'),
    "_text": ("{}", "{NULL}", "{{a,b},{c,d}}", "[5:5]={a}"),
    "int2": ("32767", "-32768"),
    "int4": ("2147483647", "-2147483648"),
    "int8": ODD["bigint"],
    "bytea": ODD["bytea"],
    "uuid": ODD["uuid"],
    "bool": ODD["boolean"],
    "interval": ODD["interval"],
}


_COLUMNS = """
SELECT table_name, column_name, udt_name, first_value(column_name) OVER (
    PARTITION BY table_name ORDER BY ordinal_position
) AS key
FROM information_schema.columns WHERE table_schema = %s AND table_name = ANY(%s)
ORDER BY table_name, column_name DESC
"""


@dataclass(frozen=True)
class Column:
    table: str
    name: str
    type_: str
    key: str
    """The first column of the table, which tells its rows apart."""

    def __str__(self) -> str:
        return f"{self.table}.{self.name}"

    def put(self, theirs: Tables, turn: int = 0) -> None:
        """Each odd value of the type into every twelfth row, or into one where it is long or no two
        may have it, unless a constraint forbids that too. Another turn puts it into other rows."""
        script = f"""
        BEGIN; SET CONSTRAINTS ALL IMMEDIATE;
        CREATE TEMP TABLE spot AS
        SELECT tableoid AS t, ctid AS c, row_number() OVER (ORDER BY {self.key}) - 1 AS n
        FROM {self.table};
        """
        for at, value in enumerate(VALUES[self.type_], turn):
            number = 1 + at % (CYCLE - 1)
            update = f"""
            UPDATE {self.table} AS m SET {self.name} = $odd${value}$odd$ FROM spot
            WHERE m.tableoid = t AND m.ctid = c AND
            """
            several = f"mod(n, {CYCLE}) = {number}" if len(value) < 1000 else f"n = {number}"
            script += f"""
            DO $do$ BEGIN {update} {several};
            EXCEPTION WHEN OTHERS THEN
                BEGIN {update} n = {number}; EXCEPTION WHEN OTHERS THEN NULL; END;
            END $do$;
            """
        theirs.run(f"{script} COMMIT")


@dataclass(frozen=True)
class Due:
    """A job that was pushed a day ago, for a later time, and that nobody has taken: SQL with
    `{due}` for the time at which it was to be run."""

    waits: str = ""
    """Inserts the job where a worker would take it."""
    staged: str = ""
    """Inserts it where the library's own machinery should have made it ready."""


@dataclass(frozen=True)
class Finished:
    """A finished job, of a library that keeps it: SQL with `{at}` for the time of finishing."""

    adds: str = ""
    """Adds a job that is finished."""
    again: str = ""
    """The first job was retried, and finishes again."""
    table: str = ""
    payload: str = ""
    """In the lake, as an SQL expression of the table."""
    pruned: str = ""
    """How long ago a job must have finished for the library to delete it."""


@dataclass(frozen=True)
class Library:
    """Its tables, and SQL that fills them while they are empty, a dozen jobs a state."""

    preset: str
    create: Callable[[str], Tables]
    """Its tables in a database, as far as possible by the library itself."""
    fill: str
    tables: tuple[str, ...]
    """Those that the preset reads."""
    due: Due = Due()
    finished: Finished = Finished()
    queue: str = ""
    """Its queue, if the library's figures need one."""
    rewrites: tuple[str, ...] = ()
    """Columns of texts that the library itself writes when it makes a job ready."""
    deciding: tuple[str, ...] = ()
    """Columns by whose odd values a job is in no state, so that no list has it."""

    def __str__(self) -> str:
        return self.preset

    def empty(self, theirs: Tables) -> None:
        theirs.run(f"TRUNCATE {', '.join(self.tables)} RESTART IDENTITY CASCADE")

    def start(self, theirs: Tables) -> None:
        """The usual jobs, and nothing else."""
        self.empty(theirs)
        theirs.run(self.fill)

    def finish(self, theirs: Tables, at: str = "now()") -> None:
        """Add a job that has finished."""
        theirs.run(self.finished.adds.format(at=at))

    def columns(self, theirs: Tables) -> list[Column]:
        """Those that odd values can be put into; keys are last."""
        rows = theirs.rows(_COLUMNS, [theirs.schema, list(self.tables)])
        found = [Column(*row) for row in rows if row[2] in VALUES]
        return sorted(found, key=lambda column: column.name == column.key)


def stand_in(script: str) -> Callable[[str], Tables]:
    def create(url: str) -> Tables:
        tables = StandIn(url, SCHEMA)
        tables.create(script)
        return tables

    return create


@once
def _pgqueuer(url: str) -> Tables:
    app = PgQueuerApp(url, "theirs", "")
    app.install()
    return app


def of_pip(package: str, script: str) -> Callable[[str], Tables]:
    """`script` prints its installation."""

    def create(url: str) -> Tables:
        return stand_in(install_of(from_pip(package), script))(url)

    return create


def of_npm(version: str, script: str) -> Callable[[str], Tables]:
    """pg-boss, by a script that starts it."""

    def create(url: str) -> Tables:
        boss = NodeTables(url, "their_boss", from_npm("pg-boss", version))
        run_node(boss, script)
        return boss

    return create


def graphile_of(version: str) -> Callable[[str], Tables]:
    def create(url: str) -> Tables:
        app = GraphileApp(url, SCHEMA, from_npm("graphile-worker", version))
        app.install()
        return app

    return create


PROCRASTINATE_SQL = """
import pathlib, sys
print(next(pathlib.Path(p, "procrastinate/sql/schema.sql").read_text() for p in sys.path
    if pathlib.Path(p, "procrastinate/sql/schema.sql").exists()))
"""
PGQUEUER_SQL = "from pgqueuer.queries import *; print(QueryBuilder().create_install_query())"
_YESTERDAY = "now() - interval '1 day'"
_YESTERDAY_UTC = f"timezone('UTC', {_YESTERDAY})"
_DUE_UTC = "timezone('UTC', {due})"

_DUE_RIVER = f"""
INSERT INTO river_job (state, created_at, scheduled_at) VALUES ('%s', {_YESTERDAY}, {{due}})
"""
_DUE_OBAN = f"""
INSERT INTO oban_jobs (state, worker, queue, inserted_at, scheduled_at)
VALUES ('%s', 'Send', 'mail', {_YESTERDAY_UTC}, {_DUE_UTC})
"""
_DUE_SOLID_QUEUE = f"""
WITH job AS (
    INSERT INTO solid_queue_jobs (created_at, updated_at, scheduled_at)
    VALUES ({_YESTERDAY_UTC}, {_YESTERDAY_UTC}, {_DUE_UTC}) RETURNING *
)
"""
_DUE_HANGFIRE = f"""
WITH job AS (
    INSERT INTO job (createdat, stateid, statename)
    VALUES ({_YESTERDAY}, nextval('state_id_seq'), '%s') RETURNING *
)
INSERT INTO state (id, jobid, name, createdat, data)
SELECT stateid, id, statename, %s FROM job
"""

_UTC = "timezone('UTC', {at})"


_FIRST = "WHERE id = (SELECT id FROM {table} ORDER BY id LIMIT 1)"
_SERIES = f"generate_series(1, {CYCLE}) AS n"
_RIVER = f"""
INSERT INTO river_queue (name) VALUES ('default');
INSERT INTO river_job (state, errors, attempt, attempted_at, finalized_at)
SELECT 'discarded', ARRAY['{{"error": "no"}}'::jsonb], 1, now(), now() FROM {_SERIES};
INSERT INTO river_job (state) SELECT 'available' FROM {_SERIES};
INSERT INTO river_job (state, errors) SELECT 'retryable',
    ARRAY['{{"error": "no", "at": "2026-03-01T00:00:00Z"}}'::jsonb] FROM {_SERIES};
INSERT INTO river_job (state, attempted_at) SELECT 'running', now() FROM {_SERIES};
"""
_SOLID_QUEUE = f"""
INSERT INTO solid_queue_jobs (arguments) SELECT '{{}}' FROM generate_series(1, {3 * CYCLE});
INSERT INTO solid_queue_failed_executions (job_id, error, created_at)
SELECT n, '{{"message": "no"}}', now() FROM {_SERIES};
INSERT INTO solid_queue_ready_executions (job_id, queue_name, created_at)
SELECT n + {CYCLE}, 'mail', now() FROM {_SERIES};
INSERT INTO solid_queue_scheduled_executions (job_id, queue_name, created_at, scheduled_at)
SELECT n + {2 * CYCLE}, 'mail', now(), now() FROM {_SERIES};
"""
_HANGFIRE = f"""
INSERT INTO job (statename, stateid)
SELECT name, n FROM unnest(ARRAY['Failed', 'Enqueued', 'Scheduled']) WITH ORDINALITY
    AS s (name, at), LATERAL (SELECT n + {CYCLE} * (at - 1) AS n FROM {_SERIES}) AS i;
INSERT INTO state (id, jobid, name, data)
SELECT id, id, statename, '{{"EnqueueAt": "2026-03-01T00:00:00Z"}}' FROM job;
INSERT INTO jobqueue (jobid, queue) SELECT n + {CYCLE}, 'default' FROM {_SERIES};
INSERT INTO server (id, lastheartbeat) SELECT n, now() FROM {_SERIES};
"""
_DELAYED_JOB = f"""
INSERT INTO delayed_jobs (handler, queue, run_at, created_at, last_error, failed_at)
SELECT 'x', 'mail', now(), now(), 'no', now() FROM {_SERIES};
INSERT INTO delayed_jobs (handler, queue, run_at, created_at, locked_at, locked_by)
SELECT 'x', 'mail', now(), now(), now(), 'w' FROM {_SERIES};
"""
_LARAVEL = f"""
INSERT INTO jobs (queue, payload, attempts, available_at, created_at, reserved_at)
SELECT 'mail', '{{"displayName": "x"}}', 1, 1, 1, CASE WHEN n > 1 THEN 1 END FROM {_SERIES};
"""
_BEFORE = "now() - interval '1 minute'"
"""timestamp(0) rounds now() up as often as down."""
_SYMFONY = f"""
INSERT INTO messenger_messages (body, headers, queue_name, created_at, available_at, delivered_at)
SELECT 'x', '{{}}', 'mail', {_BEFORE}, {_BEFORE}, CASE WHEN n > 1 THEN now() END FROM {_SERIES};
INSERT INTO messenger_messages (body, headers, queue_name, created_at, available_at)
SELECT 'x', '{{"type":"App"}}', 'mail', {_BEFORE}, {_BEFORE} FROM {_SERIES};
"""
_OBAN = f"""
INSERT INTO oban_producers (uuid, node, queue)
SELECT gen_random_uuid(), 'w', 'mail' FROM {_SERIES};
INSERT INTO oban_jobs (worker, queue, state, attempt, max_attempts, errors, attempted_by,
    attempted_at, discarded_at)
SELECT 'Send', 'mail', CAST(s AS oban_job_state), 1, 1,
    '[{{"error": "no", "at": "2026-03-01T00:00:00Z"}}]',
    ARRAY['w', (SELECT CAST(uuid AS text) FROM oban_producers LIMIT 1)],
    timezone('UTC', now()), timezone('UTC', now())
FROM unnest(ARRAY['available', 'retryable', 'executing', 'discarded']) AS s, {_SERIES};
"""
_PGMQ = f"""
INSERT INTO q_jobs (read_ct, vt, message)
SELECT reads, now() + wait * interval '1 h', '{{}}'
FROM (VALUES (0, -1), (0, 1), (1, 1)) AS s (reads, wait), {_SERIES};
INSERT INTO a_jobs (msg_id, vt, message) SELECT 1000 + n, now(), '{{}}' FROM {_SERIES};
"""
_PROCRASTINATE = f"""
INSERT INTO procrastinate_jobs (queue_name, task_name, scheduled_at)
SELECT 'mail', 'send', now() FROM generate_series(1, {4 * CYCLE});
UPDATE procrastinate_jobs SET status = 'doing' WHERE id > {CYCLE};
UPDATE procrastinate_jobs SET status = 'failed' WHERE id > {2 * CYCLE};
"""
_PROCRASTINATE_3 = f"""
INSERT INTO procrastinate_workers (id) OVERRIDING SYSTEM VALUE SELECT n FROM {_SERIES};
{_PROCRASTINATE}
UPDATE procrastinate_jobs SET worker_id = id - {CYCLE} WHERE status = 'doing';
"""
_PGQUEUER = f"""
INSERT INTO pgqueuer (priority, status, entrypoint, queue_manager_id, payload)
SELECT 0, CAST(s AS pgqueuer_status), 'mail', gen_random_uuid(), 'x'
FROM unnest(ARRAY['queued', 'picked', 'failed']) AS s, {_SERIES};
INSERT INTO pgqueuer_log (job_id, status, priority, entrypoint, traceback)
SELECT id, 'exception', 0, 'mail',
    '{{"exception_type": "ValueError", "exception_message": "no"}}' FROM pgqueuer;
"""
_PGQUEUER_0 = f"""
INSERT INTO pgqueuer (priority, status, entrypoint, payload)
SELECT 0, CAST(s AS pgqueuer_status), 'mail', 'x'
FROM unnest(ARRAY['queued', 'picked']) AS s, {_SERIES};
"""
_GRAPHILE = """
SELECT count(add_job('send', '{"n": 1}', queue_name => q))
FROM generate_series(1, %d) AS n, unnest(ARRAY[NULL, 'q' || n]) AS q;
UPDATE %s SET attempts = max_attempts, last_error = 'no' WHERE mod(id, 4) = 1;
UPDATE %s SET locked_at = now(), locked_by = 'w' WHERE mod(id, 4) = 2;
UPDATE %s SET locked_at = now(), locked_by = 'w';
"""
_GRAPHILE_18, _GRAPHILE_15, _GRAPHILE_0 = (
    _GRAPHILE % (2 * CYCLE, jobs, jobs, queues)
    for jobs, queues in (("_private_jobs", "_private_job_queues"), *[("jobs", "job_queues")] * 2)
)
_BOSS = f"""
INSERT INTO job (name, state, data, output, started_on, completed_on, retry_count)
SELECT 'mail', CAST(s AS job_state), '{{}}', '{{"message": "no"}}', now(), now(), 1
FROM unnest(ARRAY['created', 'retry', 'active', 'failed']) AS s, {_SERIES};
"""
_BOSS_OF_9 = _BOSS.replace("_on", "on").replace("retry_", "retry")


OLD_RIVER = RIVER + "DROP TABLE river_queue; ALTER TABLE river_job DROP COLUMN unique_states;"

LIBRARY_TABLE: Sequence[Library] = (
    Library(
        "river",
        stand_in(RIVER),
        _RIVER,
        ("river_job", "river_queue"),
        due=Due(_DUE_RIVER % "available", _DUE_RIVER % "scheduled"),
        finished=Finished(
            """INSERT INTO river_job (state, attempt, finalized_at, args)
        VALUES ('completed', 1, {at}, '{{"n": 1}}')""",
            "UPDATE river_job SET attempt = attempt + 1, finalized_at = {at} "
            + _FIRST.format(table="river_job"),
            "river_job",
            "args::text",
            pruned="24 hours",
        ),
    ),
    Library(
        "river-0",
        stand_in(OLD_RIVER),
        _RIVER.replace("INSERT INTO river_queue (name) VALUES ('default');", ""),
        ("river_job",),
    ),
    Library(
        "solid-queue",
        stand_in(SOLID_QUEUE),
        _SOLID_QUEUE,
        (
            "solid_queue_jobs",
            *(f"solid_queue_{state}_executions" for state in ("failed", "ready", "scheduled")),
        ),
        due=Due(
            _DUE_SOLID_QUEUE
            + f"""
        INSERT INTO solid_queue_ready_executions (job_id, queue_name, created_at)
        SELECT id, queue_name, {_DUE_UTC} FROM job
        """,
            _DUE_SOLID_QUEUE
            + f"""
        INSERT INTO solid_queue_scheduled_executions (job_id, queue_name, created_at, scheduled_at)
        SELECT id, queue_name, created_at, {_DUE_UTC} FROM job
        """,
        ),
        finished=Finished(
            f"INSERT INTO solid_queue_jobs (arguments, finished_at) VALUES ('{{{{}}}}', {_UTC})",
            f"UPDATE solid_queue_jobs SET finished_at = {_UTC} "
            + _FIRST.format(table="solid_queue_jobs"),
            "solid_queue_jobs",
            "arguments",
            pruned="1 day",
        ),
        deciding=("solid_queue_scheduled_executions.job_id",),
    ),
    Library(
        "hangfire",
        stand_in(HANGFIRE),
        _HANGFIRE,
        ("job", "state", "jobqueue", "server"),
        due=Due(
            _DUE_HANGFIRE % ("Enqueued", """{due}, '{{"Queue": "mail"}}'"""),
            _DUE_HANGFIRE % ("Scheduled", "now(), jsonb_build_object('EnqueueAt', {due})"),
        ),
        finished=Finished(
            """WITH one AS (
            INSERT INTO job (stateid, statename) VALUES (nextval('state_id_seq'), 'Succeeded')
            RETURNING *
        ) INSERT INTO state (id, jobid, name, createdat)
        SELECT stateid, id, statename, {at} FROM one""",
            "UPDATE state SET createdat = {at} " + _FIRST.format(table="state"),
            "job",
            "arguments::text",
        ),
        deciding=("job.statename",),
    ),
    Library(
        "delayed-job",
        stand_in(DELAYED_JOB),
        _DELAYED_JOB,
        ("delayed_jobs",),
        due=Due(
            f"""
        INSERT INTO delayed_jobs (handler, created_at, run_at)
        VALUES ('--- !ruby/struct:Send', {_YESTERDAY_UTC}, {_DUE_UTC})
        """
        ),
        finished=Finished(
            f"""INSERT INTO delayed_jobs (handler, attempts, queue, run_at, created_at, failed_at)
        VALUES ('x', 1, 'mail', now(), now(), {_UTC})""",
            f"UPDATE delayed_jobs SET attempts = attempts + 1, failed_at = {_UTC} "
            + _FIRST.format(table="delayed_jobs"),
            "delayed_jobs",
            "handler",
        ),
    ),
    Library(
        "laravel",
        stand_in(LARAVEL),
        _LARAVEL,
        ("jobs",),
        due=Due(
            f"""
        INSERT INTO jobs (queue, payload, attempts, created_at, available_at)
        SELECT 'mail', '{{{{}}}}', 0, EXTRACT(EPOCH FROM {_YESTERDAY}), EXTRACT(EPOCH FROM {{due}})
        """
        ),
    ),
    Library(
        "symfony",
        stand_in(SYMFONY),
        _SYMFONY,
        ("messenger_messages",),
        due=Due(
            f"""
        INSERT INTO messenger_messages (body, headers, queue_name, created_at, available_at)
        VALUES ('x', '[]', 'mail', {_YESTERDAY_UTC}, {_DUE_UTC})
        """
        ),
    ),
    Library(
        "oban",
        oban,
        _OBAN,
        ("oban_jobs", "oban_producers"),
        due=Due(_DUE_OBAN % "available", _DUE_OBAN % "retryable"),
        finished=Finished(
            f"""INSERT INTO oban_jobs
            (worker, queue, state, attempt, args, scheduled_at, completed_at)
        VALUES ('Send', 'mail', 'completed', 1, '{{{{"n": 1}}}}', {_UTC}, {_UTC})""",
            f"UPDATE oban_jobs SET attempt = attempt + 1, completed_at = {_UTC} "
            + _FIRST.format(table="oban_jobs"),
            "oban_jobs",
            "args::text",
            pruned="1 day",
        ),
        rewrites=("meta",),
    ),
    Library(
        "pgmq",
        pgmq_library.pgmq,
        _PGMQ,
        ("q_jobs", "a_jobs"),
        due=Due(
            f"""
        INSERT INTO q_jobs (enqueued_at, vt, message) VALUES ({_YESTERDAY}, {{due}}, '{{{{}}}}')
        """
        ),
        finished=Finished(
            """INSERT INTO a_jobs (msg_id, read_ct, enqueued_at, archived_at, vt, message)
        SELECT coalesce(max(msg_id), 0) + 1, 1, now(), {at}, now(), '{{"n": 1}}' FROM a_jobs""",
            "",
            "a_jobs",
            "message::text",
        ),
    ),
    Library(
        "procrastinate",
        procrastinate,
        _PROCRASTINATE_3,
        ("procrastinate_jobs", "procrastinate_events", "procrastinate_workers"),
        due=Due(
            f"""
        WITH job AS (
            INSERT INTO procrastinate_jobs (queue_name, task_name, scheduled_at)
            VALUES ('mails', 'send', {{due}}) RETURNING id
        )
        SELECT FROM job;
        UPDATE procrastinate_events SET at = {_YESTERDAY} WHERE type = 'deferred'
        """
        ),
        finished=Finished(
            """WITH one AS (
            INSERT INTO procrastinate_jobs (queue_name, task_name) VALUES ('mail', 'send')
            RETURNING id
        ) SELECT FROM one;
        UPDATE procrastinate_jobs SET status = 'doing', attempts = 1 WHERE status = 'todo';
        UPDATE procrastinate_jobs SET status = 'succeeded' WHERE status = 'doing';
        UPDATE procrastinate_events SET at = {at}
        WHERE job_id = (SELECT max(id) FROM procrastinate_jobs)""",
            """UPDATE procrastinate_jobs SET attempts = attempts + 1
        WHERE id = (SELECT min(id) FROM procrastinate_jobs);
        INSERT INTO procrastinate_events (job_id, type, at)
        SELECT min(id), 'succeeded', {at} FROM procrastinate_jobs""",
            "procrastinate_jobs",
            "args::text",
            pruned="1 day",
        ),
    ),
    Library(
        "procrastinate-2",
        of_pip("procrastinate==2.15.1", PROCRASTINATE_SQL),
        _PROCRASTINATE,
        ("procrastinate_jobs", "procrastinate_events"),
    ),
    Library(
        "pgqueuer",
        _pgqueuer,
        _PGQUEUER,
        ("pgqueuer", "pgqueuer_log"),
        due=Due(
            f"""
        INSERT INTO pgqueuer (priority, status, entrypoint, created, updated, execute_after)
        VALUES (0, 'queued', 'mail', {_YESTERDAY}, {_YESTERDAY}, {{due}})
        """
        ),
    ),
    Library("pgqueuer-0", of_pip("pgqueuer==0.15.0", PGQUEUER_SQL), _PGQUEUER_0, ("pgqueuer",)),
    Library(
        "graphile-worker",
        graphile_worker,
        _GRAPHILE_18,
        ("_private_jobs", "_private_job_queues", "_private_tasks"),
        due=Due(
            f"""
        SELECT add_job('send');
        UPDATE _private_jobs SET created_at = {_YESTERDAY}, run_at = {{due}}
        """
        ),
        finished=Finished(
            """SELECT add_job('send', '{{"n": 1}}');
        UPDATE _private_jobs SET attempts = max_attempts, last_error = 'no', run_at = {at},
            updated_at = {at} WHERE attempts < max_attempts""",
            "UPDATE _private_jobs SET updated_at = {at} " + _FIRST.format(table="_private_jobs"),
            "_private_jobs",
            "payload::text",
            pruned="0 s",
        ),
    ),
    Library(
        "graphile-worker-15", graphile_of("0.15.1"), _GRAPHILE_15, ("jobs", "job_queues", "tasks")
    ),
    Library("graphile-worker-0", graphile_of("0.13.0"), _GRAPHILE_0, ("jobs", "job_queues")),
    Library(
        "pg-boss",
        pg_boss,
        _BOSS,
        ("job_common",),
        due=Due(
            f"""INSERT INTO job (name, created_on, start_after)
            VALUES ('mail', {_YESTERDAY}, {{due}})"""
        ),
        finished=Finished(
            """INSERT INTO job (name, state, data, completed_on, retry_count, deletion_seconds)
        VALUES ('mail', 'completed', '{{"n": 1}}', {at}, 0, 86400)""",
            "UPDATE job SET retry_count = retry_count + 1, completed_on = {at} "
            + _FIRST.format(table="job"),
            "job",
            "data::text",
            pruned="1 day",
        ),
        queue="mail",
    ),
    Library("pg-boss-11", of_npm("11.1.2", BOSS_10), _BOSS, ("job_common",)),
    Library("pg-boss-9", of_npm("9.0.3", BOSS_9), _BOSS_OF_9, ("job",)),
)
DUE = [of for of in LIBRARY_TABLE if of.due.waits]
FINISHED = [of for of in LIBRARY_TABLE if of.finished.adds]
BY_NAME = {of.preset: of for of in LIBRARY_TABLE}
