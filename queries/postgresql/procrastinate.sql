-- procrastinate on PostgreSQL: its own table procrastinate_jobs, looked at, and acted on by its own functions.
--
-- Read from the schema and the queries of procrastinate 3.10 (schema.sql, queries.sql in its package):
-- todo is ready, or scheduled while scheduled_at is not there yet; doing is claimed by worker_id, whose
-- heartbeat stands in procrastinate_workers; failed is an error; succeeded is done. Jobs that were cancelled
-- or aborted are in none of these states. A job that waits for another one's lock counts as ready, as its own
-- figures have it. The table has no times and no error texts: a trigger writes each change of the status into
-- procrastinate_events, and errors are only logged by the worker.

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

-- name: status
-- one row: counts of at most 10,001 by state, the age of the oldest ready job, the table's counters
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.status = 'todo' AND (m.scheduled_at IS NULL OR m.scheduled_at <= statement_timestamp())
            -- when part=one
            AND m.queue_name = '{only}'
            -- end
            LIMIT CAST('{ready_limit}' AS bigint)
        ) AS bounded
    ) AS ready,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.status = 'todo' AND m.scheduled_at > statement_timestamp()
            -- when part=one
            AND m.queue_name = '{only}'
            -- end
            LIMIT CAST('{scheduled_limit}' AS bigint)
        ) AS bounded
    ) AS scheduled,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.status = 'doing'
            -- when part=one
            AND m.queue_name = '{only}'
            -- end
            LIMIT CAST('{claimed_limit}' AS bigint)
        ) AS bounded
    ) AS claimed,
    -- Stuck as its own select_stalled_jobs_by_heartbeat says: the worker is gone, or has no recent heartbeat.
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            LEFT JOIN "{schema}".procrastinate_workers AS w ON m.worker_id = w.id
            WHERE m.status = 'doing'
            AND coalesce(w.last_heartbeat < statement_timestamp() - make_interval(secs => CAST('{stuck_after_seconds}' AS double precision)), true)
            -- when part=one
            AND m.queue_name = '{only}'
            -- end
            LIMIT CAST('{stuck_limit}' AS bigint)
        ) AS bounded
    ) AS stuck,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.status = 'failed'
            -- when part=one
            AND m.queue_name = '{only}'
            -- end
            LIMIT CAST('{errors_limit}' AS bigint)
        ) AS bounded
    ) AS errors,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.status = 'succeeded'
            -- when part=one
            AND m.queue_name = '{only}'
            -- end
            LIMIT CAST('{done_limit}' AS bigint)
        ) AS bounded
    ) AS done,
    (
        SELECT
            CAST(EXTRACT(EPOCH FROM clock_timestamp() - (
                SELECT min(e.at) FROM "{schema}"."{beside}" AS e WHERE e.job_id = head.id AND e.type = 'deferred'
            )) AS double precision)
        FROM "{schema}"."{table}" AS head
        WHERE head.status = 'todo' AND (head.scheduled_at IS NULL OR head.scheduled_at <= statement_timestamp())
        -- when part=one
        AND head.queue_name = '{only}'
        -- end
        ORDER BY head.id LIMIT CAST('{age_seconds_limit}' AS bigint)
    ) AS age_seconds,
    -- when part=all
    pg_stat_get_live_tuples(t.oid) AS rows_estimated,
    pg_stat_get_tuples_inserted(t.oid) AS inserted,
    pg_stat_get_tuples_updated(t.oid) AS updated,
    pg_stat_get_tuples_deleted(t.oid) AS deleted,
    -- end
    -- when part=one
    CAST(NULL AS bigint) AS rows_estimated,
    CAST(NULL AS bigint) AS inserted,
    CAST(NULL AS bigint) AS updated,
    CAST(NULL AS bigint) AS deleted,
    -- end
    CAST(NULL AS bigint) AS next_push,
    CAST(NULL AS bigint) AS next_pop,
    CAST(NULL AS bigint) AS base,
    CAST(NULL AS bigint) AS capacity
FROM (SELECT CAST(CAST('"{schema}"."{table}"' AS regclass) AS oid) AS oid) AS t

-- name: messages
-- the jobs of one state, or all (walk), without order, each with its key, for `looked` of common.sql
SELECT
    m.id AS key_id,
    CAST(m.id AS text) AS id,
    CASE
        WHEN m.status = 'todo' AND m.scheduled_at > statement_timestamp() THEN 'scheduled'
        WHEN m.status = 'todo' THEN 'ready'
        WHEN m.status = 'doing' THEN 'claimed'
        WHEN m.status = 'failed' THEN 'error'
        WHEN m.status = 'succeeded' THEN 'done'
        ELSE CAST(m.status AS text)
    END AS state,
    (SELECT min(e.at) FROM "{schema}"."{beside}" AS e WHERE e.job_id = m.id AND e.type = 'deferred') AS pushed_at,
    m.scheduled_at AS due_at,
    CASE
        WHEN m.status = 'doing'
            THEN (SELECT max(e.at) FROM "{schema}"."{beside}" AS e WHERE e.job_id = m.id AND e.type = 'started')
    END AS claimed_at,
    CASE WHEN m.status = 'doing' THEN coalesce('worker ' || m.worker_id, 'no worker') END AS claimed_by,
    m.attempts AS attempts,
    CASE
        WHEN m.status NOT IN ('todo', 'doing')
            THEN (SELECT max(e.at) FROM "{schema}"."{beside}" AS e WHERE e.job_id = m.id AND CAST(e.type AS text) IN ('failed', 'succeeded', 'cancelled', 'aborted'))
    END AS done_at,
    CASE WHEN m.status = 'failed' THEN concat('the task ', m.task_name, ' failed; why stands in its worker''s log') END AS error,
    CAST(m.task_name AS text) AS title,
    m.args AS payload
FROM "{schema}"."{table}" AS m
WHERE true
-- when part=one
AND m.queue_name = '{only}'
-- end
-- when walk=ready
AND m.status = 'todo' AND (m.scheduled_at IS NULL OR m.scheduled_at <= statement_timestamp())
-- end
-- when walk=scheduled
AND m.status = 'todo' AND m.scheduled_at > statement_timestamp()
-- end
-- when walk=claimed
AND m.status = 'doing'
-- end
-- when walk=error
AND m.status = 'failed'
-- end
-- when walk=done
AND m.status = 'succeeded'
-- end

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
        WHEN w.last_heartbeat < statement_timestamp() - make_interval(secs => CAST('{stuck_after_seconds}' AS double precision)) THEN 'gone'
        ELSE 'unknown'
    END AS owner
FROM unnest(CAST(:sessions AS text[])) AS asked (session)
LEFT JOIN "{schema}".procrastinate_workers AS w ON substring(asked.session FROM '^worker ([0-9]+)$') = CAST(w.id AS text);

-- name: estimate
-- one row: about how many rows there are of each state, by 64 pages of the table
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    CAST(sum(found.ready) * nullif(max(t.pages), 0) / count(*) AS double precision) AS ready,
    CAST(sum(found.scheduled) * nullif(max(t.pages), 0) / count(*) AS double precision) AS scheduled,
    CAST(sum(found.claimed) * nullif(max(t.pages), 0) / count(*) AS double precision) AS claimed,
    CAST(sum(found.errors) * nullif(max(t.pages), 0) / count(*) AS double precision) AS errors,
    CAST(sum(found.done) * nullif(max(t.pages), 0) / count(*) AS double precision) AS done
FROM (
    SELECT pg_relation_size(CAST('"{schema}"."{table}"' AS regclass)) / CAST(current_setting('block_size') AS bigint) AS pages
) AS t
CROSS JOIN LATERAL (
    SELECT DISTINCT (2 * i + 1) * t.pages / 128 AS page FROM generate_series(0, 63) AS i
) AS place
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE m.status = 'todo' AND (m.scheduled_at IS NULL OR m.scheduled_at <= statement_timestamp())) AS ready,
        count(*) FILTER (WHERE m.status = 'todo' AND m.scheduled_at > statement_timestamp()) AS scheduled,
        count(*) FILTER (WHERE m.status = 'doing') AS claimed,
        count(*) FILTER (WHERE m.status = 'failed') AS errors,
        count(*) FILTER (WHERE m.status = 'succeeded') AS done
    FROM "{schema}"."{table}" AS m
    WHERE m.ctid >= CAST(format('(%s,0)', place.page) AS tid) AND m.ctid < CAST(format('(%s,0)', place.page + 1) AS tid)
    -- when part=one
    AND m.queue_name = '{only}'
    -- end
) AS found

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

-- name: hold
-- a row for each of the chosen that is there and in nobody's hands: locked now, with its place and its state
SELECT
    CAST(m.ctid AS text) AS place,
    CAST(m.id AS text) AS id,
    CASE
        WHEN m.status = 'todo' AND m.scheduled_at > statement_timestamp() THEN 'scheduled'
        WHEN m.status = 'todo' THEN 'ready'
        WHEN m.status = 'doing' THEN 'claimed'
        WHEN m.status = 'failed' THEN 'error'
        ELSE CAST(m.status AS text)
    END AS state,
    CAST(m.attempts AS bigint) AS attempts
FROM "{schema}"."{table}" AS m
WHERE m.id = ANY(CAST(:keys AS bigint[]))
-- when part=one
AND m.queue_name = '{only}'
-- end
FOR UPDATE OF m SKIP LOCKED;

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
    WHERE m.ctid = ANY(CAST(:places AS tid[])) AND NOT (m.status = 'doing' AND m.abort_requested)
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
