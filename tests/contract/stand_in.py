"""Tables of libraries that cannot be installed here, written after their migrations.

They prove what the console reads and writes, not what the libraries do.
"""

import threading
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection as PipeEnd
from typing import ClassVar

from tests.contract.child_processes import forking_with, killed
from tests.contract.libraries import LibraryApp, once, working

RIVER = """
CREATE TYPE river_job_state AS ENUM (
    'available', 'cancelled', 'completed', 'discarded', 'pending', 'retryable', 'running',
        'scheduled'
);
CREATE TABLE river_migration (line text NOT NULL, version bigint NOT NULL,
    PRIMARY KEY (line, version));
INSERT INTO river_migration SELECT 'main', n FROM generate_series(1, 7) AS n;
CREATE TABLE river_queue (name text PRIMARY KEY, metadata jsonb, paused_at timestamptz,
    updated_at timestamptz);
CREATE UNLOGGED TABLE river_leader (elected_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL, leader_id text NOT NULL,
    name text PRIMARY KEY DEFAULT 'default');
CREATE TABLE river_job (
    id bigserial PRIMARY KEY,
    state river_job_state NOT NULL DEFAULT 'available',
    attempt smallint NOT NULL DEFAULT 0, max_attempts smallint NOT NULL DEFAULT 1,
    attempted_at timestamptz, created_at timestamptz NOT NULL DEFAULT now(),
    finalized_at timestamptz, scheduled_at timestamptz NOT NULL DEFAULT now(),
    priority smallint NOT NULL DEFAULT 1, args jsonb NOT NULL DEFAULT '{}',
    attempted_by text[], errors jsonb[], kind text NOT NULL DEFAULT 'send',
        metadata jsonb NOT NULL DEFAULT '{}',
    queue text NOT NULL DEFAULT 'default', tags varchar(255)[] NOT NULL DEFAULT '{}',
    unique_key bytea, unique_states bit(8),
    CHECK ((finalized_at IS NOT NULL) = (state IN ('cancelled', 'completed', 'discarded')))
);
CREATE INDEX ON river_job (state, queue, priority, scheduled_at, id);
CREATE FUNCTION river_job_state_in_bitmask(bitmask bit(8),
    state river_job_state) RETURNS boolean IMMUTABLE LANGUAGE sql AS $$
    SELECT get_bit(bitmask, array_position(
        '{scheduled,running,retryable,pending,discarded,completed,cancelled,available}'::text[],
            state::text
    ) - 1) = 1
$$;
CREATE UNIQUE INDEX ON river_job (unique_key)
    WHERE unique_key IS NOT NULL AND unique_states IS NOT NULL AND
        river_job_state_in_bitmask(unique_states, state);
"""
"""River's migrations 001 to 007."""
HANGFIRE_MSSQL = """
CREATE TABLE [{schema}].[Schema] (Version int NOT NULL PRIMARY KEY);
CREATE TABLE [{schema}].Job (
    Id bigint NOT NULL PRIMARY KEY CLUSTERED, StateId bigint NULL, StateName nvarchar(20) NULL,
    InvocationData nvarchar(max) NOT NULL DEFAULT N'{{"t": "App", "m": "Send"}}',
    Arguments nvarchar(max) NOT NULL DEFAULT N'[]',
    CreatedAt datetime NOT NULL DEFAULT GETUTCDATE(), ExpireAt datetime NULL
);
CREATE INDEX IX_HangFire_Job_StateName ON [{schema}].Job (StateName) WHERE StateName IS NOT NULL;
CREATE TABLE [{schema}].[State] (
    Id bigint NOT NULL, JobId bigint NOT NULL REFERENCES [{schema}].Job (Id) ON DELETE CASCADE,
    Name nvarchar(20) NOT NULL, Reason nvarchar(100) NULL,
    CreatedAt datetime NOT NULL DEFAULT GETUTCDATE(), Data nvarchar(max) NULL,
    PRIMARY KEY CLUSTERED (JobId, Id)
);
CREATE TABLE [{schema}].JobQueue (
    Id bigint NOT NULL, JobId bigint NOT NULL, Queue nvarchar(50) NOT NULL, FetchedAt datetime NULL,
    PRIMARY KEY CLUSTERED (Queue, Id)
);
CREATE TABLE [{schema}].[Server] (
    Id nvarchar(200) NOT NULL PRIMARY KEY CLUSTERED, Data nvarchar(max) NULL,
    LastHeartbeat datetime NOT NULL
);
"""
"""The tables of Hangfire.SqlServer's Install.sql at schema version 9, as far as they are read; ids
are passed by each insert."""
SOLID_QUEUE = """
CREATE TABLE solid_queue_jobs (
    id bigserial PRIMARY KEY, queue_name varchar NOT NULL DEFAULT 'mail',
        class_name varchar NOT NULL DEFAULT 'SendJob',
    arguments text, priority integer NOT NULL DEFAULT 0, active_job_id varchar,
        scheduled_at timestamp(6),
    finished_at timestamp(6), concurrency_key varchar,
    created_at timestamp(6) NOT NULL DEFAULT timezone('UTC', now()),
        updated_at timestamp(6) NOT NULL DEFAULT timezone('UTC', now())
);
CREATE INDEX ON solid_queue_jobs (queue_name, finished_at);
CREATE INDEX ON solid_queue_jobs (finished_at);
CREATE TABLE solid_queue_processes (
    id bigserial PRIMARY KEY, kind varchar NOT NULL DEFAULT 'Worker',
        last_heartbeat_at timestamp(6) NOT NULL
);
CREATE TABLE solid_queue_pauses (
    id bigserial PRIMARY KEY, queue_name varchar NOT NULL UNIQUE, created_at timestamp(6) NOT NULL
);
CREATE TABLE solid_queue_ready_executions (
    id bigserial PRIMARY KEY,
        job_id bigint NOT NULL UNIQUE REFERENCES solid_queue_jobs ON DELETE CASCADE,
    created_at timestamp(6) NOT NULL, queue_name varchar NOT NULL,
        priority integer NOT NULL DEFAULT 0
);
CREATE TABLE solid_queue_scheduled_executions (LIKE solid_queue_ready_executions INCLUDING ALL,
    scheduled_at timestamp(6));
CREATE TABLE solid_queue_blocked_executions (LIKE solid_queue_ready_executions INCLUDING ALL,
    concurrency_key varchar, expires_at timestamp(6));
CREATE TABLE solid_queue_claimed_executions (
    id bigserial PRIMARY KEY,
        job_id bigint NOT NULL UNIQUE REFERENCES solid_queue_jobs ON DELETE CASCADE,
    process_id bigint, created_at timestamp(6) NOT NULL
);
CREATE TABLE solid_queue_semaphores (
    id bigserial PRIMARY KEY, key varchar NOT NULL UNIQUE, value integer NOT NULL DEFAULT 1,
    expires_at timestamp(6) NOT NULL
);
CREATE TABLE solid_queue_failed_executions (
    id bigserial PRIMARY KEY,
        job_id bigint NOT NULL UNIQUE REFERENCES solid_queue_jobs ON DELETE CASCADE,
    error text, created_at timestamp(6) NOT NULL
);
"""
"""Solid Queue's queue_schema.rb."""
HANGFIRE = """
CREATE TABLE schema (version integer PRIMARY KEY);
INSERT INTO schema VALUES (23);
CREATE TABLE job (
    id bigserial PRIMARY KEY, stateid bigint, statename text,
        invocationdata jsonb NOT NULL DEFAULT '{"Method": "Send"}',
    arguments jsonb NOT NULL DEFAULT '[]', createdat timestamptz NOT NULL DEFAULT now(),
        expireat timestamptz, updatecount integer
);
CREATE INDEX ON job (statename) INCLUDE (id) WHERE statename IS NOT NULL;
CREATE TABLE state (
    id bigserial PRIMARY KEY, jobid bigint NOT NULL REFERENCES job ON DELETE CASCADE,
        name text NOT NULL, reason text,
    createdat timestamptz NOT NULL DEFAULT now(), data jsonb, updatecount integer
);
CREATE INDEX ON state (jobid);
CREATE TABLE jobqueue (id bigserial PRIMARY KEY, jobid bigint NOT NULL, queue text NOT NULL,
    fetchedat timestamptz);
CREATE TABLE server (id text PRIMARY KEY, data jsonb, lastheartbeat timestamptz NOT NULL);
"""
"""Hangfire.PostgreSql's Install.v3.sql to v23.sql."""
DELAYED_JOB = """
CREATE TABLE delayed_jobs (
    id bigserial PRIMARY KEY, priority integer NOT NULL DEFAULT 0,
        attempts integer NOT NULL DEFAULT 0,
    handler text NOT NULL, last_error text, run_at timestamp(6), locked_at timestamp(6),
        failed_at timestamp(6),
    locked_by varchar, queue varchar, created_at timestamp(6), updated_at timestamp(6)
);
CREATE INDEX ON delayed_jobs (priority, run_at);
"""
"""The migration of delayed_job_active_record 4.1."""
LARAVEL = """
CREATE TABLE jobs (
    id bigserial PRIMARY KEY, queue varchar(255) NOT NULL, payload text NOT NULL,
    attempts smallint NOT NULL, reserved_at integer, available_at integer NOT NULL,
    created_at integer NOT NULL
);
CREATE INDEX ON jobs (queue);
"""
"""Laravel's jobs.stub."""
SYMFONY = """
CREATE TABLE messenger_messages (
    id bigserial PRIMARY KEY, body text NOT NULL, headers text NOT NULL,
    queue_name varchar(190) NOT NULL, created_at timestamp(0) NOT NULL,
    available_at timestamp(0) NOT NULL, delivered_at timestamp(0)
);
CREATE INDEX ON messenger_messages (queue_name);
CREATE INDEX ON messenger_messages (available_at);
CREATE INDEX ON messenger_messages (delivered_at);
"""
"""What Symfony's Doctrine transport creates."""


forking_with(__name__)


@dataclass(frozen=True)
class StandIn(LibraryApp):
    """Tables of a library that is not installed, and workers whose statements are like its own."""

    schema: str = "Theirs"
    takes: ClassVar[str] = ""
    """Takes jobs; `{worker}` is the process 1 or 2."""
    ends: ClassVar[str] = ""

    def leave(self, number: int) -> list[int]:
        (jobs,) = killed(_hang, self, number)
        return [int(job) for job in jobs]

    def take(self, worker: int, number: int) -> list[int]:
        return self.column(self.takes.format(worker=worker, number=number))

    def working(self) -> AbstractContextManager[object]:
        def step() -> None:
            taken = self.take(2, 5)
            for job in taken:
                self.note(job)
            self.rows(self.ends, [taken])

        return working(step)


def _hang(of: StandIn, number: int, reports: PipeEnd) -> None:
    reports.send(of.take(1, number))
    threading.Event().wait()


class River(StandIn):
    preset: ClassVar[str] = "river"
    stays: ClassVar[str] = "another job with its unique_key is there"
    waits: ClassVar[str] = "SELECT id FROM river_job WHERE state = 'available'"
    takes: ClassVar[str] = """
    UPDATE river_job SET state = 'running', attempt = attempt + 1, attempted_at = now(),
        attempted_by = array_append(attempted_by, 'client {worker}')
    WHERE id = ANY(ARRAY(
        SELECT id FROM river_job WHERE state = 'available' AND scheduled_at <= now()
        ORDER BY priority, scheduled_at, id LIMIT {number} FOR UPDATE SKIP LOCKED
    )) RETURNING id
    """
    ends: ClassVar[str] = """
    UPDATE river_job SET state = 'completed', finalized_at = now()
    WHERE id = ANY(%s) AND state = 'running'
    """

    def fail(self, number: int) -> list[int]:
        failed = """
        INSERT INTO river_job (state, attempt, finalized_at)
        SELECT 'discarded', 1, now() FROM generate_series(1, %s) RETURNING id
        """
        return self.column(failed, [number])

    def replaced(self) -> tuple[int, int]:
        """Both have failed; the younger one stays."""
        unique = (
            "UPDATE river_job SET unique_key = 'one', unique_states = B'11110101' WHERE id = {}"
        )
        jobs = self.fail(2)
        for job in jobs:
            self.run(unique.format(job))
        return max(jobs), min(jobs)

    def taken(self) -> "Counter[str]":
        return self.counter(
            "SELECT j.id FROM river_job AS j, LATERAL generate_series(1, j.attempt)"
        )


@once
def river(url: str) -> River:
    theirs = River(url)
    theirs.create(RIVER)
    return theirs


class SolidQueue(StandIn):
    """Its process 1 is killed, its process 2 lives."""

    preset: ClassVar[str] = "solid-queue"
    stays: ClassVar[str] = (
        "they have a concurrency_key, whose limit only Ruby knows: "
        "SolidQueue::FailedExecution.find_by(job_id: ID).retry"
    )
    stays_in_plan: ClassVar[bool] = True
    waits: ClassVar[str] = """
    SELECT job_id FROM solid_queue_ready_executions
    UNION ALL SELECT job_id FROM solid_queue_blocked_executions
    """
    takes: ClassVar[str] = """
    WITH taken AS (
        DELETE FROM solid_queue_ready_executions WHERE id = ANY(ARRAY(
            SELECT id FROM solid_queue_ready_executions
            WHERE queue_name NOT IN (SELECT queue_name FROM solid_queue_pauses)
            ORDER BY priority, job_id LIMIT {number} FOR UPDATE SKIP LOCKED
        )) RETURNING job_id
    )
    INSERT INTO solid_queue_claimed_executions (job_id, process_id, created_at)
    SELECT job_id, {worker}, timezone('UTC', now()) FROM taken RETURNING job_id
    """
    ends: ClassVar[str] = """
    WITH ended AS (
        DELETE FROM solid_queue_claimed_executions WHERE job_id = ANY(%s) RETURNING job_id
    )
    UPDATE solid_queue_jobs SET finished_at = timezone('UTC', now())
    WHERE id IN (SELECT job_id FROM ended)
    """

    def _jobs(self, number: int, state: str, columns: str) -> list[int]:
        made = f"""
        WITH job AS (
            INSERT INTO solid_queue_jobs (arguments) SELECT '{{}}' FROM generate_series(1, %s)
            RETURNING *
        )
        INSERT INTO solid_queue_{state}_executions (job_id, {columns})
        SELECT id, {columns} FROM job RETURNING job_id
        """
        return self.column(made, [number])

    def add(self, number: int) -> list[int]:
        return self._jobs(number, "ready", "queue_name, created_at")

    def fail(self, number: int) -> list[int]:
        return self._jobs(number, "failed", "created_at")

    def replaced(self) -> tuple[int, int]:
        """A blocked job has its key."""
        (failed,), (blocked,) = self.fail(1), self._jobs(1, "blocked", "queue_name, created_at")
        both = f"WHERE id IN ({failed}, {blocked})"
        self.run(f"UPDATE solid_queue_jobs SET concurrency_key = 'one' {both}")
        return failed, blocked

    def silence(self) -> None:
        self.run(
            """
            UPDATE solid_queue_processes SET last_heartbeat_at = last_heartbeat_at - interval '1 h'
            WHERE id = 1
            """
        )


@once
def solid_queue(url: str) -> SolidQueue:
    theirs = SolidQueue(url)
    theirs.create(SOLID_QUEUE)
    theirs.run(
        """
        INSERT INTO solid_queue_processes (last_heartbeat_at)
        SELECT timezone('UTC', now()) FROM generate_series(1, 2)
        """
    )
    return theirs
