-- pgqueuer on PostgreSQL: its own table, looked at, and acted on by exactly the statements that it runs itself.
--
-- Read from pgqueuer 1.6 (adapters/persistence/qb.py and schema_ddl.py in its package): queued is ready, or
-- scheduled while execute_after is not there yet; picked is claimed by queue_manager_id, with a heartbeat;
-- failed is what a worker with on_failure="hold" has put aside. Everything else is deleted when it ends and
-- stands in the log table, of which nothing is counted here. It has no functions to call: its Python does it.

-- name: find
-- the tables of pgqueuer that this login may read, in any schema and under any prefix, each with its log
SELECT
    n.nspname AS schema,
    c.relname AS "table",
    (
        SELECT CAST(l.relname AS text) FROM pg_class AS l
        INNER JOIN pg_attribute AS s ON l.oid = s.attrelid AND s.attname = 'status' AND NOT s.attisdropped
        INNER JOIN pg_attribute AS t ON l.oid = t.attrelid AND t.attname = 'traceback' AND NOT t.attisdropped
        INNER JOIN pg_attribute AS j ON l.oid = j.attrelid AND j.attname = 'job_id' AND NOT j.attisdropped
        INNER JOIN pg_attribute AS own ON c.oid = own.attrelid AND own.attname = 'status'
        -- Each installation has a type of its own for its states.
        WHERE l.relnamespace = c.relnamespace AND l.relkind IN ('r', 'p') AND s.atttypid = own.atttypid
        ORDER BY l.relname = c.relname || '_log' DESC, l.relname LIMIT 1
    ) AS beside,
    CAST(NULL AS text) AS queue
FROM pg_class AS c
INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
AND (
    SELECT count(*) FROM pg_attribute AS a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    AND a.attname IN ('id', 'priority', 'queue_manager_id', 'created', 'updated', 'heartbeat', 'execute_after', 'status', 'entrypoint', 'payload')
) = 10
ORDER BY n.nspname, c.relname;

-- name: queues
-- the names of at most 100 entrypoints, of the first 100,000 jobs of the table
SELECT DISTINCT j.entrypoint AS name
FROM (SELECT m.entrypoint FROM "{schema}"."{table}" AS m LIMIT 100000) AS j
ORDER BY j.entrypoint LIMIT 100;

-- name: status
-- one row: counts of at most 10,001 by state, the age of the oldest ready job, the table's counters
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.status = 'queued' AND m.execute_after < statement_timestamp()
            -- when part=one
            AND m.entrypoint = '{only}'
            -- end
            LIMIT CAST('{ready_limit}' AS bigint)
        ) AS bounded
    ) AS ready,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.status = 'queued' AND m.execute_after >= statement_timestamp()
            -- when part=one
            AND m.entrypoint = '{only}'
            -- end
            LIMIT CAST('{scheduled_limit}' AS bigint)
        ) AS bounded
    ) AS scheduled,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.status = 'picked'
            -- when part=one
            AND m.entrypoint = '{only}'
            -- end
            LIMIT CAST('{claimed_limit}' AS bigint)
        ) AS bounded
    ) AS claimed,
    -- Stuck as its own stale_jobs says: picked, and without a heartbeat for so long.
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.status = 'picked' AND m.heartbeat < statement_timestamp() - make_interval(secs => CAST('{stuck_after_seconds}' AS double precision))
            -- when part=one
            AND m.entrypoint = '{only}'
            -- end
            LIMIT CAST('{stuck_limit}' AS bigint)
        ) AS bounded
    ) AS stuck,
    -- As text: an older version has no state of that name.
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE CAST(m.status AS text) = 'failed'
            -- when part=one
            AND m.entrypoint = '{only}'
            -- end
            LIMIT CAST('{errors_limit}' AS bigint)
        ) AS bounded
    ) AS errors,
    CAST(NULL AS bigint) AS done,
    (
        SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp() - head.created) AS double precision)
        FROM "{schema}"."{table}" AS head
        WHERE head.status = 'queued' AND head.execute_after < statement_timestamp()
        -- when part=one
        AND head.entrypoint = '{only}'
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
        WHEN m.status = 'queued' AND m.execute_after >= statement_timestamp() THEN 'scheduled'
        WHEN m.status = 'queued' THEN 'ready'
        WHEN m.status = 'picked' THEN 'claimed'
        WHEN CAST(m.status AS text) = 'failed' THEN 'error'
        ELSE CAST(m.status AS text)
    END AS state,
    m.created AS pushed_at,
    m.execute_after AS due_at,
    CASE WHEN m.status = 'picked' THEN m.updated END AS claimed_at,
    CASE WHEN m.status = 'picked' THEN CAST(m.queue_manager_id AS text) END AS claimed_by,
    -- when role attempts
    m.attempts AS attempts,
    -- end
    CASE WHEN CAST(m.status AS text) = 'failed' THEN m.updated END AS done_at,
    CASE
        WHEN CAST(m.status AS text) = 'failed'
            THEN coalesce(
                (
                    SELECT concat_ws(': ', l.traceback ->> 'exception_type', l.traceback ->> 'exception_message')
                    FROM "{schema}"."{beside}" AS l
                    WHERE l.job_id = m.id AND l.traceback IS NOT NULL
                    ORDER BY l.created DESC, l.id DESC LIMIT 1
                ), ''
            )
    END AS error,
    m.entrypoint AS title,
    m.payload AS payload
FROM "{schema}"."{table}" AS m
WHERE true
-- when part=one
AND m.entrypoint = '{only}'
-- end
-- when walk=ready
AND m.status = 'queued' AND m.execute_after < statement_timestamp()
-- end
-- when walk=scheduled
AND m.status = 'queued' AND m.execute_after >= statement_timestamp()
-- end
-- when walk=claimed
AND m.status = 'picked'
-- end
-- when walk=error
AND CAST(m.status AS text) = 'failed'
-- end

-- name: claims
-- the oldest ten claims: since when, and whose
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    CAST(m.id AS text) AS id,
    CAST(EXTRACT(EPOCH FROM greatest(statement_timestamp() - m.updated, interval '0')) AS double precision) AS claimed_seconds,
    CAST(m.queue_manager_id AS text) AS claimed_by,
    -- when role attempts
    CAST(m.attempts AS integer) AS attempts
    -- end
    -- when no role attempts
    CAST(NULL AS integer) AS attempts
    -- end
FROM "{schema}"."{table}" AS m
WHERE m.status = 'picked'
-- when part=one
AND m.entrypoint = '{only}'
-- end
ORDER BY m.updated
LIMIT 10

-- name: owners
-- a row for each of the managers, as claimed_by names them: gone, alive or unknown, by the last heartbeat of its jobs
-- After 30 seconds without one (heartbeat_timeout, unless it was set) other managers take its jobs.
SELECT
    asked.session AS session,
    CASE
        WHEN max(m.heartbeat) >= statement_timestamp() - interval '30 seconds' THEN 'alive'
        WHEN max(m.heartbeat) < statement_timestamp() - make_interval(secs => CAST('{stuck_after_seconds}' AS double precision)) THEN 'gone'
        ELSE 'unknown'
    END AS owner
FROM unnest(CAST(:sessions AS text[])) AS asked (session)
LEFT JOIN "{schema}"."{table}" AS m ON asked.session = CAST(m.queue_manager_id AS text) AND m.status = 'picked'
GROUP BY asked.session;

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
        count(*) FILTER (WHERE m.status = 'queued' AND m.execute_after < statement_timestamp()) AS ready,
        count(*) FILTER (WHERE m.status = 'queued' AND m.execute_after >= statement_timestamp()) AS scheduled,
        count(*) FILTER (WHERE m.status = 'picked') AS claimed,
        count(*) FILTER (WHERE CAST(m.status AS text) = 'failed') AS errors
    FROM "{schema}"."{table}" AS m
    WHERE m.ctid >= CAST(format('(%s,0)', place.page) AS tid) AND m.ctid < CAST(format('(%s,0)', place.page + 1) AS tid)
    -- when part=one
    AND m.entrypoint = '{only}'
    -- end
) AS found

-- name: rule
-- one row: why jobs cannot be requeued as it does it; null: they can
SELECT
    CASE
        WHEN NOT has_table_privilege(CAST('"{schema}"."{beside}"' AS regclass), 'INSERT')
            THEN 'this login may not write into pgqueuer''s log, where each requeue has to stand'
        -- Versions before attempts were counted had no jobs that are held either.
        -- when no role attempts
        ELSE 'this version of pgqueuer counts no attempts and holds no failed jobs'
        -- end
    END AS problem;

-- name: hold
-- a row for each of the chosen that is there and in nobody's hands: locked now, with its place and its state
SELECT
    CAST(m.ctid AS text) AS place,
    CAST(m.id AS text) AS id,
    CASE
        WHEN m.status = 'queued' AND m.execute_after >= statement_timestamp() THEN 'scheduled'
        WHEN m.status = 'queued' THEN 'ready'
        WHEN m.status = 'picked' THEN 'claimed'
        WHEN CAST(m.status AS text) = 'failed' THEN 'error'
        ELSE CAST(m.status AS text)
    END AS state,
    -- when role attempts
    CAST(m.attempts AS bigint) AS attempts
    -- end
    -- when no role attempts
    CAST(NULL AS bigint) AS attempts
    -- end
FROM "{schema}"."{table}" AS m
WHERE m.id = ANY(CAST(:keys AS bigint[]))
-- when part=one
AND m.entrypoint = '{only}'
-- end
FOR UPDATE OF m SKIP LOCKED;

-- name: make_ready
-- one row: how many failed jobs are queued again, and how many of them its log has; the others stay
-- What build_requeue_jobs_query sends for Queries.requeue_jobs, but for one thing: of jobs with the same
-- dedupe_key only one may be queued or picked (its unique index), and the second one would undo the batch.
WITH chosen AS MATERIALIZED (
    SELECT
        m.id,
        m.dedupe_key,
        row_number() OVER (PARTITION BY m.dedupe_key ORDER BY m.id) AS turn
    FROM "{schema}"."{table}" AS m
    WHERE m.ctid = ANY(CAST(:places AS tid[]))
    AND (
        m.dedupe_key IS NULL
        OR NOT EXISTS (
            SELECT FROM "{schema}"."{table}" AS o
            WHERE o.dedupe_key = m.dedupe_key AND o.status IN ('queued', 'picked')
        )
    )
),

requeued AS (
    UPDATE "{schema}"."{table}" AS m
    SET
        status = 'queued',
        execute_after = now(),
        updated = now(),
        attempts = 0,
        queue_manager_id = NULL
    FROM chosen AS c
    WHERE m.id = c.id AND CAST(m.status AS text) = 'failed' AND (c.dedupe_key IS NULL OR c.turn = 1)
    RETURNING m.id, m.entrypoint, m.priority
),

logged AS (
    INSERT INTO "{schema}"."{beside}" (job_id, status, entrypoint, priority)
    SELECT
        r.id,
        'queued',
        r.entrypoint,
        r.priority
    FROM requeued AS r
    RETURNING 1 AS one
)

SELECT
    (SELECT count(*) FROM requeued) AS taken_out,
    (SELECT count(*) FROM logged) AS put_in;
