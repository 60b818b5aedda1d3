-- preset: procrastinate 1, 2 and 3.0
-- like: procrastinate
-- older: procrastinate
-- columns: id queue_name task_name args status scheduled_at attempts queueing_lock
-- roles: id=id pushed_at=at due_at=scheduled_at claimed_at=at status=status error=task_name attempts=attempts
--   payload=args done_at=at
-- verbs: release
-- no requeue: procrastinate 2 retries no job that has failed: its procrastinate_retry_job takes what is doing only
-- requeued: as procrastinate's own function procrastinate_retry_job does it: due now, one more attempt counted, the event
--   logged
-- stays: it was not doing any more, or another waiting job has its queueing_lock
--
-- Read from procrastinate 1.1, 2.15 and 3.0 (sql/schema.sql in its package): as procrastinate.sql, but workers are not
-- recorded and have no heartbeat, and in 2 aborting is a state: it is claimed too. 3.0 has another function for a retry.

-- define: is_claimed
CAST(m.status AS text) IN ('doing', 'aborting') AND {in_part}

-- define: is_stuck
-- As its get_stalled_jobs: since when it was started.
{is_claimed} AND {claimed_at} < statement_timestamp() - make_interval(secs => CAST('{stuck_after_seconds}' AS double precision))

-- define: claimed_at
CASE
    WHEN CAST(m.status AS text) IN ('doing', 'aborting')
        THEN (SELECT max(e.at) FROM "{schema}"."{beside}" AS e WHERE e.job_id = m.id AND e.type = 'started')
END

-- define: claimed_by

-- define: last_beat
CAST(NULL AS timestamptz)

-- define: owner_without_heartbeat
'unknown'

-- define: own_function
'"{schema}".procrastinate_retry_job(bigint, timestamp with time zone)'

-- name: make_ready
-- one row: how many jobs that are doing its own function has made todo again; the others stay
-- Of jobs with the same queueing_lock only one may be todo (its unique index), so the second one would undo the batch.
WITH chosen AS MATERIALIZED (
    SELECT
        m.id,
        m.queueing_lock,
        row_number() OVER (PARTITION BY m.queueing_lock ORDER BY m.id) AS turn
    FROM "{schema}"."{table}" AS m
    WHERE {at_locations} AND m.status = 'doing'
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
    CROSS JOIN LATERAL "{schema}".procrastinate_retry_job(c.id, statement_timestamp()) AS r (done)
    WHERE c.queueing_lock IS NULL OR c.turn = 1
)

SELECT
    (SELECT count(*) FROM retried) AS taken_out,
    (SELECT count(r.done) FROM retried AS r) AS put_in
{under_declared_path}
