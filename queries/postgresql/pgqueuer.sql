-- preset: pgqueuer 0.20 and later
-- like: preset
-- summary: One table for all entrypoints; a job that was worked on is deleted and logged.
-- advice: pgqueuer's own table: jobs of all entrypoints lie in it, picked ones with a heartbeat; what is done is
--   deleted and logged. Adopt it to see what waits, what is picked by a manager whose heartbeat stopped, and what
--   failed and is held.
-- columns: id priority queue_manager_id created updated heartbeat execute_after status entrypoint payload
-- roles: id=id pushed_at=created due_at=execute_after claimed_at=updated claimed_by=queue_manager_id status=status
--   error=traceback attempts=attempts payload=payload done_at=updated
-- verbs: requeue
-- no purge: pgqueuer deletes jobs itself, and logs each in its log table
-- no release: pgqueuer takes it back itself: its dequeue picks what has had no heartbeat for longer than its
--   heartbeat_timeout, and has no other rule for it
-- no pause: pgqueuer has no pause: its managers are stopped, or started without the entrypoint
-- left claims: pgqueuer's other managers take them once their heartbeat_timeout is over
-- requeued: as pgqueuer's own requeue_jobs does it: due now, its attempts reset to 0, logged
-- takes due: pgqueuer's managers pick due jobs, each those of its own entrypoints
-- overdue: start a manager that has the entrypoint, or see what it logs; its concurrency_limit may be reached
-- stays: a waiting or picked job has its dedupe_key
--
-- Read from pgqueuer 1.6 (adapters/persistence/qb.py and schema_ddl.py in its package): queued is ready, or
-- scheduled while execute_after is not there yet; picked is claimed by queue_manager_id, with a heartbeat;
-- failed is what a worker with on_failure="hold" has put aside. Everything else is deleted when it ends and
-- is in the log table, of which nothing is counted here. It has no functions to call: its Python does it.

-- define: is_ready
m.status = 'queued' AND m.execute_after < statement_timestamp() AND {in_part}

-- define: is_scheduled
m.status = 'queued' AND m.execute_after >= statement_timestamp() AND {in_part}

-- define: is_claimed
m.status = 'picked' AND {in_part}

-- define: is_stuck
-- As its own stale_jobs says: picked, and without a heartbeat for so long.
m.heartbeat < {silent_before} AND {is_claimed}

-- define: is_error
-- As text: an older version has no state of that name.
CAST(m.status AS text) = 'failed' AND {in_part}

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
{queue_column}

-- define: is_first_pop
-- It counts what was tried again.
m.attempts = 0 -- when role attempts
true -- when no role attempts

-- define: queue_column
m.entrypoint

-- define: oldest_claims
-- by its own index of picked jobs
m.updated

-- define: is_waiting
m.status = 'queued' AND {in_part}

-- define: was_tried
-- build_retry_job_query, for RetryRequested: the job is queued again, its attempts are counted, and the log gets what
-- was raised. If the log was cleared, only the job's own time is left. A version without attempts has no retries.
-- when role attempts
m.attempts > 0 AND m.created < statement_timestamp() - make_interval(secs => CAST(:seconds AS double precision))
-- end
false -- when no role attempts

-- define: failing_since
coalesce(
    (SELECT min(l.created) FROM "{schema}"."{beside}" AS l WHERE l.job_id = m.id AND l.traceback IS NOT NULL),
    m.created
)

-- define: joined_table
(
    SELECT CAST(l.relname AS text) FROM pg_class AS l
    INNER JOIN pg_attribute AS s ON l.oid = s.attrelid AND s.attname = 'status' AND NOT s.attisdropped
    INNER JOIN pg_attribute AS t ON l.oid = t.attrelid AND t.attname = 'traceback' AND NOT t.attisdropped
    INNER JOIN pg_attribute AS j ON l.oid = j.attrelid AND j.attname = 'job_id' AND NOT j.attisdropped
    INNER JOIN pg_attribute AS own ON c.oid = own.attrelid AND own.attname = 'status'
    -- Each installation has a type of its own for its states.
    WHERE l.relnamespace = c.relnamespace AND l.relkind IN ('r', 'p') AND s.atttypid = own.atttypid
    ORDER BY l.relname = c.relname || '_log' DESC, l.relname LIMIT 1
)

-- define: last_beat
-- of the manager's jobs
(SELECT max(m.heartbeat) FROM "{schema}"."{table}" AS m WHERE CAST(m.queue_manager_id AS text) = requested.session AND m.status = 'picked')

-- define: owner_without_heartbeat
'unknown'

-- define: silent_seconds
-- After this long without one (the default heartbeat_timeout) other managers take its jobs.
30

-- define: writes_into
-- Each requeue must be in its log.
'"{schema}"."{beside}"'

-- define: lacks
-- Versions before attempts were counted had no jobs that are held either.
'this version of pgqueuer counts no attempts and holds no failed jobs' -- when no role attempts

-- name: make_ready
-- one row: how many failed jobs are queued again, and how many of them its log has; the others stay
-- What build_requeue_jobs_query sends for Queries.requeue_jobs, but for one thing: of jobs with the same
-- dedupe_key only one may be queued or picked (its unique index), and the second one would undo the batch.
WITH chosen AS MATERIALIZED (
    SELECT
        m.id, m.dedupe_key,
        row_number() OVER (PARTITION BY m.dedupe_key ORDER BY m.id) AS turn
    FROM "{schema}"."{table}" AS m
    WHERE {at_locations}
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
    SELECT r.id, 'queued', r.entrypoint, r.priority
    FROM requeued AS r
    RETURNING 1 AS one
)

SELECT
    (SELECT count(*) FROM requeued) AS taken_out,
    (SELECT count(*) FROM logged) AS put_in
{under_declared_path}
