"""A job of each library that was pushed a day ago, for a later time, and that nobody has taken."""

from collections.abc import Callable
from dataclasses import dataclass

from console.features.presets.designs import LIBRARIES
from tests.contract import pgmq_library, test_graphile_worker_postgresql, test_oban_postgresql
from tests.contract.libraries import Tables, once
from tests.contract.packages import from_npm
from tests.contract.python_libraries import PgQueuerApp, ProcrastinateApp
from tests.contract.stand_in import (
    DELAYED_JOB,
    HANGFIRE,
    LARAVEL,
    RIVER,
    SOLID_QUEUE,
    SYMFONY,
    StandIn,
)
from tests.contract.test_pg_boss_postgresql import PgBossApp

SCHEMA = "Theirs"


@dataclass(frozen=True)
class DueJob:
    """SQL with `{due}` for the time at which the job was to be run."""

    preset: str
    create: Callable[[str], Tables]
    """Its tables in a database, as far as possible by the library itself."""
    waits: str
    """Inserts the job where a worker would take it."""
    staged: str = ""
    """Inserts it where the library's own machinery should have made it ready."""
    table: str = ""
    """Its name, if the preset does not know it."""
    queue: str = ""
    """Its queue, if the library's figures need one."""

    def __str__(self) -> str:
        return self.preset

    def empty(self, tables: Tables) -> None:
        table = LIBRARIES[self.preset].found_by["table"]
        name = self.table or str(table)
        tables.run(f"TRUNCATE {name} CASCADE")


def stand_in(script: str) -> Callable[[str], Tables]:
    def create(url: str) -> Tables:
        tables = StandIn(url, SCHEMA)
        tables.create(script)
        return tables

    return create


@once
def _pgmq(url: str) -> Tables:
    pgmq_library.install(url)
    pgmq_library.run(url, "SELECT pgmq.create('jobs')")
    return Tables(url, "pgmq")


@once
def _procrastinate(url: str) -> Tables:
    app = ProcrastinateApp(url, SCHEMA)
    app.install()
    return app


@once
def _pgqueuer(url: str) -> Tables:
    app = PgQueuerApp(url, "theirs", "")
    app.install()
    return app


@once
def _graphile_worker(url: str) -> Tables:
    app = test_graphile_worker_postgresql.GraphileApp(url, SCHEMA, from_npm("graphile-worker"))
    app.install()
    return app


@once
def _pg_boss(url: str) -> Tables:
    app = PgBossApp(url, "their_boss", from_npm("pg-boss"))
    app.do('await boss.createQueue("mail")')
    return app


@once
def _oban(url: str) -> Tables:
    queries = test_oban_postgresql.installed()
    app = test_oban_postgresql.ObanApp(url, "their_oban", queries)
    app.install()
    return app


_YESTERDAY = "now() - interval '1 day'"
_YESTERDAY_UTC = f"timezone('UTC', {_YESTERDAY})"
_DUE_UTC = "timezone('UTC', {due})"

_RIVER = f"""
INSERT INTO river_job (state, created_at, scheduled_at) VALUES ('%s', {_YESTERDAY}, {{due}})
"""
_OBAN = f"""
INSERT INTO oban_jobs (state, worker, queue, inserted_at, scheduled_at)
VALUES ('%s', 'Send', 'mail', {_YESTERDAY_UTC}, {_DUE_UTC})
"""
_SOLID_QUEUE = f"""
WITH job AS (
    INSERT INTO solid_queue_jobs (created_at, updated_at, scheduled_at)
    VALUES ({_YESTERDAY_UTC}, {_YESTERDAY_UTC}, {_DUE_UTC}) RETURNING *
)
"""
_HANGFIRE = f"""
WITH job AS (
    INSERT INTO job (createdat, stateid, statename)
    VALUES ({_YESTERDAY}, nextval('state_id_seq'), '%s') RETURNING *
)
INSERT INTO state (id, jobid, name, createdat, data)
SELECT stateid, id, statename, %s FROM job
"""

DUE_JOBS = (
    DueJob("river", stand_in(RIVER), _RIVER % "available", _RIVER % "scheduled"),
    DueJob("oban", _oban, _OBAN % "available", _OBAN % "retryable"),
    DueJob(
        "solid-queue",
        stand_in(SOLID_QUEUE),
        _SOLID_QUEUE
        + f"""
        INSERT INTO solid_queue_ready_executions (job_id, queue_name, created_at)
        SELECT id, queue_name, {_DUE_UTC} FROM job
        """,
        _SOLID_QUEUE
        + f"""
        INSERT INTO solid_queue_scheduled_executions (job_id, queue_name, created_at, scheduled_at)
        SELECT id, queue_name, created_at, {_DUE_UTC} FROM job
        """,
    ),
    DueJob(
        "pgmq",
        _pgmq,
        f"""
        INSERT INTO q_jobs (enqueued_at, vt, message) VALUES ({_YESTERDAY}, {{due}}, '{{{{}}}}')
        """,
        table="q_jobs",
    ),
    DueJob(
        "procrastinate",
        _procrastinate,
        f"""
        WITH job AS (
            INSERT INTO procrastinate_jobs (queue_name, task_name, scheduled_at)
            VALUES ('mails', 'send', {{due}}) RETURNING id
        )
        SELECT FROM job;
        UPDATE procrastinate_events SET at = {_YESTERDAY} WHERE type = 'deferred'
        """,
    ),
    DueJob(
        "pgqueuer",
        _pgqueuer,
        f"""
        INSERT INTO pgqueuer (priority, status, entrypoint, created, updated, execute_after)
        VALUES (0, 'queued', 'mail', {_YESTERDAY}, {_YESTERDAY}, {{due}})
        """,
        table="pgqueuer",
    ),
    DueJob(
        "graphile-worker",
        _graphile_worker,
        f"""
        SELECT add_job('send');
        UPDATE _private_jobs SET created_at = {_YESTERDAY}, run_at = {{due}}
        """,
    ),
    DueJob(
        "pg-boss",
        _pg_boss,
        f"INSERT INTO job (name, created_on, start_after) VALUES ('mail', {_YESTERDAY}, {{due}})",
        queue="mail",
    ),
    DueJob(
        "delayed-job",
        stand_in(DELAYED_JOB),
        f"""
        INSERT INTO delayed_jobs (handler, created_at, run_at)
        VALUES ('--- !ruby/struct:Send', {_YESTERDAY_UTC}, {_DUE_UTC})
        """,
        table="delayed_jobs",
    ),
    DueJob(
        "laravel",
        stand_in(LARAVEL),
        f"""
        INSERT INTO jobs (queue, payload, attempts, created_at, available_at)
        SELECT 'mail', '{{{{}}}}', 0, EXTRACT(EPOCH FROM {_YESTERDAY}), EXTRACT(EPOCH FROM {{due}})
        """,
        table="jobs",
    ),
    DueJob(
        "symfony",
        stand_in(SYMFONY),
        f"""
        INSERT INTO messenger_messages (body, headers, queue_name, created_at, available_at)
        VALUES ('x', '[]', 'mail', {_YESTERDAY_UTC}, {_DUE_UTC})
        """,
        table="messenger_messages",
    ),
    DueJob(
        "hangfire",
        stand_in(HANGFIRE),
        _HANGFIRE % ("Enqueued", """{due}, '{{"Queue": "mail"}}'"""),
        _HANGFIRE % ("Scheduled", "now(), jsonb_build_object('EnqueueAt', {due})"),
    ),
)
