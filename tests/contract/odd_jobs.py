"""Jobs of each library in some of their states, and odd values for every column of their tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.contract.due_jobs import DUE_JOBS, SCHEMA, stand_in
from tests.contract.libraries import Tables
from tests.contract.packages import NodeTables, from_npm, from_pip
from tests.contract.stand_in import RIVER
from tests.contract.test_graphile_worker_postgresql import GraphileApp
from tests.contract.test_odd_values_postgresql import ODD
from tests.contract.test_older_versions_postgresql import BOSS_9, BOSS_10, install_of, run_node

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
class OddJobs:
    """Tables of a library, and SQL that fills them while they are empty, a dozen a state."""

    preset: str
    create: Callable[[str], Tables]
    fill: str
    tables: tuple[str, ...]
    """Those that the preset reads."""
    queue: str = ""
    """Its queue, if the library's figures need one."""
    rewrites: tuple[str, ...] = ()
    """Columns of texts that the library itself writes when it makes a job ready."""
    deciding: tuple[str, ...] = ()
    """Columns by whose odd values a job is in no state, so that no list has it."""

    def __str__(self) -> str:
        return self.preset

    def start(self, theirs: Tables) -> None:
        """The usual jobs, and nothing else."""
        names = ", ".join(self.tables)
        theirs.run(f"TRUNCATE {names} RESTART IDENTITY CASCADE; {self.fill}")

    def columns(self, theirs: Tables) -> list[Column]:
        """Those that odd values can be put into; keys are last."""
        rows = theirs.rows(_COLUMNS, [theirs.schema, list(self.tables)])
        found = [Column(*row) for row in rows if row[2] in VALUES]
        return sorted(found, key=lambda column: column.name == column.key)


_SERIES = f"generate_series(1, {CYCLE}) AS n"
_CREATED: Mapping[str, Callable[[str], Tables]] = {job.preset: job.create for job in DUE_JOBS}
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


def _of_pip(package: str, script: str) -> Callable[[str], Tables]:
    """`script` prints its installation."""

    def create(url: str) -> Tables:
        return stand_in(install_of(from_pip(package), script))(url)

    return create


def _of_npm(version: str, script: str) -> Callable[[str], Tables]:
    """pg-boss, by a script that starts it."""

    def create(url: str) -> Tables:
        boss = NodeTables(url, "their_boss", from_npm("pg-boss", version))
        run_node(boss, script)
        return boss

    return create


def _graphile(version: str) -> Callable[[str], Tables]:
    def create(url: str) -> Tables:
        app = GraphileApp(url, SCHEMA, from_npm("graphile-worker", version))
        app.install()
        return app

    return create


_PROCRASTINATE_SQL = """
import pathlib, sys
print(next(pathlib.Path(p, "procrastinate/sql/schema.sql").read_text() for p in sys.path
    if pathlib.Path(p, "procrastinate/sql/schema.sql").exists()))
"""
_PGQUEUER_SQL = "from pgqueuer.queries import *; print(QueryBuilder().create_install_query())"
_OLD_RIVER = RIVER + "DROP TABLE river_queue; ALTER TABLE river_job DROP COLUMN unique_states;"

LIBRARIES: Sequence[OddJobs] = (
    OddJobs("river", _CREATED["river"], _RIVER, ("river_job", "river_queue")),
    OddJobs(
        "river-0",
        stand_in(_OLD_RIVER),
        _RIVER.replace("INSERT INTO river_queue (name) VALUES ('default');", ""),
        ("river_job",),
    ),
    OddJobs(
        "solid-queue",
        _CREATED["solid-queue"],
        _SOLID_QUEUE,
        (
            "solid_queue_jobs",
            *(f"solid_queue_{state}_executions" for state in ("failed", "ready", "scheduled")),
        ),
        deciding=("solid_queue_scheduled_executions.job_id",),
    ),
    OddJobs(
        "hangfire",
        _CREATED["hangfire"],
        _HANGFIRE,
        ("job", "state", "jobqueue", "server"),
        deciding=("job.statename",),
    ),
    OddJobs("delayed-job", _CREATED["delayed-job"], _DELAYED_JOB, ("delayed_jobs",)),
    OddJobs("laravel", _CREATED["laravel"], _LARAVEL, ("jobs",)),
    OddJobs("symfony", _CREATED["symfony"], _SYMFONY, ("messenger_messages",)),
    OddJobs("oban", _CREATED["oban"], _OBAN, ("oban_jobs", "oban_producers"), rewrites=("meta",)),
    OddJobs("pgmq", _CREATED["pgmq"], _PGMQ, ("q_jobs", "a_jobs")),
    OddJobs(
        "procrastinate",
        _CREATED["procrastinate"],
        _PROCRASTINATE_3,
        ("procrastinate_jobs", "procrastinate_events", "procrastinate_workers"),
    ),
    OddJobs(
        "procrastinate-2",
        _of_pip("procrastinate==2.15.1", _PROCRASTINATE_SQL),
        _PROCRASTINATE,
        ("procrastinate_jobs", "procrastinate_events"),
    ),
    OddJobs("pgqueuer", _CREATED["pgqueuer"], _PGQUEUER, ("pgqueuer", "pgqueuer_log")),
    OddJobs("pgqueuer-0", _of_pip("pgqueuer==0.15.0", _PGQUEUER_SQL), _PGQUEUER_0, ("pgqueuer",)),
    OddJobs(
        "graphile-worker",
        _CREATED["graphile-worker"],
        _GRAPHILE_18,
        ("_private_jobs", "_private_job_queues", "_private_tasks"),
    ),
    OddJobs(
        "graphile-worker-15", _graphile("0.15.1"), _GRAPHILE_15, ("jobs", "job_queues", "tasks")
    ),
    OddJobs("graphile-worker-0", _graphile("0.13.0"), _GRAPHILE_0, ("jobs", "job_queues")),
    OddJobs("pg-boss", _CREATED["pg-boss"], _BOSS, ("job_common",)),
    OddJobs("pg-boss-11", _of_npm("11.1.2", BOSS_10), _BOSS, ("job_common",)),
    OddJobs("pg-boss-9", _of_npm("9.0.3", BOSS_9), _BOSS_OF_9, ("job",)),
)
