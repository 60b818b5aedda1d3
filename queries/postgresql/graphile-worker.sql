-- graphile-worker on PostgreSQL: its own table _private_jobs, looked at, and acted on by its own functions.
--
-- Read from its published migrations (sql/000011.sql to 000018.sql of version 0.16): a job is available while it
-- is not locked and has tries left; ready once run_at is there, else scheduled (what failed waits so for its next
-- try); locked_at says that a worker has it; what has no tries left stays as an error. What is done is deleted.
-- A job that waits for its named queue counts as ready. Row security is on and has no policy: who does not own
-- the tables, nor passes it by, sees no row and no error, so every figure is unknown to him and never 0.

-- name: find
-- the tables of graphile-worker that this login may read, in any schema
SELECT
    n.nspname AS schema,
    c.relname AS "table",
    CAST('_private_tasks' AS text) AS beside,
    CAST(NULL AS text) AS queue
FROM pg_class AS c
INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
WHERE c.relname = '_private_jobs' AND c.relkind IN ('r', 'p')
AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
AND (
    SELECT count(*) FROM pg_attribute AS a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    AND a.attname IN ('id', 'task_id', 'payload', 'run_at', 'attempts', 'max_attempts', 'last_error', 'locked_at', 'locked_by', 'is_available')
) = 10
AND EXISTS (SELECT FROM pg_class AS t WHERE t.relnamespace = c.relnamespace AND t.relname = '_private_tasks')
ORDER BY n.nspname;

-- name: queues
-- the names of at most 100 tasks
SELECT t.identifier AS name FROM "{schema}"."{beside}" AS t ORDER BY t.identifier LIMIT 100;

-- name: status
-- one row: counts of at most 10,001 by state, the age of the oldest ready job, the table's counters
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    CASE WHEN t.seen THEN (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.is_available AND m.run_at <= statement_timestamp()
            -- when part=one
            AND m.task_id = (SELECT k.id FROM "{schema}"."{beside}" AS k WHERE k.identifier = '{only}')
            -- end
            LIMIT CAST('{ready_limit}' AS bigint)
        ) AS bounded
    ) END AS ready,
    CASE WHEN t.seen THEN (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.is_available AND m.run_at > statement_timestamp()
            -- when part=one
            AND m.task_id = (SELECT k.id FROM "{schema}"."{beside}" AS k WHERE k.identifier = '{only}')
            -- end
            LIMIT CAST('{scheduled_limit}' AS bigint)
        ) AS bounded
    ) END AS scheduled,
    CASE WHEN t.seen THEN (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.locked_at IS NOT NULL
            -- when part=one
            AND m.task_id = (SELECT k.id FROM "{schema}"."{beside}" AS k WHERE k.identifier = '{only}')
            -- end
            LIMIT CAST('{claimed_limit}' AS bigint)
        ) AS bounded
    ) END AS claimed,
    -- It has no heartbeat: after 4 hours it takes any lock for dead.
    CASE WHEN t.seen THEN (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.locked_at < statement_timestamp() - make_interval(secs => CAST('{stuck_after_seconds}' AS double precision))
            -- when part=one
            AND m.task_id = (SELECT k.id FROM "{schema}"."{beside}" AS k WHERE k.identifier = '{only}')
            -- end
            LIMIT CAST('{stuck_limit}' AS bigint)
        ) AS bounded
    ) END AS stuck,
    CASE WHEN t.seen THEN (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.locked_at IS NULL AND m.attempts >= m.max_attempts
            -- when part=one
            AND m.task_id = (SELECT k.id FROM "{schema}"."{beside}" AS k WHERE k.identifier = '{only}')
            -- end
            LIMIT CAST('{errors_limit}' AS bigint)
        ) AS bounded
    ) END AS errors,
    CAST(NULL AS bigint) AS done,
    (
        SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp() - head.created_at) AS double precision)
        FROM "{schema}"."{table}" AS head WHERE head.is_available AND head.run_at <= statement_timestamp()
        -- when part=one
        AND head.task_id = (SELECT k.id FROM "{schema}"."{beside}" AS k WHERE k.identifier = '{only}')
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
FROM (
    SELECT
        CAST(CAST('"{schema}"."{table}"' AS regclass) AS oid) AS oid,
        NOT row_security_active('"{schema}"."{table}"') AS seen
) AS t

-- name: messages
-- the jobs of one state, or all (walk), without order, each with its key, for `looked` of common.sql
SELECT
    m.id AS key_id,
    CAST(m.id AS text) AS id,
    CASE
        WHEN m.locked_at IS NOT NULL THEN 'claimed'
        WHEN m.attempts >= m.max_attempts THEN 'error'
        WHEN m.run_at > statement_timestamp() THEN 'scheduled'
        ELSE 'ready'
    END AS state,
    m.created_at AS pushed_at,
    m.run_at AS due_at,
    m.locked_at AS claimed_at,
    m.locked_by AS claimed_by,
    m.attempts AS attempts,
    CASE WHEN m.locked_at IS NULL AND m.attempts >= m.max_attempts THEN m.updated_at END AS done_at,
    m.last_error AS error,
    (SELECT k.identifier FROM "{schema}"."{beside}" AS k WHERE k.id = m.task_id) AS title,
    m.payload AS payload
FROM "{schema}"."{table}" AS m
WHERE true
-- when part=one
AND m.task_id = (SELECT k.id FROM "{schema}"."{beside}" AS k WHERE k.identifier = '{only}')
-- end
-- when walk=ready
AND m.is_available AND m.run_at <= statement_timestamp()
-- end
-- when walk=scheduled
AND m.is_available AND m.run_at > statement_timestamp()
-- end
-- when walk=claimed
AND m.locked_at IS NOT NULL
-- end
-- when walk=error
AND m.locked_at IS NULL AND m.attempts >= m.max_attempts
-- end

-- name: claims
-- the oldest ten claims: since when, and whose
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    CAST(m.id AS text) AS id,
    CAST(EXTRACT(EPOCH FROM greatest(statement_timestamp() - m.locked_at, interval '0')) AS double precision) AS claimed_seconds,
    m.locked_by AS claimed_by,
    CAST(m.attempts AS integer) AS attempts
FROM "{schema}"."{table}" AS m
WHERE m.locked_at IS NOT NULL
-- when part=one
AND m.task_id = (SELECT k.id FROM "{schema}"."{beside}" AS k WHERE k.identifier = '{only}')
-- end
ORDER BY m.locked_at
LIMIT 10

-- name: estimate
-- one row: about how many rows there are of each state, by 64 pages of the table
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    CAST(sum(found.ready) * nullif(max(t.pages), 0) / count(*) AS double precision) AS ready,
    CAST(sum(found.scheduled) * nullif(max(t.pages), 0) / count(*) AS double precision) AS scheduled,
    CAST(sum(found.claimed) * nullif(max(t.pages), 0) / count(*) AS double precision) AS claimed,
    CAST(sum(found.errors) * nullif(max(t.pages), 0) / count(*) AS double precision) AS errors,
    CAST(NULL AS double precision) AS done
FROM (
    SELECT pg_relation_size(CAST('"{schema}"."{table}"' AS regclass)) / CAST(current_setting('block_size') AS bigint) AS pages
) AS t
CROSS JOIN LATERAL (
    SELECT DISTINCT (2 * i + 1) * t.pages / 128 AS page FROM generate_series(0, 63) AS i
) AS place
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE m.is_available AND m.run_at <= statement_timestamp()) AS ready,
        count(*) FILTER (WHERE m.is_available AND m.run_at > statement_timestamp()) AS scheduled,
        count(*) FILTER (WHERE m.locked_at IS NOT NULL) AS claimed,
        count(*) FILTER (WHERE m.locked_at IS NULL AND m.attempts >= m.max_attempts) AS errors
    FROM "{schema}"."{table}" AS m
    WHERE m.ctid >= CAST(format('(%s,0)', place.page) AS tid) AND m.ctid < CAST(format('(%s,0)', place.page + 1) AS tid)
    -- when part=one
    AND m.task_id = (SELECT k.id FROM "{schema}"."{beside}" AS k WHERE k.identifier = '{only}')
    -- end
) AS found

-- name: rule
-- one row: why its own function to reschedule jobs cannot be called; null: it can
SELECT
    CASE
        WHEN
            to_regprocedure('"{schema}".reschedule_jobs(bigint[], timestamp with time zone, integer, integer, integer)') IS NULL
            THEN 'this version of graphile-worker has no function reschedule_jobs'
        WHEN row_security_active('"{schema}"."{table}"')
            THEN 'row security hides the jobs from this login'
    END AS problem;

-- name: hold
-- a row for each of the chosen that is there and in nobody's hands: locked now, with its place and its state
SELECT
    CAST(m.ctid AS text) AS place,
    CAST(m.id AS text) AS id,
    CASE
        WHEN m.locked_at IS NOT NULL THEN 'claimed'
        WHEN m.attempts >= m.max_attempts THEN 'error'
        WHEN m.run_at > statement_timestamp() THEN 'scheduled'
        ELSE 'ready'
    END AS state,
    CAST(m.attempts AS bigint) AS attempts
FROM "{schema}"."{table}" AS m
WHERE m.id = ANY(CAST(:keys AS bigint[]))
-- when part=one
AND m.task_id = (SELECT k.id FROM "{schema}"."{beside}" AS k WHERE k.identifier = '{only}')
-- end
FOR UPDATE OF m SKIP LOCKED;

-- name: make_ready
-- one row: how many failed jobs its own function has rescheduled for now; the others stay
-- The function of its SQL interface that WorkerUtils.rescheduleJobs calls; it leaves what is locked.
WITH chosen AS MATERIALIZED (
    SELECT array_agg(m.id) AS ids FROM "{schema}"."{table}" AS m WHERE m.ctid = ANY(CAST(:places AS tid[]))
),

rescheduled AS MATERIALIZED (
    SELECT r.id FROM chosen AS c
    CROSS JOIN LATERAL "{schema}".reschedule_jobs(c.ids, run_at => statement_timestamp(), attempts => 0) AS r
)

SELECT
    (SELECT count(*) FROM rescheduled) AS taken_out,
    (SELECT count(s.id) FROM rescheduled AS s) AS put_in;
