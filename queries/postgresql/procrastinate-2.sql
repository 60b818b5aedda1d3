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

-- define: can_retry
m.status = 'doing'

-- define: retry
"{schema}".procrastinate_retry_job(c.id, statement_timestamp())
