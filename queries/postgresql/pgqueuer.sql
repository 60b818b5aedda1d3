-- pgqueuer on PostgreSQL: its own table, looked at, and acted on by exactly the statements that it runs itself.
--
-- Read from pgqueuer 1.6 (adapters/persistence/qb.py and schema_ddl.py in its package): queued is ready, or
-- scheduled while execute_after is not there yet; picked is claimed by queue_manager_id, with a heartbeat;
-- failed is what a worker with on_failure="hold" has put aside. Everything else is deleted when it ends and
-- stands in the log table, of which nothing is counted here. It has no functions to call: its Python does it.

-- define: in_part
-- which of the queues that the library keeps in the table
-- when part=one
m.entrypoint = '{only}'
-- end
-- when part=all
true
-- end

-- define: is_ready
m.status = 'queued' AND m.execute_after < statement_timestamp() AND {in_part}

-- define: is_scheduled
m.status = 'queued' AND m.execute_after >= statement_timestamp() AND {in_part}

-- define: is_claimed
m.status = 'picked' AND {in_part}

-- define: is_stuck
-- As its own stale_jobs says: picked, and without a heartbeat for so long (30 seconds at least: see owners).
m.heartbeat < statement_timestamp() - make_interval(secs => greatest(30, CAST('{stuck_after_seconds}' AS double precision)))
AND {is_claimed}

-- define: is_error
-- As text: an older version has no state of that name.
CAST(m.status AS text) = 'failed' AND {in_part}

-- define: state
CASE
    WHEN m.status = 'queued' AND m.execute_after >= statement_timestamp() THEN 'scheduled'
    WHEN m.status = 'queued' THEN 'ready'
    WHEN m.status = 'picked' THEN 'claimed'
    WHEN CAST(m.status AS text) = 'failed' THEN 'error'
    ELSE CAST(m.status AS text)
END

-- define: pushed_at
m.created

-- define: due_at
m.execute_after

-- define: claimed_at
CASE WHEN m.status = 'picked' THEN m.updated END

-- define: claimed_by
CASE WHEN m.status = 'picked' THEN CAST(m.queue_manager_id AS text) END

-- define: done_at
CASE WHEN CAST(m.status AS text) = 'failed' THEN m.updated END

-- define: error
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
END

-- define: title
m.entrypoint

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
        WHEN max(m.heartbeat) < statement_timestamp() - make_interval(secs => greatest(30, CAST('{stuck_after_seconds}' AS double precision))) THEN 'gone'
        ELSE 'unknown'
    END AS owner
FROM unnest(CAST(:sessions AS text[])) AS asked (session)
LEFT JOIN "{schema}"."{table}" AS m ON asked.session = CAST(m.queue_manager_id AS text) AND m.status = 'picked'
GROUP BY asked.session;

-- name: retrying
-- one row: of the first 100,000 queued jobs, how many asked for another try longer than :seconds ago, and the one that asked first
-- build_retry_job_query, for RetryRequested: the job is queued again, its attempts are counted, and the log gets what
-- was raised. Of a log that was cleared the job's own time is left. A version without attempts has no retries.
SELECT
    count(*) AS jobs,
    CAST(EXTRACT(EPOCH FROM statement_timestamp() - min(j.failed_at)) AS double precision) AS oldest_seconds,
    CAST(max(j.attempts) AS integer) AS attempts,
    CAST((array_agg(j.id ORDER BY j.failed_at, j.id))[1] AS text) AS id
FROM (
    SELECT
        m.id,
        m.attempts,
        coalesce(
            (SELECT min(l.created) FROM "{schema}"."{beside}" AS l WHERE l.job_id = m.id AND l.traceback IS NOT NULL),
            m.created
        ) AS failed_at
    FROM (
        SELECT
            t.id,
            t.created,
            -- when role attempts
            t.attempts
            -- end
            -- when no role attempts
            CAST(0 AS integer) AS attempts
            -- end
        FROM "{schema}"."{table}" AS t
        WHERE t.status = 'queued'
        -- when part=one
        AND t.entrypoint = '{only}'
        -- end
        LIMIT 100000
    ) AS m
    WHERE m.attempts > 0 AND m.created < statement_timestamp() - make_interval(secs => CAST(:seconds AS double precision))
) AS j
WHERE j.failed_at < statement_timestamp() - make_interval(secs => CAST(:seconds AS double precision));

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
    WHERE {at_places}
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
