-- procrastinate on PostgreSQL: its own table procrastinate_jobs, looked at, and acted on by its own functions.
--
-- Read from the schema and the queries of procrastinate 3.10 (schema.sql, queries.sql in its package):
-- todo is ready, or scheduled while scheduled_at is not there yet; doing is claimed by worker_id, whose
-- heartbeat stands in procrastinate_workers; failed is an error; succeeded is done. Jobs that were cancelled
-- or aborted are in none of these states. A job that waits for another one's lock counts as ready, as its own
-- figures have it. The table has no times and no error texts: a trigger writes each change of the status into
-- procrastinate_events, and errors are only logged by the worker.

-- define: in_part
-- which of the queues that the library keeps in the table
-- when part=one
m.queue_name = '{only}'
-- end
-- when part=all
true
-- end

-- define: is_ready
m.status = 'todo' AND (m.scheduled_at IS NULL OR m.scheduled_at <= statement_timestamp()) AND {in_part}

-- define: is_scheduled
m.status = 'todo' AND m.scheduled_at > statement_timestamp() AND {in_part}

-- define: is_claimed
m.status = 'doing' AND {in_part}

-- define: is_stuck
-- As its own select_stalled_jobs_by_heartbeat says: the worker is gone, or has no recent heartbeat. One that beat
-- within 30 seconds is at work, however short the threshold (see owners).
{is_claimed} AND coalesce(
    (SELECT w.last_heartbeat FROM "{schema}".procrastinate_workers AS w WHERE w.id = m.worker_id)
    < statement_timestamp() - make_interval(secs => greatest(30, CAST('{stuck_after_seconds}' AS double precision))), true
)

-- define: is_error
m.status = 'failed' AND {in_part}

-- define: is_done
m.status = 'succeeded' AND {in_part}

-- define: state
CASE
    WHEN m.status = 'todo' AND m.scheduled_at > statement_timestamp() THEN 'scheduled'
    WHEN m.status = 'todo' THEN 'ready'
    WHEN m.status = 'doing' THEN 'claimed'
    WHEN m.status = 'failed' THEN 'error'
    WHEN m.status = 'succeeded' THEN 'done'
    ELSE CAST(m.status AS text)
END

-- define: pushed_at
(SELECT min(e.at) FROM "{schema}"."{beside}" AS e WHERE e.job_id = m.id AND e.type = 'deferred')

-- define: due_at
m.scheduled_at

-- define: claimed_at
CASE
    WHEN m.status = 'doing'
        THEN (SELECT max(e.at) FROM "{schema}"."{beside}" AS e WHERE e.job_id = m.id AND e.type = 'started')
END

-- define: claimed_by
CASE WHEN m.status = 'doing' THEN coalesce('worker ' || m.worker_id, 'no worker') END

-- define: attempts
m.attempts

-- define: done_at
CASE
    WHEN m.status NOT IN ('todo', 'doing')
        THEN (SELECT max(e.at) FROM "{schema}"."{beside}" AS e WHERE e.job_id = m.id AND CAST(e.type AS text) IN ('failed', 'succeeded', 'cancelled', 'aborted'))
END

-- define: error
CASE WHEN m.status = 'failed' THEN concat('the task ', m.task_name, ' failed; why stands in its worker''s log') END

-- define: title
CAST(m.task_name AS text)

-- define: chosen_rows
FROM "{schema}"."{table}" AS m
WHERE m.id = ANY(CAST(:keys AS bigint[]))
AND {in_part}

-- define: state_held
{state}

-- define: is_first_pop
-- It counts what was tried again.
-- when role attempts
m.attempts = 0
-- end
-- when no role attempts
true
-- end

-- define: oldest_first
m.id

-- define: pages
64

-- name: find
-- the tables of procrastinate 3 that this login may read, in any schema; prefixes it has none
SELECT
    n.nspname AS schema,
    c.relname AS "table",
    CAST('procrastinate_events' AS text) AS beside,
    CAST(NULL AS text) AS queue
FROM pg_class AS c
INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
WHERE c.relname = 'procrastinate_jobs' AND c.relkind IN ('r', 'p')
AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
AND (
    SELECT count(*) FROM pg_attribute AS a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    AND a.attname IN ('id', 'queue_name', 'task_name', 'args', 'status', 'scheduled_at', 'attempts', 'worker_id')
) = 8
AND EXISTS (SELECT FROM pg_class AS e WHERE e.relnamespace = c.relnamespace AND e.relname = 'procrastinate_events')
ORDER BY n.nspname;

-- name: queues
-- the names of at most 100 queues that have jobs in the table, each found by one step in the index on them
WITH RECURSIVE met AS (
    (SELECT j.queue_name AS name FROM "{schema}"."{table}" AS j ORDER BY j.queue_name LIMIT 1)
    UNION ALL
    SELECT (SELECT j.queue_name FROM "{schema}"."{table}" AS j WHERE j.queue_name > m.name ORDER BY j.queue_name LIMIT 1) AS name
    FROM met AS m WHERE m.name IS NOT NULL
)

SELECT CAST(m.name AS text) AS name FROM met AS m WHERE m.name IS NOT NULL LIMIT 100;

-- name: gate
-- one row: the search path, until the transaction ends; its functions name its tables without a schema
SELECT set_config('search_path', quote_ident('{schema}'), true) AS passed;

-- name: claims
-- the oldest ten claims: since when, and whose
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    CAST(m.id AS text) AS id,
    CAST(EXTRACT(EPOCH FROM greatest(statement_timestamp() - m.started_at, interval '0')) AS double precision) AS claimed_seconds,
    coalesce('worker ' || m.worker_id, 'no worker') AS claimed_by,
    CAST(m.attempts AS integer) AS attempts
FROM (
    SELECT
        d.id,
        d.worker_id,
        d.attempts,
        (SELECT max(e.at) FROM "{schema}"."{beside}" AS e WHERE e.job_id = d.id AND e.type = 'started') AS started_at
    FROM (
        SELECT
            j.id,
            j.worker_id,
            j.attempts
        FROM "{schema}"."{table}" AS j
        WHERE j.status = 'doing'
        -- when part=one
        AND j.queue_name = '{only}'
        -- end
        LIMIT 10000
    ) AS d
) AS m
ORDER BY m.started_at
LIMIT 10

-- name: owners
-- a row for each of the workers, as claimed_by names them: gone, alive or unknown, by its heartbeat
-- Each worker beats every 10 seconds; after 30 without a beat the others take it for dead and strike it off.
SELECT
    asked.session AS session,
    CASE
        WHEN asked.session = 'no worker' OR w.id IS NULL THEN 'gone'
        WHEN w.last_heartbeat >= statement_timestamp() - interval '30 seconds' THEN 'alive'
        WHEN w.last_heartbeat < statement_timestamp() - make_interval(secs => greatest(30, CAST('{stuck_after_seconds}' AS double precision))) THEN 'gone'
        ELSE 'unknown'
    END AS owner
FROM unnest(CAST(:sessions AS text[])) AS asked (session)
LEFT JOIN "{schema}".procrastinate_workers AS w ON substring(asked.session FROM '^worker ([0-9]+)$') = CAST(w.id AS text);

-- name: retrying
-- one row: of the first 100,000 jobs to do, how many were begun before for the first time longer than :seconds ago, and the one that was first
-- A retry strategy makes a job that failed todo again, counts the attempt and keeps no error (procrastinate_retry_job_v2).
-- Its events say when it was first begun; where these were deleted, nothing does, and it is not told.
SELECT
    count(*) AS jobs,
    CAST(EXTRACT(EPOCH FROM statement_timestamp() - min(j.begun_at)) AS double precision) AS oldest_seconds,
    CAST(max(j.attempts) AS integer) AS attempts,
    CAST((array_agg(j.id ORDER BY j.begun_at, j.id))[1] AS text) AS id
FROM (
    SELECT
        m.id,
        m.attempts,
        (SELECT min(e.at) FROM "{schema}"."{beside}" AS e WHERE e.job_id = m.id AND e.type = 'started') AS begun_at
    FROM (
        SELECT
            t.id,
            t.attempts
        FROM "{schema}"."{table}" AS t
        WHERE t.status = 'todo'
        -- when part=one
        AND t.queue_name = '{only}'
        -- end
        LIMIT 100000
    ) AS m
    WHERE m.attempts > 0
) AS j
WHERE j.begun_at < statement_timestamp() - make_interval(secs => CAST(:seconds AS double precision));

-- name: rule
-- one row: why its own function to retry jobs cannot be called; null: it can
SELECT
    CASE
        WHEN
            to_regprocedure(
                '"{schema}".procrastinate_retry_job_v2(bigint, timestamp with time zone, integer, character varying, character varying)'
            ) IS NULL
            THEN 'this version of procrastinate has no function procrastinate_retry_job_v2, by which failed jobs are retried'
    END AS problem;

-- name: make_ready
-- one row: how many jobs, doing or failed, its own function has made todo again; the others stay
-- JobManager.retry_job calls this function with the present time. It takes doing and failed, counts one more
-- attempt, and makes failed of what was to be aborted: such a job is left alone here. Of jobs with the same
-- queueing_lock only one may be todo (its unique index), so the second one would undo the whole batch.
WITH chosen AS MATERIALIZED (
    SELECT
        m.id,
        m.queueing_lock,
        row_number() OVER (PARTITION BY m.queueing_lock ORDER BY m.id) AS turn
    FROM "{schema}"."{table}" AS m
    WHERE {at_places} AND NOT (m.status = 'doing' AND m.abort_requested)
    AND (
        m.queueing_lock IS NULL
        OR NOT EXISTS (SELECT FROM "{schema}"."{table}" AS o WHERE o.queueing_lock = m.queueing_lock AND o.status = 'todo')
    )
),

retried AS MATERIALIZED (
    SELECT
        c.id,
        CAST(r.done AS text) AS done
    FROM chosen AS c
    CROSS JOIN LATERAL "{schema}".procrastinate_retry_job_v2(c.id, statement_timestamp(), NULL, NULL, NULL) AS r (done)
    WHERE c.queueing_lock IS NULL OR c.turn = 1
)

SELECT
    (SELECT count(*) FROM retried) AS taken_out,
    (SELECT count(r.done) FROM retried AS r) AS put_in;
